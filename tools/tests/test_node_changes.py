import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from strata_cli import placement
from strata_cli.node_changes import LogState, log_state, progress
from strata_cli.placement import Placement
from strata_cli.several_logs import AUTHORITY, OneLog, lacking, logs_of, targets, troubles
from strata_cli.shell import StrataError
from strata_cli.storage_node import Joining


class Node:
    """What node_changes asks of a storage node."""

    name = "s4"
    log = "log"

    def __init__(self, streams: Any, ill: str | None = None, pid: int | None = 1, values: Any = None) -> None:
        self._streams, self._ill, self._pid, self._values = streams, ill, pid, values

    def status(self) -> dict[str, Any]:
        return {} if self._streams is None else {"streams": self._streams, "values": self._values}

    def illness(self) -> str | None:
        return self._ill

    def pid(self) -> int | None:
        return self._pid

    def log_tail(self) -> str:
        return "its last words"


def stream(voting: bool = True, **lsns: int) -> dict[str, Any]:
    return {"stream": 1, "voting": voting, "log_end": 4096, "quorum_durable": 4096, "scanned": 4096, **lsns}


def test_the_log_of_a_node() -> None:
    assert log_state(Node(None)) is None  # type: ignore[arg-type]
    assert log_state(Node([])) is None  # type: ignore[arg-type]
    assert log_state(Node([stream(), stream(voting=False)])) == LogState(False, 8192, 8192, 8192)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "words", "whole"),
    [
        (Node(None), "waits for the writer", False),
        (Node(None, ill="copying pages: 1 of 2"), "copying pages: 1 of 2", False),
        (Node([stream(voting=False)]), "log 4 of 8 KiB; does not vote yet", False),
        (Node([stream()], ill="the disk is full"), "log 4 of 8 KiB; the disk is full", False),
        (Node([stream(log_end=9000)]), "log 8 of 8 KiB; votes; 4 KiB of it not looked at yet", False),
        (Node([stream(log_end=9000, scanned=8192)]), "log 8 of 8 KiB; votes; whole", True),
    ],
)
def test_progress(node: Node, words: str, whole: bool) -> None:
    assert progress(node, 8192) == (words, whole)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "in_sync", "words", "whole"),
    [
        (Node([stream(voting=False)]), {"s2": 5}, "log 4 of 8 KiB; does not vote yet", False),
        (Node([stream(log_end=9000)]), {"s2": 5}, "log 8 of 8 KiB; votes; 0 pages copied", False),
        (
            Node([stream(log_end=9000)], values={"copy_pages_seen": "7"}),
            {"s2": 5},
            "log 8 of 8 KiB; votes; 7 pages copied",
            False,
        ),
        (Node([stream()], values={"page_store": 6}), {"s4": 6}, "log 4 of 8 KiB; votes; 0 pages copied", False),
        (Node([stream(log_end=9000)], values={"page_store": "6"}), {"s4": 6}, "log 8 of 8 KiB; votes; whole", True),
        (Node([stream(log_end=9000)], values={"page_store": 7}), {"s4": 6}, "log 8 of 8 KiB; votes; 0 pages copied", False),
    ],
)
def test_progress_where_compute_writes_the_pages(node: Node, in_sync: dict[str, int], words: str, whole: bool) -> None:
    assert progress(node, 8192, in_sync) == (words, whole)  # type: ignore[arg-type]


def test_one_that_ended_says_its_last_words() -> None:
    with pytest.raises(StrataError, match=r"s4 ended(.|\n)*its last words"):
        progress(Node(None, ill="not running", pid=None), 0)  # type: ignore[arg-type]


def test_how_a_node_joins() -> None:
    assert Joining("s1", 0).flags() == ["--replaces", "s1"]
    assert Joining("", 0).flags() == ["--join"]
    assert Joining("", 3).flags() == ["--join", "--write-quorum", "3"]


@contextmanager
def etcd_that_says(answer: bytes, key: str = "placement") -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert base64.b64decode(asked["key"]).decode() == f"/strata/main/{key}"
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def holding(record: Any) -> bytes:
    value = base64.b64encode(json.dumps(record).encode()).decode()
    return json.dumps({"header": {}, "kvs": [{"key": "x", "value": value}]}).encode()


def test_the_placement_is_read() -> None:
    group = {"id": 1, "nodes": ["s4", "s2"], "joined": [2, 0], "write_quorum": 2}
    with etcd_that_says(holding({"format": 1, "generation": 2, "groups": [group]})) as port:
        assert placement.read(port, "main") == Placement(2, ("s4", "s2"), 2)
    with etcd_that_says(b'{"header": {}}') as port:
        assert placement.read(port, "main") is None


def test_who_has_every_page_is_read() -> None:
    key = "streams/00000001/in-sync"
    nodes = [{"name": name, "store": "000000000000002a"} for name in ("s1", "s4")]
    with etcd_that_says(holding({"format": 1, "nodes": nodes}), key) as port:
        assert placement.read_in_sync(port, "main") == {"s1": 42, "s4": 42}
    with etcd_that_says(b'{"header": {}}', key) as port:
        assert placement.read_in_sync(port, "main") is None
    with etcd_that_says(holding({"format": 1, "nodes": 7}), key) as port, pytest.raises(StrataError, match="in sync"):
        placement.read_in_sync(port, "main")


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"kvs": 7}', holding({"format": 2}), holding({"format": 1, "generation": 1})])
def test_a_placement_that_cannot_be_read(answer: bytes) -> None:
    with etcd_that_says(answer) as port, pytest.raises(StrataError, match="cannot be read"):
        placement.read(port, "main")


def test_a_registry_that_is_away() -> None:
    with etcd_that_says(b"{}") as port:
        pass
    with pytest.raises(StrataError, match="etcd does not answer"):
        placement.read(port, "main")


# --- the logs of several servers ---

WHOLE = OneLog(True, 4096, 4096, 4096)
EMPTY = OneLog(False, 0, 0, 0)
LAG = 1 << 20


def test_the_logs_of_a_node() -> None:
    node: Any = Node([stream(), {**stream(voting=False, log_end=0, quorum_durable=0, scanned=0), "stream": 3}])
    assert logs_of(node) == {1: WHOLE, 3: EMPTY}
    nothing: Any = Node(None)
    assert logs_of(nothing) == {}


def test_others_that_are_well_have_every_log_and_vote_in_it() -> None:
    assert troubles({"s2": {1: WHOLE, AUTHORITY: WHOLE}, "s3": {1: WHOLE, AUTHORITY: WHOLE}}, [1, AUTHORITY], LAG) == []
    assert troubles({"s2": {}, "s3": {}}, [], LAG) == []
    # Of a log that only another node knows, or only the registry.
    assert troubles({"s2": {1: WHOLE}, "s3": {}}, [], LAG) == ["s3 has nothing yet of the log of server 1"]
    assert troubles({"s2": {}}, [AUTHORITY], LAG) == ["s2 has nothing yet of the memory node's log"]
    (said,) = troubles({"s2": {1: WHOLE, 4: WHOLE}, "s3": {1: WHOLE, 4: EMPTY}}, [1, 4], LAG)
    assert said.startswith("s3 is still catching up and does not vote in the log of server 4 (its server, or the memory node")
    far = OneLog(True, 9 << 20, 9 << 20, 0)
    assert troubles({"s2": {1: far}, "s3": {1: WHOLE}}, [1], LAG) == ["s3 is 8 MiB of the log of server 1 behind"]


def test_what_a_new_node_lacks() -> None:
    wanted = targets([{1: WHOLE, AUTHORITY: OneLog(True, 512, 512, 0)}, {1: OneLog(True, 9000, 8192, 0)}], [1, 3, AUTHORITY])
    assert wanted == {1: 8192, 3: 0, AUTHORITY: 512}
    assert lacking({}, wanted, True) == (
        "logs 0 of 8 KiB; does not vote yet in the log of server 1, the log of server 3, the memory node's log"
    )
    authority = OneLog(True, 600, 600, 0)
    # An empty log counts, too: somebody may come to write it.
    some = {1: OneLog(True, 9000, 9000, 0), 3: EMPTY, AUTHORITY: authority}
    assert lacking(some, wanted, False) == "logs 8 of 8 KiB; does not vote yet in the log of server 3"
    voting = {**some, 3: OneLog(True, 0, 0, 0)}
    assert lacking(voting, wanted, False) == ""
    assert lacking(voting, wanted, True) == "votes in 3 logs; 8 KiB of them not looked at yet"
    assert lacking({**voting, 1: OneLog(True, 9000, 9000, 8192)}, wanted, True) == ""


def test_which_logs_there_are_is_read() -> None:
    names = ["00000001/epoch", "00000001/control", "00000100/epoch", "00000100/in-sync"]
    keys = [{"key": base64.b64encode(f"/strata/main/streams/{name}".encode()).decode()} for name in names]
    with etcd_that_says(json.dumps({"kvs": keys}).encode(), "streams/") as port:
        assert placement.read_streams(port, "main") == [1, AUTHORITY]
    with etcd_that_says(b"{}", "streams/") as port:
        assert placement.read_streams(port, "main") == []
