"""How servers that write the same tables are, and the memory node that they share, as they say themselves."""

import contextlib
from collections.abc import Callable

import pymysql

from .daemon_process import DaemonProcess
from .server import Server

FENCED = "is none of the cluster's any more"  # src/clients/compute/fusion_node.cc
NOT_A_MEMBER = "this server is fenced, has left, or has never joined"  # src/memnode/fusion/internal/service_parts.h
NO_LEASE = "no lease from the memory node"


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
