"""A moment in which one storage node has everything that several servers have logged.

Each server has a log stream, and a page goes from one server to the next once the first one's log is durable on a majority of
the storage nodes. So one node's logs, as they happen to be, may have a change of the second server and not the one of the first
that it follows: no state that ever was. While all servers are held nothing is added to the logs but what is on its way, and when
a node then has of each stream what any node has, it has everything that any of its changes follows.

The memory node is not held: it writes pages, whose log is durable, and the authority stream, of which the node needs what was
there when the servers stopped: who was a member by then, and how far timestamps had been given out.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import placement
from .cluster import Cluster
from .storage_node import StorageNode

LOOK_S = 0.005
QUIET_S = 0.2  # When nothing arrives any more: what is missing is still with a server.
AUTHORITY = int(placement.AUTHORITY_STREAM, 16)
SPACES = "written/pages/space-*.pages"  # docs/data_formats.md


@dataclass(frozen=True, order=True)
class End:
    """Of a stream on a node. A later epoch may have cut off what an earlier one had: those who come later go on from there."""

    epoch: int
    lsn: int


Ends = Mapping[int, End]


def ends_of(node: StorageNode, timeout_s: float = 1.0) -> dict[int, End]:
    """By stream; empty: it says nothing."""
    streams = [stream for stream in node.status(timeout_s).get("streams", []) if isinstance(stream, dict)]
    return {int(one["stream"]): End(int(one.get("last_epoch", 0)), int(one.get("log_end", 0))) for one in streams}


def furthest(of_nodes: Iterable[Ends]) -> dict[int, End]:
    found: dict[int, End] = {}
    for ends in of_nodes:
        for stream, end in ends.items():
            found[stream] = max(end, found.get(stream, end))
    return found


def lacking(own: Ends, wanted: Ends) -> list[int]:
    """The streams of which `own` has not all that is wanted."""
    return [stream for stream, end in wanted.items() if own.get(stream, End(0, 0)) < end]


class Moment:
    """One try, which begins when all servers are held."""

    def __init__(self, cluster: Cluster, node: StorageNode) -> None:
        self._node = node
        self._others = [other for other in cluster.storage.values() if other is not node]
        self._write_quorum = cluster.settings().write_quorum()
        self._own: Ends = {}
        self._authority: End | None = None
        self._spaces: set[str] = set()
        self.why = ""  # It is none.

    def reached(self, timeout_s: float) -> bool:
        """Whether the node comes to have everything, of what is on its way to it."""
        deadline = time.monotonic() + timeout_s
        seen: object = None
        changed = time.monotonic()
        while not self._has_all(self._look()):
            now = time.monotonic()
            if (here := (self._streams_of_servers(self._own), self._spaces)) != seen:
                seen, changed = here, now
            if now > deadline or now - changed > QUIET_S:
                return False
            time.sleep(LOOK_S)
        return True

    def lasts(self) -> bool:
        """Once the node is held, too: nobody has got more meanwhile. Servers must still be held."""
        others = self._ends(self._others)
        if not all(others):
            self.why = "a storage node does not answer"
        elif more := lacking(self._own, self._streams_of_servers(furthest(others))):
            self.why = f"{self._node.name} was behind in {_named(more)} again"
        return not self.why

    def log_end(self) -> int:
        """Of all streams together, as node_changes.log_state() has it."""
        return sum(end.lsn for end in self._own.values())

    def _look(self) -> list[Ends]:
        own, *others = self._ends([self._node, *self._others])
        self._own = own
        return others

    def _has_all(self, others: list[Ends]) -> bool:
        if not self._own or not all(others):
            self.why = "a storage node does not answer"
            return False
        wanted = furthest([self._own, *others])
        # The memory node goes on writing there: what counts is what was there when servers were held.
        self._authority = self._authority or wanted.get(AUTHORITY)
        if self._authority is not None:
            wanted[AUTHORITY] = self._authority
        if behind := lacking(self._own, wanted):
            self.why = f"{self._node.name} did not get all that other storage nodes have of {_named(behind)}"
            return False
        if missing := self._missing_spaces():
            self.why = f"{self._node.name} has not {', '.join(sorted(missing))} yet"
            return False
        self.why = ""
        return True

    def _missing_spaces(self) -> set[str]:
        """Servers make a space on a write quorum before they log anything about it. To redo one that is not there was dropped."""
        self._spaces = _spaces_of(self._node)
        others = [_spaces_of(other) for other in self._others]
        known = {name for spaces in others for name in spaces}
        made = {name for name in known if sum(name in spaces for spaces in others) >= self._write_quorum}
        return made - self._spaces

    def _ends(self, nodes: list[StorageNode]) -> list[Ends]:
        """At once: servers wait meanwhile."""
        ask: Callable[[StorageNode], Ends] = ends_of
        if not nodes:
            return []
        with ThreadPoolExecutor(len(nodes)) as threads:
            return list(threads.map(ask, nodes))

    def _streams_of_servers(self, ends: Ends) -> dict[int, End]:
        return {stream: end for stream, end in ends.items() if stream != AUTHORITY}


def _spaces_of(node: StorageNode) -> set[str]:
    return {path.name for path in node.data.glob(SPACES)}


def _named(streams: list[int]) -> str:
    return ", ".join("the memory node's records" if stream == AUTHORITY else f"log {stream}" for stream in streams)
