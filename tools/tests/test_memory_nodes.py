"""Sizes and places of memory nodes, and what the status makes of what they and the server say."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from strata_cli.memory_node import bytes_of, choose_pools, memory_of
from strata_cli.shell import StrataError
from strata_cli.status import Pools, Process, memory_table, read_memory_status, read_tiers


def test_sizes() -> None:
    assert [bytes_of(text) for text in ("4096", "64k", " 512M", "2G", "1T")] == [4096, 1 << 16, 1 << 29, 1 << 31, 1 << 40]
    for text in ("", "M", "1.5G", "-1M", "12X"):
        with pytest.raises(StrataError, match="is no size"):
            bytes_of(text)
    assert memory_of("512m") == "512M"
    with pytest.raises(StrataError, match="8M at least, not 4M"):
        memory_of("4M")


def test_pools_are_on_tmpfs_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, tmpfs = tmp_path / "data", tmp_path / "shm"
    beside = data / "memory" / "memory-1" / "pools"
    assert choose_pools(data, "memory-1", "8M", tmpfs) == beside  # It is not there.
    tmpfs.mkdir()
    usage = shutil.disk_usage(tmpfs)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100 << 20))
    there = choose_pools(data, "memory-1", "64M", tmpfs)
    assert there.parent.parent == tmpfs and there.name == "memory-1"
    assert choose_pools(data, "memory-1", "64M", tmpfs, taken=64 << 20) == beside
    assert choose_pools(data, "memory-1", "100M", tmpfs) == beside
    assert choose_pools(tmp_path / "other", "memory-1", "64M", tmpfs) != there


def test_what_it_holds() -> None:
    pools = Pools("64M")
    one = {"checkpoint_lsn": 70, "slots": {"all": 10, "free": 2, "clean": "6", "dirty": 1, "written": 1}}
    read_memory_status(pools, {"pools": [one, {"slots": {"all": 5}}, "none", {"slots": 3}]})
    assert (pools.slots, pools.used, pools.dirty, pools.tier1_lsn) == (15, 8, 2, 70)
    answers: list[dict[str, Any]] = [{}, {"pools": None}, {"pools": [{"slots": {"all": "many"}}]}]
    for said in answers:
        read_memory_status(pools, said)
        assert (pools.slots, pools.used, pools.dirty, pools.tier1_lsn) == (None, None, None, None)


def test_how_compute_fares_with_it() -> None:
    pools = Pools("64M", slots=10, tier1_lsn=70)
    read_tiers(pools, {})
    assert pools == Pools("64M", slots=10, tier1_lsn=70)
    counted = {"lego_remote_hits": 90, "lego_storage_reads": 10, "lego_pool_slots": 11, "lego_pool_dirty": 3}
    counted |= {"log_memory_checkpoint_lsn": 80, "log_checkpoint_lsn": 40}
    read_tiers(pools, {f"Strata_{name}": str(value) for name, value in counted.items()})
    assert (pools.hit_ratio, pools.tier1_lsn, pools.tier2_lsn, pools.slots, pools.dirty) == (0.9, 80, 40, 10, 3)
    read_tiers(none := Pools("64M"), {"Strata_lego_remote_hits": "0", "Strata_lego_storage_reads": "0"})
    assert none.hit_ratio is None


def test_they_have_a_table_of_their_own() -> None:
    memory = Process("memory", "memory-1", 3, "127.0.0.1:3", True, pools=Pools("64M", 10, 8, 2, 0.905, 80, 40))
    shown = memory_table([Process("registry", "etcd", 1, "127.0.0.1:1", True), memory])
    assert shown.row_count == 1
    cells = [next(iter(column.cells)) for column in shown.columns]
    assert cells == ["memory-1", "64M", "10", "8", "2", "90.5%", "80", "40"]
