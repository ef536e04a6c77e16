from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from strata_cli.server import Server
from strata_cli.status import (
    DEGRADED,
    NOTHING_RUNS,
    RUNNING,
    Process,
    complaints,
    compute_process,
    read_storage_status,
    size,
    state_of,
    table,
)

ETCD = Process("registry", "etcd", 1, "127.0.0.1:1", True)
NODE = Process("storage", "s1", 2, "127.0.0.1:2", True)
SPARE = Process("compute", "compute-2", None, "127.0.0.1:3", False, "not running", needed=False)


def test_the_state_of_the_whole() -> None:
    stopped = replace(NODE, pid=None, healthy=False)
    assert state_of([ETCD, NODE]) == RUNNING
    assert state_of([ETCD, NODE, SPARE]) == RUNNING
    assert state_of([ETCD, stopped]) == DEGRADED
    assert state_of([ETCD, replace(NODE, healthy=False)]) == DEGRADED
    assert state_of([replace(ETCD, pid=None, healthy=False), stopped, SPARE]) == NOTHING_RUNS


def test_a_nodes_status_with_several_streams() -> None:
    process = replace(NODE)
    streams = [
        {"stream": 1, "last_epoch": 4, "log_end": 1000, "quorum_durable": 900},
        {"stream": 2, "last_epoch": 7, "log_end": "18446744073709551615", "quorum_durable": "18446744073709551610"},
        {"stream": 3, "last_epoch": None},
        "not a stream",
    ]
    read_storage_status(process, {"streams": streams, "values": {"replay_backlog_bytes": 12, "version_store_bytes": "34"}})
    assert (process.epoch, process.log_end, process.lag_bytes) == (7, 2**64 - 1, 105)
    assert (process.backlog_bytes, process.version_store_bytes) == (12, 34)


def test_a_node_that_says_nothing_of_use() -> None:
    answers: list[dict[str, Any]] = [
        {},
        {"streams": None},
        {"streams": 3, "values": {"replay_backlog_bytes": "many"}},
        {"streams": [{}], "values": []},
    ]
    for said in answers:
        process = replace(NODE)
        read_storage_status(process, said)
        assert (process.epoch, process.log_end, process.lag_bytes, process.backlog_bytes) == (None, None, None, None)


def test_a_compute_node_says_whether_the_database_is_its_own() -> None:
    server = Server(Path("/nowhere/data"))
    facts: dict[str, Any] = {"pid": 7, "port": 1, "plugin": "ha_strata.so", "strata": "active"}

    def seen(**variables: str) -> Process:
        return compute_process("compute-1", server, {**facts, "variables": {f"Strata_{k}": v for k, v in variables.items()}})

    own = seen(cluster_epoch="5", cluster_holds_lease="1", cluster_fenced="0", log_lsn="30", log_durable_lsn="20")
    assert own.healthy and (own.epoch, own.log_end, own.lag_bytes) == (5, 30, 10)
    lost = seen(cluster_epoch="5", trouble="stream 1 was taken over by b; to do: stop it")
    assert not lost.healthy and lost.reason == "stream 1 was taken over by b; to do: stop it"
    assert complaints([lost]) == ["compute-1: not well: stream 1 was taken over by b; to do: stop it"]
    assert seen(trouble="").healthy
    alone = seen(lego_attached="0")
    assert not alone.healthy and alone.reason.endswith("to do: start its memory node") and seen(lego_attached="1").healthy
    without = compute_process("compute-1", server, {**facts, "strata": "not loaded"})
    assert not without.healthy and without.reason.startswith("STRATA is not loaded")


def test_sizes() -> None:
    assert [size(n) for n in (None, 0, 1023, 1024, 1 << 20, 3 << 39)] == ["-", "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 TiB"]


def test_the_table_and_what_is_said_below_it() -> None:
    out = StringIO()
    ill = replace(NODE, healthy=False, reason="no answer [Errno 111]", log_end=123, lag_bytes=2048)
    processes = [ETCD, ill, SPARE]
    Console(file=out, width=150).print(table(processes))
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines() if "│" in line]
    assert [line[1] for line in lines] == ["etcd", "s1", "compute-2"]
    assert lines[1] == ["storage", "s1", "2", "127.0.0.1:2", "-", "123", "2.0 KiB", "-", "-", "not well"]
    assert lines[0][-1] == "ok" and lines[2][2] == "-" and lines[2][-1] == "stopped"
    assert complaints(processes) == ["s1: not well: no answer [Errno 111]"]
