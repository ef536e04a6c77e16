"""The logs of several servers, and of the memory node between them, on storage nodes: who has which, and votes in it.

Where one server writes there is one log, whose writer gives it to every node. Here a log may have no writer at the moment: its
server was stopped, or killed and nobody has adopted its place yet. So each log is looked at by itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .storage_node import StorageNode

AUTHORITY = 0x100  # The memory node's: whom it serves. No pages are made from it.


@dataclass(frozen=True)
class OneLog:
    """As one storage node has it."""

    votes: bool
    end: int
    durable: int
    scanned: int


Logs = Mapping[int, OneLog]  # By stream, as one node has them.


def logs_of(node: StorageNode) -> dict[int, OneLog]:
    """Empty: it has none, or says nothing."""
    found = [stream for stream in node.status().get("streams", []) if isinstance(stream, dict)]
    return {
        int(stream.get("stream", 0)): OneLog(
            bool(stream.get("voting")), *(int(stream.get(name, 0)) for name in ("log_end", "quorum_durable", "scanned"))
        )
        for stream in found
    }


def name_of(stream: int) -> str:
    return "the memory node's log" if stream == AUTHORITY else f"the log of server {stream}"


def troubles(nodes: Mapping[str, Logs], begun: Iterable[int], lag_bytes_max: int) -> list[str]:
    """Why none of the other nodes may be changed. `begun`: the streams that somebody has had an epoch of."""
    streams = sorted({*begun, *(stream for logs in nodes.values() for stream in logs)})
    found = []
    for stream in streams:
        furthest = max((logs[stream].end for logs in nodes.values() if stream in logs), default=0)
        for name, logs in nodes.items():
            if stream not in logs:
                found.append(f"{name} has nothing yet of {name_of(stream)}")
            elif not logs[stream].votes:
                found.append(f"{name} is still catching up and does not vote in {name_of(stream)} ({remedy(stream)})")
            elif furthest - logs[stream].end > lag_bytes_max:
                found.append(f"{name} is {(furthest - logs[stream].end) >> 20} MiB of {name_of(stream)} behind")
    return found


def remedy(stream: int) -> str:
    """Who gives a log to a node that lacks it."""
    who = (
        "the memory node" if stream == AUTHORITY else "its server, or the memory node once nothing is to be recovered of that one"
    )
    never = "" if stream == AUTHORITY else "; if its server never came up: ./strata compute add"
    return f"{who} gives it that; what does not run: ./strata up{never}"


def targets(nodes: Iterable[Logs], begun: Iterable[int]) -> dict[int, int]:
    """How far a new node has to come in each log, by what the others know to be durable."""
    found = dict.fromkeys(begun, 0)
    for logs in nodes:
        for stream, log in logs.items():
            found[stream] = max(found.get(stream, 0), log.durable)
    return found


def lacking(logs: Logs, wanted: Mapping[int, int], replays: bool) -> str:
    """What a node lacks, in words; "": nothing. `replays`: pages are made from the logs there."""
    has = sum(min(logs[stream].end, end) for stream, end in wanted.items() if stream in logs)
    silent = [stream for stream in wanted if stream not in logs or not logs[stream].votes]
    if silent or has < sum(wanted.values()):
        votes = f"; does not vote yet in {', '.join(name_of(stream) for stream in sorted(silent))}" if silent else ""
        return f"logs {has >> 10} of {sum(wanted.values()) >> 10} KiB{votes}"
    unread = sum(max(0, end - logs[stream].scanned) for stream, end in wanted.items() if stream != AUTHORITY)
    return f"votes in {len(wanted)} logs; {unread >> 10} KiB of them not looked at yet" if replays and unread else ""
