"""How servers that write the same tables are, and the memory node that they share, as they say themselves."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import pymysql

from .daemon_process import DaemonProcess
from .server import Server

FENCED = "is none of the cluster's any more"  # src/clients/compute/fusion_node.cc
NOT_A_MEMBER = "this server is fenced, has left, or has never joined"  # src/memnode/fusion/internal/service_parts.h
NO_LEASE = "no lease from the memory node"
MEMORY_SERVES, MEMORY_WAITS = "serves", "stands by"  # src/memnode/host/fusion_host.cc


def tells_of_its_lease(text: str) -> bool:
    """Whether an error says that the server has no lease at the moment, or lost it and is none of the cluster's any more."""
    return any(words in text for words in (NO_LEASE, FENCED, NOT_A_MEMBER))


def well(node: DaemonProcess) -> Callable[[], bool]:
    """Whether it serves: it may have logs to redo before. Asked twice: it says so for an instant, before it sees that it has."""
    return lambda: node.illness() is None and node.illness() is None


def trouble_of(server: Server) -> str | None:
    """What keeps one of several from answering, in its own words; "": nothing; None: it says nothing."""
    with contextlib.suppress(pymysql.MySQLError):
        said = server.query("SHOW GLOBAL STATUS LIKE 'strata_cluster_trouble'", connect_timeout=5, read_timeout=10)
        return "".join(str(value) for _, value in said)
    return None


def is_fenced(server: Server) -> bool:
    """One of several that answers nothing any more, and says so."""
    return FENCED in (trouble_of(server) or "")


def decided(server: Server) -> Callable[[], bool]:
    """Whether it answers, or never will: with the memory node or storage nodes just started, it may have to see."""
    return lambda: (trouble := trouble_of(server)) == "" or FENCED in (trouble or "") or server.pid() is None


def phase(said: dict[str, Any]) -> str:
    """Of what a memory node says of itself: MEMORY_SERVES, MEMORY_WAITS or what keeps it from both; "": nothing of servers."""
    fusion = said.get("fusion")
    return str(fusion.get("phase", "")) if isinstance(fusion, dict) else ""


def phase_of(node: DaemonProcess) -> str:
    """The same of a process; "": it does not run, or does not answer."""
    return phase(node.status()) if node.pid() is not None else ""


def one_serves(nodes: Iterable[DaemonProcess]) -> bool:
    return any(phase_of(node) == MEMORY_SERVES and node.illness() is None for node in nodes)
