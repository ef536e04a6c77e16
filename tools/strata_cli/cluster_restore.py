"""`./strata restore` of a cluster's backup: a cluster in a folder of its own, whose storage node from the backup is joined by as
many as a new cluster has, or nothing (restore_folder.py).

Where several servers write the others are not joined, they are laid out from the same files: then all three have been killed in
the same moment, which is how such a cluster starts anyway.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from . import backup_manifest, compute_servers, mariadb_packages, node_changes, node_files, paths, registry_copy
from .backup_manifest import CHUNK, ClusterManifest, OnBytes, SeveralManifest
from .cluster import CLUSTER_NAME, STORAGE_NODES, Cluster, Wishes
from .profile_list import BY_NAME
from .restore_folder import check_tables, hidden_folder, refuse_too_little_room
from .shell import StrataError, console, errors

WHOLE_S = 3600.0  # For a storage node that is added to have everything.


def restore(folder: Path, to: Path, as_json: bool) -> None:
    started = time.monotonic()
    manifest = backup_manifest.read_cluster(folder)
    if manifest.profile not in BY_NAME:
        raise StrataError(f"{folder} is of profile '{manifest.profile}', which this version does not have")
    registry_copy.alone(manifest.keys, CLUSTER_NAME, manifest.node)  # Says so when they cannot be used.
    columns = (TextColumn("  {task.description:24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, disable=as_json or not errors.is_terminal) as progress:
        task = progress.add_task("checksums", total=manifest.bytes())
        backup_manifest.verify(folder, manifest, lambda count: progress.advance(task, count))
        to.parent.mkdir(parents=True, exist_ok=True)
        refuse_too_little_room(to.parent, len(STORAGE_NODES) * manifest.bytes())
        with hidden_folder(to) as hidden:
            cluster = _created(manifest, hidden)
            task = progress.add_task("files", total=len(cluster.storage) * manifest.bytes())
            for node in cluster.storage.values():
                _lay_out(folder, manifest, node.data, lambda count: progress.advance(task, count))
            keys = _keys(cluster, manifest)
            task = progress.add_task("recovery, CHECK TABLE", total=None)
            tables = _recover_and_check(cluster, manifest, keys)
            progress.update(task, total=1, completed=1)
            _add_nodes(cluster, progress)
            _end(cluster, to)
            hidden.rename(to)
            backup_manifest.sync_folder(to.parent)
    result: dict[str, Any] = {
        "folder": str(to),
        "profile": manifest.profile,
        "tables": tables,
        "storage_nodes": list(Cluster(to).settings().storage),
        "seconds": round(time.monotonic() - started, 3),
    }
    if isinstance(manifest, SeveralManifest):
        result["servers"] = list(manifest.servers)
    if as_json:
        print(json.dumps(result))
        return
    nodes = ", ".join(result["storage_nodes"])
    servers = f"; servers {', '.join(result['servers'])}" if "servers" in result else ""
    console.print(
        f"restored into {paths.relative(to)}: {tables} tables recovered and checked; storage nodes {nodes}{servers}", markup=False
    )
    if manifest.mariadb != mariadb_packages.version():
        errors.print(
            f"[yellow]warning:[/] it was made with MariaDB {manifest.mariadb}, this is {mariadb_packages.version()}:"
            " run mariadb-upgrade once it is up"
        )
    console.print(f"  ./strata up --profile {manifest.profile} --data {paths.relative(to)}", markup=False)


def _created(manifest: ClusterManifest, hidden: Path) -> Cluster:
    cluster = Cluster(hidden)
    wishes = Wishes()
    if manifest.memory:
        wishes = Wishes(
            memory_nodes=len(manifest.memory),
            memory=manifest.memory[0],
            memory_backup=manifest.memory_backup,
            buffer_pool=manifest.buffer_pool,
        )
    if isinstance(manifest, SeveralManifest):
        others = [name for name in STORAGE_NODES if name != manifest.node]
        nodes = [manifest.node, *others][: len(STORAGE_NODES)]
        cluster.create_around(manifest.profile, nodes, wishes, list(manifest.servers), manifest.read_only)
    else:
        cluster.create_around(manifest.profile, [manifest.node], wishes)
    return cluster


def _keys(cluster: Cluster, manifest: ClusterManifest) -> dict[str, str]:
    """For the storage nodes that there are. All but one are copies of that one, and get names of their own."""
    if len(cluster.storage) == 1:
        return registry_copy.alone(manifest.keys, CLUSTER_NAME, manifest.node)
    if BY_NAME[manifest.profile].pages_are_written:
        _check_store(cluster, manifest)
    copies = {
        name: node_files.rename_storage_node(node.data, name) for name, node in cluster.storage.items() if name != manifest.node
    }
    return registry_copy.spread(manifest.keys, CLUSTER_NAME, manifest.node, copies)


def _check_store(cluster: Cluster, manifest: ClusterManifest) -> None:
    there = node_files.number_of_store(cluster.storage[manifest.node].data)
    if there != registry_copy.store_of(manifest.keys, CLUSTER_NAME, manifest.node):
        raise StrataError(
            f"the registry's keys in the backup are of other pages than it has (store {there:016x}); use another one"
        )


def _lay_out(folder: Path, manifest: ClusterManifest, data: Path, on_bytes: OnBytes) -> None:
    prefix = f"{backup_manifest.NODE}/"
    data.mkdir(parents=True)
    for name in manifest.folders:
        if name.startswith(prefix):
            (data / name.removeprefix(prefix)).mkdir(parents=True, exist_ok=True)
    for name, (_, digest) in manifest.files.items():
        if not name.startswith(prefix):
            raise StrataError(f"{folder / name} has no place in a cluster. Nothing was restored")
        target = data / name.removeprefix(prefix)
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy(folder / name, target, digest, on_bytes)
    for path in (data, *data.rglob("*")):
        if path.is_dir():
            backup_manifest.sync_folder(path)


def _copy(source: Path, target: Path, digest: str, on_bytes: OnBytes) -> None:
    """It was verified a moment ago; what is copied is verified again."""
    seen = hashlib.sha256()
    with source.open("rb", buffering=0) as read, target.open("xb") as written:
        while chunk := read.read(CHUNK):
            seen.update(chunk)
            written.write(chunk)
            on_bytes(len(chunk))
        written.flush()
        os.fsync(written.fileno())
    if seen.hexdigest() != digest:
        raise StrataError(f"{source} has changed while it was restored. Nothing was restored")


def _recover_and_check(cluster: Cluster, manifest: ClusterManifest, keys: dict[str, str]) -> int:
    """How many tables there are."""
    cluster.start_part("etcd")
    registry_copy.write(cluster.settings().etcd_port, keys)
    if isinstance(manifest, SeveralManifest):
        _make_servers(cluster, manifest.servers)
    cluster.start(manifest.profile)
    return check_tables(next(iter(cluster.computes.values())))


def _make_servers(cluster: Cluster, identities: Mapping[str, str]) -> None:
    """Each with the identity of the one it was, so that it has that one's place, and its prepared transactions."""
    for name, server in cluster.computes.items():
        server.create()
        if identities.get(name):
            node_files.write_identity_of_server(server.datadir, identities[name])


def _add_nodes(cluster: Cluster, progress: Progress) -> None:
    while (count := len(cluster.settings().storage)) < len(STORAGE_NODES):
        task: TaskID = progress.add_task(f"storage node {count + 1} of {len(STORAGE_NODES)}", total=None)
        change = node_changes.add(cluster, None, 0, lambda _: None)
        node_changes.wait_whole(cluster, change, WHOLE_S, lambda _: None)
        if not change.caught_up:
            raise StrataError(f"{change.node} did not get everything: {change.note}. Nothing was restored")
        progress.update(task, total=1, completed=1)


def _end(cluster: Cluster, to: Path) -> None:
    if cluster.has_several():
        compute_servers.end_all(cluster, lambda _: None)
    if not cluster.stop():
        raise StrataError(f"what was restored did not end cleanly; see the logs in {cluster.data}. Nothing was restored")
    cluster.forget_place(to)
