"""Memory nodes of a cluster as ./strata starts, shows and changes them. All nodes are stand-ins (memory_stand_in.py), etcd is
real, and there is no compute node: what pages are worth that lie in a memory node is in test_lego.py."""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from strata_cli import cluster_cmd, memory_changes, paths, status
from strata_cli.cluster import Cluster, Wishes
from strata_cli.memory_node import place_of_pools
from strata_cli.profile_list import BY_NAME
from strata_cli.shell import StrataError

FOLDER = paths.BUILD / "e2e" / "memory-nodes"
DATA = FOLDER / "data"
HERE = Path(__file__).parent
POOLED = "pooled"  # A profile of this test's own.
said: list[str] = []


def made() -> Cluster:
    storage, memory = HERE / "storage_stand_in.py", HERE / "memory_stand_in.py"
    cluster = Cluster(
        DATA,
        program=[sys.executable, storage, FOLDER / "how"],
        memory_program=[sys.executable, memory, FOLDER / "how"],
        say=lambda line: said.append(line),
    )
    cluster.node_stop_timeout_s = 3
    return cluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setitem(BY_NAME, POOLED, replace(BY_NAME["remote-disk"], name=POOLED, memory="kPool"))
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "how").mkdir(parents=True)
    said.clear()
    one = made()
    yield one
    one.kill()
    if one.exists():
        one.wipe()
    shutil.rmtree(FOLDER, ignore_errors=True)


def start(cluster: Cluster, wishes: Wishes | None = None) -> None:
    cluster.start(POOLED, with_compute=False, wishes=wishes)


def names(cluster: Cluster) -> list[str]:
    return [part.name for part in cluster.running()]


def say(_: str) -> None:
    pass


def test_a_life(cluster: Cluster) -> None:
    start(cluster, Wishes(memory_nodes=2, memory="16M"))
    assert names(cluster) == ["etcd", "s1", "s2", "s3", "memory-1", "memory-2"]
    node = cluster.memory["memory-1"]
    assert node.illness() is None and node.pool_bytes() > 0
    assert node.settings.pools.stat().st_mode & 0o777 == 0o700
    options = cluster.compute_settings("compute-1", 1).options
    assert {"--strata-lego-memnode=memory-1,memory-2", "--strata-buffer-pool-size=64M"} <= set(options)
    cluster.disown()
    found = made()
    assert found.kill_part("memory-1") is not None
    start(found, Wishes(memory_nodes=2, memory="16m"))
    assert names(found) == names(cluster)
    # They stop before the storage nodes, to which they write.
    said.clear()
    assert found.stop()
    assert [line.split()[0] for line in said] == ["memory-1", "memory-2", "s1", "s2", "s3", "etcd"]
    # A pool outlives its process, not the cluster's folder.
    assert found.memory["memory-1"].pool_bytes() > 0
    pools = found.memory["memory-1"].settings.pools
    found.wipe()
    assert not DATA.exists() and not pools.exists() and not place_of_pools(DATA).exists()


def test_memory_that_was_lost_with_the_machine_is_there_again_empty(cluster: Cluster) -> None:
    start(cluster)
    cluster.kill_part("memory-1")
    cluster.memory["memory-1"].wipe_pools()
    cluster.start_part("memory-1")
    assert cluster.memory["memory-1"].illness() is None


def test_another_size_than_there_is_asks_for_another_command(cluster: Cluster) -> None:
    cluster.create(POOLED)
    for wishes in (Wishes(memory_nodes=2), Wishes(memory="1G")):
        with pytest.raises(StrataError, match=r"has its memory nodes already \(memory-1 512M\)"):
            cluster.create(POOLED, wishes)
    cluster.create(POOLED, Wishes(memory_nodes=1, memory="512M", buffer_pool="128M", cores=1.0))
    settings = cluster.compute_settings("compute-1", 1)
    assert "--strata-buffer-pool-size=128M" in settings.options and settings.cores == 1.0


def test_a_profile_without_memory_nodes_gets_none(cluster: Cluster) -> None:
    with pytest.raises(StrataError, match="profile 'logdb' has no memory nodes"):
        cluster.create("logdb", Wishes(memory="1G"))
    cluster.create("logdb")
    assert not cluster.memory
    assert not any("lego" in option or "buffer-pool" in option for option in cluster.compute_settings("compute-1", 1).options)


def test_they_are_added_replaced_and_removed(cluster: Cluster) -> None:
    start(cluster, Wishes(memory="16M"))
    with pytest.raises(StrataError, match=r"memory-1 is a memory node that compute uses.*node replace memory-1$"):
        memory_changes.remove(cluster, "memory-1", say)
    assert memory_changes.add(cluster, None, "32M", say).node == "memory-2"
    assert cluster.settings().memory["memory-2"].memory == "32M" and cluster.settings().memory_in_use == ["memory-1"]
    change = memory_changes.replace(cluster, "memory-1", "memory-2", None, say)
    assert (change.node, change.replaced, change.in_use, change.gap_s) == ("memory-2", "memory-1", ["memory-2"], None)
    assert names(cluster) == ["etcd", "s1", "s2", "s3", "memory-2"]
    assert not (DATA / "memory" / "memory-1").exists()
    memory_changes.add(cluster, "spare", "16M", say)
    memory_changes.remove(cluster, "spare", say)
    assert list(cluster.memory) == ["memory-2"]
    # A lost one, whose size the next one has.
    cluster.kill_part("memory-2")
    assert memory_changes.replace(cluster, "memory-2", None, None, say).node == "memory-1"
    assert cluster.settings().memory["memory-1"].memory == "32M"


def test_with_a_backup_memory_nodes_go_in_pairs(cluster: Cluster) -> None:
    with pytest.raises(StrataError, match="go in pairs"):
        cluster.create(POOLED, Wishes(memory_nodes=3, memory="16M", memory_backup=True))
    cluster.create(POOLED, Wishes(memory="16M", memory_backup=True))
    assert list(cluster.memory) == ["memory-1", "memory-2"]
    options = cluster.compute_settings("compute-1", 1).options
    assert {"--strata-lego-memnode=memory-1,memory-2", "--strata-lego-backup=ON"} <= set(options)
    cluster.create(POOLED)  # as it is
    assert cluster.settings().memory_backup


def test_one_of_several_is_replaced_in_its_place(cluster: Cluster) -> None:
    start(cluster, Wishes(memory_nodes=2, memory="16M"))
    with pytest.raises(StrataError, match="compute uses memory-2 already"):
        memory_changes.replace(cluster, "memory-1", "memory-2", None, say)
    assert names(cluster) == ["etcd", "s1", "s2", "s3", "memory-1", "memory-2"]
    assert memory_changes.replace(cluster, "memory-1", None, None, say).in_use == ["memory-3", "memory-2"]
    with pytest.raises(StrataError, match=r"memory-2 is a memory node that compute uses.*node replace memory-2$"):
        memory_changes.remove(cluster, "memory-2", say)


def test_one_that_cannot_start_is_no_part_of_the_cluster(cluster: Cluster) -> None:
    start(cluster)
    (FOLDER / "how" / "memory-2").write_text("exit 1")
    for add in (True, False):
        with pytest.raises(StrataError, match="memory-2 ended while starting"):
            if add:
                memory_changes.add(cluster, None, "16M", say)
            else:
                memory_changes.replace(cluster, "memory-1", None, None, say)
        assert list(made().memory) == ["memory-1"] and cluster.memory["memory-1"].pid() is not None
    for taken in ("s1", "etcd", "compute-1", "memory-1"):
        with pytest.raises(StrataError, match=f"{taken} is another process"):
            memory_changes.add(cluster, taken, "16M", say)


def test_status_says_what_they_hold_and_which_one_is_needed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    start(cluster, Wishes(memory="16M"))
    memory_changes.add(cluster, None, "16M", say)
    cluster.kill_part("memory-2")
    cluster.disown()
    status.status(DATA, True)
    told = {process["name"]: process for process in json.loads(capsys.readouterr().out)["processes"]}
    assert told["memory-1"]["pools"] == {
        **{"memory": "16M", "slots": 1000, "used": 900, "dirty": 30, "tier1_lsn": 5000},
        **{"hit_ratio": None, "tier2_lsn": None},
    }
    assert told["memory-1"]["healthy"] and told["memory-1"]["needed"]
    assert not told["memory-2"]["needed"] and told["memory-2"]["reason"].endswith("./strata node start memory-2")
    cluster_cmd.node_kill(DATA, "memory-1")
    status.status(DATA, False)
    shown = capsys.readouterr().out
    assert "memory-1: not well: not running; to do: ./strata node start memory-1" in shown
    assert "hit ratio" in shown
