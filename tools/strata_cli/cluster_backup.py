"""`./strata backup` of a cluster: the data folder of one storage node as kill -9 would have left it, and the registry's keys.

copy the node's folder                                                   the cluster works
stop the node (SIGSTOP), copy what has changed since, read the registry  the others go on; compute is not asked anything
let it go on, checksums of every file, manifest.json                     the node catches up

Storage nodes hold all of a database, each by itself: log and pages. So what one has, once its log reaches as far as any other's
did when the backup began, is the database as a crash of everything would have left it (docs/adr/).

Where several servers write there are several logs, and the node is stopped when it has all of each (several_moment.py). The
servers are stopped before it, and go on as soon as it is stopped.
"""

import contextlib
import datetime
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from . import backup_manifest, mariadb_packages, node_changes, node_files, paths, registry_copy
from .backup_manifest import ClusterManifest, SeveralManifest
from .changing_files import ChangingFiles
from .cluster import CLUSTER_NAME, Cluster
from .held_processes import STOP_S, STOPPED, Holding, holding
from .several_health import well
from .several_moment import Moment
from .shell import StrataError, console, errors
from .storage_node import StorageNode
from .waiting import wait_until

CATCH_UP_S = 60.0
MEMORY_WELL_S = 5.0
DRAIN_S = 0.2  # For writes that the kernel has and the node has not seen the end of.
TRIES = 10
AGAIN_S = 0.5
# Servers lose their leases of 2 s when they cannot renew them: they are let go before, whatever is under way.
SERVERS_HELD_S = 1.0
SERVERS_STOP_S = 0.4  # For their threads to stop.
ARRIVE_S = 0.5  # For what is on its way to the node.


@dataclass
class _Copied:
    log_end: int  # of all that the node had of the log
    keys: dict[str, str]  # of the registry
    node_held_s: float
    servers_held_s: float | None = None  # Where several write.
    tries: int = 1  # This was the last one.


def backup(cluster: Cluster, to: Path, as_json: bool) -> None:
    started = time.monotonic()
    to = to.resolve()
    if to.exists():
        raise StrataError(f"{to} is there already; name a folder that is not")
    node, log_end = _choose(cluster)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.mkdir()
    try:
        columns = (TextColumn("  {task.description:24}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=errors, disable=as_json or not errors.is_terminal) as progress:
            manifest, copied = _make(cluster, node, log_end, to, progress)
    except OSError as error:
        shutil.rmtree(to, ignore_errors=True)
        raise StrataError(f"the backup failed: {error}") from None
    except BaseException:
        shutil.rmtree(to, ignore_errors=True)
        raise
    made = {
        "folder": str(to),
        "bytes": manifest.bytes(),
        "files": len(manifest.files),
        "profile": manifest.profile,
        "node": node.name,
        "log_end": manifest.log_end,
        "node_held_s": round(copied.node_held_s, 3),
        "tries": copied.tries,
        "seconds": round(time.monotonic() - started, 3),
    }
    if copied.servers_held_s is not None:
        made |= {"servers": _names_of_servers(manifest), "servers_held_s": round(copied.servers_held_s, 3)}
    if as_json:
        print(json.dumps(made))
        return
    console.print(
        f"backed up {node.name} into {paths.relative(to)}: {manifest.bytes() / 1e6:.1f} MB, {len(manifest.files)} files",
        markup=False,
    )
    console.print(f"  {node.name} was held for {copied.node_held_s * 1000:.0f} ms; the others went on", markup=False)
    if copied.servers_held_s is not None:
        console.print(f"  before that all servers, for {copied.servers_held_s * 1000:.0f} ms", markup=False)
    console.print(f"  ./strata restore {paths.relative(to)} --to <folder>", markup=False)


def _names_of_servers(manifest: ClusterManifest) -> list[str]:
    return list(manifest.servers) if isinstance(manifest, SeveralManifest) else []


def _choose(cluster: Cluster) -> tuple[StorageNode, int]:
    """The storage node that is furthest, and how far the log is that clients have been answered for."""
    found = node_changes.current(cluster)
    node_changes.check_others(cluster, list(found.nodes))
    if cluster.has_several():
        _check_memory_node(cluster)
    if len(found.nodes) - 1 < found.write_quorum:
        raise StrataError(
            f"there are {len(found.nodes)} storage nodes and every commit needs {found.write_quorum}: none can be held for a"
            " moment; ./strata node add adds one"
        )
    states = {name: node_changes.log_state(cluster.storage[name]) for name in found.nodes}
    known = {name: state for name, state in states.items() if state is not None}
    if not known:
        raise StrataError("the storage nodes have no log yet: there is nothing to back up")
    furthest = max(known, key=lambda name: known[name].end)
    return cluster.storage[furthest], max(state.durable for state in known.values())


def _check_memory_node(cluster: Cluster) -> None:
    """One that has just begun redoes logs, and changes where they end and begin."""
    for node in cluster.memory.values():
        if not wait_until(well(node), MEMORY_WELL_S):
            raise StrataError(f"{node.name} is not well: {node.illness()}; to do: wait until it is, or ./strata up")


def _make(cluster: Cluster, node: StorageNode, log_end: int, to: Path, progress: Progress) -> tuple[ClusterManifest, _Copied]:
    place = to / backup_manifest.NODE
    place.mkdir()
    files = ChangingFiles(node.data, place)
    task = progress.add_task(f"files of {node.name}", total=None)
    files.copy(writers_held=False)
    wait_until(lambda: _end_of_log(node) >= log_end, CATCH_UP_S)
    copied = _copy_held(cluster, node, files)
    if copied.log_end < log_end:
        raise StrataError(f"{node.name} has not come as far as the others in {CATCH_UP_S:g} s; see ./strata status")
    progress.update(task, total=1, completed=1)
    manifest = _manifest(cluster, node, copied)
    total = sum(path.stat().st_size for path in backup_manifest.files_in(to))
    task = progress.add_task("checksums", total=total)
    manifest.files, manifest.folders = backup_manifest.describe_files(to, lambda count: progress.advance(task, count))
    manifest.write(to)
    backup_manifest.sync_folder(to.parent)
    return manifest, copied


def _manifest(cluster: Cluster, node: StorageNode, copied: _Copied) -> ClusterManifest:
    """But for the files."""
    settings = cluster.settings()
    facts: dict[str, Any] = {
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "mariadb": mariadb_packages.version(),
        "profile": settings.profile,
        "node": node.name,
        "log_end": copied.log_end,
        "keys": copied.keys,
        "memory": [settings.memory[name].memory for name in settings.memory_in_use],
        "memory_backup": settings.memory_backup,
        "buffer_pool": settings.buffer_pool,
    }
    if not cluster.has_several():
        return ClusterManifest(**facts)
    servers = {name: node_files.identity_of_server(server.datadir) for name, server in cluster.computes.items()}
    return SeveralManifest(**facts, servers=servers, read_only=settings.read_only)


def _copy_held(cluster: Cluster, node: StorageNode, files: ChangingFiles) -> _Copied:
    why = ""
    for tries in range(1, TRIES + 1):
        outcome = _try_to_copy(cluster, node, files)
        if isinstance(outcome, _Copied):
            outcome.tries = tries
            return outcome
        why = outcome
        time.sleep(AGAIN_S)
        node_changes.check_others(cluster, list(cluster.storage))  # Says whether one of them is the reason.
    raise StrataError(f"{why}; tried {TRIES} times, and nothing is held any more; to do: try again when less is written")


def _try_to_copy(cluster: Cluster, node: StorageNode, files: ChangingFiles) -> _Copied | str:
    """Else why it could not be done at this moment."""
    before = registry_copy.read(cluster.settings().etcd_port, CLUSTER_NAME)
    with holding({node.name: _pid(node)}) as held_node:
        stopped = _stop_with_servers(cluster, node, held_node) if cluster.has_several() else _stop(cluster, node, held_node)
        if isinstance(stopped, str):
            return stopped
        # Else the node may have dropped log below a checkpoint that we know nothing of, or lack pages that it counts on.
        if registry_copy.checkpoints(stopped.keys, CLUSTER_NAME) != registry_copy.checkpoints(before, CLUSTER_NAME):
            return f"checkpoints come so fast that {node.name} could not be held between two of them"
        registry_copy.alone(stopped.keys, CLUSTER_NAME, node.name)  # So that a restore will not refuse them.
        time.sleep(DRAIN_S)
        files.copy(writers_held=True)
        _check_still_held(node, held_node)
        stopped.node_held_s = held_node.held_s()
        return stopped


def _stop(cluster: Cluster, node: StorageNode, held: Holding) -> _Copied:
    end = _end_of_log(node)
    _hold(node, held)
    return _Copied(end, registry_copy.read(cluster.settings().etcd_port, CLUSTER_NAME), 0.0)


def _stop_with_servers(cluster: Cluster, node: StorageNode, held: Holding) -> _Copied | str:
    """The node, at a moment in which it has all that any server has logged (several_moment.py). The servers go on."""
    pids = {name: server.pid() for name, server in cluster.computes.items()}
    with holding({name: pid for name, pid in pids.items() if pid is not None}, SERVERS_HELD_S) as servers:
        if not servers.stop(SERVERS_STOP_S):
            return f"the servers could not be held within {SERVERS_STOP_S:g} s"
        moment = Moment(cluster, node)
        if not moment.reached(ARRIVE_S):
            return f"{moment.why}, while the servers were held for {servers.held_s():.2f} s"
        _hold(node, held)
        keys = registry_copy.read(cluster.settings().etcd_port, CLUSTER_NAME)
        if not moment.lasts():
            return moment.why
        new = any(server.pid() not in (None, pids[name]) for name, server in cluster.computes.items())
        if new or not servers.are_held():
            return f"the servers went on before {node.name} was held; they are let go after {SERVERS_HELD_S:g} s"
        servers.go_on()
        return _Copied(moment.log_end(), keys, 0.0, servers.held_s())


def _end_of_log(node: StorageNode) -> int:
    state = node_changes.log_state(node)
    return state.end if state is not None else 0


@contextlib.contextmanager
def held(node: StorageNode) -> Iterator[None]:
    """Its process does nothing meanwhile. It goes on afterwards, also when this one is killed."""
    with holding({node.name: _pid(node)}) as held_node:
        _hold(node, held_node)
        time.sleep(DRAIN_S)
        yield
        _check_still_held(node, held_node)


def _pid(node: StorageNode) -> int:
    pid = node.pid()
    if pid is None:
        raise StrataError(f"{node.name} does not run any more; see {node.log}")
    return pid


def _hold(node: StorageNode, held: Holding) -> None:
    if not held.stop():
        raise StrataError(f"{node.name} (pid {_pid(node)}) could not be held within {STOP_S:g} s")
    _pid(node)


def _check_still_held(node: StorageNode, held: Holding) -> None:
    if set(held.states().values()) != {STOPPED} or not held.are_held():
        raise StrataError(f"{node.name} ended, or somebody let it go on, while its files were copied")
