"""Backups of clusters, but for the processes: manifests of one writer and of several, and what a restore makes of them."""

import contextlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from strata_cli import backup_manifest, cluster_backup, cluster_restore, node_changes, node_files, registry_copy
from strata_cli.backup_manifest import ClusterManifest, SeveralManifest
from strata_cli.cluster import Cluster, Wishes
from strata_cli.node_files import crc32c
from strata_cli.shell import StrataError

SERVERS = {"compute-1": "00000000000000aa", "reports": ""}
FACTS: dict[str, Any] = {
    "made": "2026-11-27T12:00:00+00:00",
    "mariadb": "10.11",
    "node": "s4",
    "log_end": 7,
    "keys": {"/strata/main/identity": "{}"},
    "memory": ["64M"],
    "memory_backup": False,
    "buffer_pool": "64M",
}


def of_several(**more: Any) -> SeveralManifest:
    return SeveralManifest(**{**FACTS, "profile": "fusion", "servers": SERVERS, **more})


def test_a_manifest_says_whether_several_servers_write(tmp_path: Path) -> None:
    for name, made in (("one", ClusterManifest(**FACTS, profile="lego")), ("several", of_several())):
        folder = tmp_path / name
        folder.mkdir()
        made.write(folder)
        assert backup_manifest.is_of_cluster(folder)
        found = backup_manifest.read_cluster(folder)
        assert found == made and type(found) is type(made)
        with pytest.raises(StrataError, match="is a backup of a cluster"):
            backup_manifest.read(folder)
    # Those that were made before there were others stay as they are.
    assert "servers" not in json.loads((tmp_path / "one" / "manifest.json").read_text())
    text = (tmp_path / "several" / "manifest.json").read_text()
    (tmp_path / "several" / "manifest.json").write_text(text.replace("00aa", "00ab"))
    with pytest.raises(StrataError, match="is damaged"):
        backup_manifest.read_cluster(tmp_path / "several")


def test_a_restored_cluster_has_the_servers_of_the_backup(tmp_path: Path) -> None:
    hidden, to = tmp_path / ".to.restoring", tmp_path / "to"
    hidden.mkdir()
    cluster = cluster_restore._created(of_several(read_only=[next(iter(SERVERS))]), hidden)
    assert list(cluster.storage) == ["s4", "s1", "s2"]
    assert {name: server.data for name, server in cluster.computes.items()} == {
        name: hidden / "computes" / name for name in SERVERS
    }
    assert list(cluster.memory) == ["memory-1"] and cluster.settings().buffer_pool == "64M"
    for server in cluster.computes.values():
        (server.datadir / "mysql").mkdir(parents=True)
        (server.data / "tmp").mkdir()
        server.settings_file.write_text('{"cluster": "hidden"}')
    cluster_restore._make_servers(cluster, SERVERS)
    assert [node_files.identity_of_server(server.datadir) for server in cluster.computes.values()] == list(SERVERS.values())
    cluster.forget_place(to)
    hidden.rename(to)
    restored = Cluster(to)
    for name, server in restored.computes.items():
        assert server.data == to / "computes" / name and server.exists()
        assert server.settings().cluster == "" and not (server.data / "tmp").exists()
        assert node_files.identity_of_server(server.datadir) == SERVERS[name]
    assert restored.settings().read_only == [next(iter(SERVERS))]
    assert str(hidden) not in restored.settings_file.read_text()


def test_of_one_writer_there_is_one_storage_node_at_first(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    cluster = cluster_restore._created(ClusterManifest(**FACTS, profile="lego"), tmp_path / "hidden")
    assert list(cluster.storage) == ["s4"] and list(cluster.computes) == ["compute-1"]


def test_all_storage_nodes_have_the_pages(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    group = {"id": 1, "nodes": ["s1", "s4"], "write_quorum": 2}
    keys = {
        "/strata/main/placement": json.dumps({"format": 1, "generation": 1, "groups": [group]}),
        "/strata/main/streams/00000100/in-sync": json.dumps({"format": 1, "nodes": [{"name": "s4", "store": f"{42:016x}"}]}),
    }
    cluster = cluster_restore._created(of_several(keys=keys), tmp_path / "hidden")
    stamp = "strata storage node\nformat 1\nname s4\nidentity fedcba9876543210\n"
    mark = b"strstore" + struct.pack("<QQ", 42, 7)
    for node in cluster.storage.values():
        (node.data / "written").mkdir(parents=True)
        (node.data / "node.stamp").write_text(f"{stamp}crc32c {crc32c(stamp.encode()):08x}\n")
        (node.data / "written" / "store").write_bytes(mark + struct.pack("<I", crc32c(mark)))
    manifest = of_several(keys=keys)
    found = json.loads(cluster_restore._keys(cluster, manifest)["/strata/main/streams/00000100/in-sync"])
    stores = {name: node_files.number_of_store(node.data) for name, node in cluster.storage.items()}
    assert {one["name"]: int(one["store"], 16) for one in found["nodes"]} == stores
    assert stores["s4"] == 42 and len(set(stores.values())) == 3
    assert [(node.data / "node.stamp").read_text().splitlines()[2] for node in cluster.storage.values()] == [
        "name s4",
        "name s1",
        "name s2",
    ]
    other = {**keys, "/strata/main/streams/00000100/in-sync": keys["/strata/main/streams/00000100/in-sync"].replace("2a", "2b")}
    with pytest.raises(StrataError, match="are of other pages than it has"):
        cluster_restore._keys(cluster, of_several(keys=other))


def test_what_does_not_come_to_a_moment_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path / "cluster")
    cluster.create("fusion", Wishes(memory="64M"))
    tries: list[str] = []

    def stop(_cluster: Cluster, _node: object, _held: object) -> str:
        tries.append("")
        return "s1 did not get all"

    @contextlib.contextmanager
    def holding(_processes: object, _at_most_s: float = 0.0) -> Iterator[None]:
        yield

    node = cluster.storage["s1"]
    monkeypatch.setattr(node, "pid", lambda: 1)
    monkeypatch.setattr(cluster_backup, "holding", holding)
    monkeypatch.setattr(cluster_backup, "_stop_with_servers", stop)
    monkeypatch.setattr(cluster_backup, "AGAIN_S", 0.0)
    monkeypatch.setattr(registry_copy, "read", lambda *_: {})
    monkeypatch.setattr(node_changes, "check_others", lambda *_: None)
    files: Any = None
    with pytest.raises(StrataError, match="s1 did not get all; tried 10 times, and nothing is held any more; to do: try again"):
        cluster_backup._copy_held(cluster, node, files)
    assert len(tries) == cluster_backup.TRIES
