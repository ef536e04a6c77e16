from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console
from strata_cli.status import DEGRADED, NOTHING_RUNS, RUNNING, Process, read_storage_status, size, state_of, table

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
        {"stream": 1, "epoch": 4, "log_end": 1000, "quorum_durable": 900},
        {"stream": 2, "epoch": 7, "log_end": "18446744073709551615", "quorum_durable": "18446744073709551610"},
        {"stream": 3, "epoch": None},
        "not a stream",
    ]
    read_storage_status(process, {"streams": streams, "backlog_bytes": 12, "version_store_bytes": "34"})
    assert (process.epoch, process.log_end, process.lag_bytes) == (7, 2**64 - 1, 105)
    assert (process.backlog_bytes, process.version_store_bytes) == (12, 34)


def test_a_node_that_says_nothing_of_use() -> None:
    answers: list[dict[str, Any]] = [{}, {"streams": None}, {"streams": 3, "backlog_bytes": "many"}, {"streams": [{}]}]
    for said in answers:
        process = replace(NODE)
        read_storage_status(process, said)
        assert (process.epoch, process.log_end, process.lag_bytes, process.backlog_bytes) == (None, None, None, None)


def test_sizes() -> None:
    assert [size(n) for n in (None, 0, 1023, 1024, 1 << 20, 3 << 39)] == ["-", "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 TiB"]


def test_the_table_shows_reasons_as_they_are() -> None:
    out = StringIO()
    ill = replace(NODE, healthy=False, reason="no answer [Errno 111]", log_end=123, lag_bytes=2048)
    Console(file=out, width=150).print(table([ETCD, ill, SPARE]))
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.getvalue().splitlines() if "│" in line]
    assert [line[1] for line in lines] == ["etcd", "s1", "compute-2"]
    assert lines[1] == ["storage", "s1", "2", "127.0.0.1:2", "-", "123", "2.0 KiB", "-", "-", "no answer [Errno 111]"]
    assert lines[0][-1] == "ok" and lines[2][2] == "-"
