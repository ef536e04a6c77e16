"""`./strata compute add | remove | kill | status`: servers that write the same tables (profile fusion). One may be told to read
only: it is as the others, and its server refuses what accounts without READ_ONLY ADMIN would change.

Every server has a folder <data>/computes/<name>, a port, and a place in the cluster: a number, a log stream and an undo space
that are its folder's for good (src/cluster/places.h). Who ends in order gives back all pages and locks. Who is killed does not:
what it had for writing the others get once it is started again, in its folder.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from . import paths
from .cluster import SERVERS_MAX, Cluster
from .server import Server
from .several_health import FENCED, NO_LEASE, is_fenced, one_serves
from .shell import StrataError
from .status import DEGRADED, NOTHING_RUNS, RUNNING, Process, compute_process, server_facts

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}")  # src/cluster/keys.h

SERVES = "serves"
IDENTITY = Path("mysql", "#strata", "node-identity")  # src/clients/compute/node_identity.h; whoever has one may have a place.
NOT_IN_ORDER = "STRATA: shutdown: "  # mariadb/plugin.cc


@dataclass
class Added:
    node: str
    folder: str
    port: int
    seconds: float
    read_only: bool


@dataclass
class Removed:
    node: str
    folder: str
    wiped: bool
    left: list[str]  # The servers that there are.


@dataclass
class Killed:
    node: str
    pid: int | None  # That it had.
    back_s: float | None  # From the kill until it answered again; None: it stays down.


@dataclass
class Line:
    """What `status` says of one."""

    node: str
    state: str  # serves, ill, not running
    port: int | None  # None: it has never run.
    pid: int | None
    epoch: int | None  # Of its log.
    has_lease: bool | None
    connections: int | None
    uptime_s: int | None
    read_only: bool  # As it was added.
    why: str  # It does not serve as it should.
    folder: str


def check_several(cluster: Cluster, instead: str = "") -> None:
    if not cluster.has_several():
        what = f"; {instead}" if instead else ""
        raise StrataError(f"profile '{cluster.settings().profile}' has one server that writes{what}")


def refuse_several(cluster: Cluster, what: str, instead: str = "") -> None:
    """Of commands that take one server for granted."""
    if cluster.has_several():
        to_do = f"; {instead}" if instead else ""
        raise StrataError(f"{what}: not under profile '{cluster.profile}', where every server writes{to_do}")


def named(cluster: Cluster, name: str) -> Server:
    if name not in cluster.computes:
        raise StrataError(f"there is no server '{name}'; there is: {', '.join(cluster.computes)}")
    return cluster.computes[name]


def add(cluster: Cluster, name: str | None, port: int | None, read_only: bool = False) -> Added:
    """Returns once it serves. Raises StrataError when it cannot: the cluster is then as before, or, if it came so far as to have
    a place, has one server more that does not run."""
    began = time.monotonic()
    check_several(cluster, "for one that stands by: ./strata compute standby add; for another one in its place: compute move")
    cluster.check_others_run()
    if len(cluster.computes) >= SERVERS_MAX:
        raise StrataError(f"there are {len(cluster.computes)} servers, and no more than {SERVERS_MAX} are possible")
    chosen = name if name is not None else next(n for i in range(1, 1000) if (n := f"compute-{i}") not in cluster.parts())
    if not NAME.fullmatch(chosen):
        raise StrataError(f"'{chosen}' is no name for a server: letters, digits, '.', '_', '-'")
    if chosen in cluster.parts():
        raise StrataError(f"{chosen} is a process of this cluster already")
    folder = cluster.data / "computes" / chosen
    cluster.admit_server(chosen, folder, read_only)
    try:
        cluster.start_compute(chosen, port)
    except BaseException as error:
        if not (folder / IDENTITY).exists():
            cluster.forget_compute(folder)
        elif isinstance(error, StrataError):
            to_do = f"to do: ./strata up, or ./strata compute remove {chosen} --wipe"
            raise StrataError(f"{chosen} was added, and could not be started ({to_do}): {error}") from None
        raise
    return Added(chosen, str(folder), cluster.computes[chosen].settings().port, time.monotonic() - began, read_only)


def end_in_order(cluster: Cluster, names: list[str], say: Callable[[str], None]) -> None:
    """All that these servers have changed is with the memory node or in storage afterwards. Who was killed, or fenced, is started
    for that: the log of its last life has what nobody else has."""
    for name in names:
        server = cluster.computes[name]
        if server.pid() is not None and is_fenced(server):
            server.kill()
        if server.pid() is None and server.exists():
            say(f"  {name:<10} is started, so that it ends in order")
            cluster.start_compute(name)
    logs = {name: _size(cluster.computes[name].log) for name in names}
    in_time = cluster.stop_computes(names)
    if not in_time or any(NOT_IN_ORDER in _text_behind(cluster.computes[name].log, size) for name, size in logs.items()):
        raise StrataError(
            "a server did not end in order, or not in time and was killed, so it still has what nobody else has; nothing else was"
            " stopped; to do: the same command again, which starts that server and ends it in order"
        )


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _text_behind(log: Path, size: int) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as source:
        source.seek(size)
        return source.read().decode(errors="replace")


def end_all(cluster: Cluster, say: Callable[[str], None]) -> None:
    """Before the memory node ends: it keeps nothing, and its successor need not redo what storage has."""
    if not one_serves(cluster.memory.values()):
        return  # Nobody ends in order then; the logs tell all of it.
    end_in_order(cluster, list(cluster.computes), say)


def remove(cluster: Cluster, name: str, wipe: bool, say: Callable[[str], None]) -> Removed:
    """It ends in order, whatever became of it before; else it stays a part of the cluster."""
    check_several(cluster)
    server = named(cluster, name)
    if len(cluster.computes) == 1:
        raise StrataError(f"{name} is the only server, and nothing was changed; all of it stops with ./strata down")
    if set(cluster.computes) == {name, *cluster.settings().read_only}:
        raise StrataError(f"{name} is the only server that writes, and nothing was changed; to do: ./strata compute add first")
    cluster.check_others_run()
    end_in_order(cluster, [name], say)
    cluster.forget_compute(server.data)
    if wipe and server.data.exists():
        server.wipe()
    say(f"  {name:<10} is out; there is: {', '.join(cluster.computes)}")
    if not wipe:
        say(f"left: {paths.relative(server.data)}; ./strata compute add --name {name} takes it in again")
    return Removed(name, str(server.data), wipe, list(cluster.computes))


def kill(cluster: Cluster, name: str, stay_down: bool, say: Callable[[str], None]) -> Killed:
    """kill -9, and unless it is to stay down, a start at once."""
    check_several(cluster, "to kill it: ./strata node kill compute-1")
    server = named(cluster, name)
    if server.pid() is None and stay_down:
        raise StrataError(f"{name} does not run")
    pid = cluster.kill_part(name)
    killed = time.monotonic()
    say(f"  {name:<10} {'did not run' if pid is None else f'killed with -9 (pid {pid})'}")
    if stay_down:
        say(f"  {name:<10} stays down; others wait for rows it was changing; to start it: ./strata node start {name}")
        return Killed(name, pid, None)
    cluster.start_compute(name)
    back_s = time.monotonic() - killed
    say(f"  {name:<10} serves again {back_s:.1f} s after that")
    return Killed(name, pid, back_s)


def lines(cluster: Cluster) -> list[Line]:
    check_several(cluster, "./strata status tells of it")
    only_read = cluster.settings().read_only
    return [line_of(name, server, name in only_read) for name, server in cluster.computes.items()]


def line_of(name: str, server: Server, read_only: bool) -> Line:
    facts = server_facts(server)
    process = compute_process(name, server, facts)
    port = server.settings().port if server.settings().cluster else None
    return line(process, str(server.data), port, facts.get("variables", {}), read_only)


def line(process: Process, folder: str, port: int | None, variables: dict[str, Any], read_only: bool = False) -> Line:
    said = {key.lower(): value for key, value in variables.items()}

    def number(key: str) -> int | None:
        text = str(said.get(key, ""))
        return int(text) if text.isdigit() else None

    lease = number("strata_cluster_holds_lease")  # The registry's, of its log; without the memory node's it is of no use.
    without = any(text in process.reason for text in (NO_LEASE, FENCED))
    connections = number("threads_connected")
    return Line(
        process.name,
        "not running" if process.pid is None else SERVES if process.healthy else "ill",
        port,
        process.pid,
        number("strata_cluster_epoch"),
        None if lease is None else lease == 1 and not without,
        None if connections is None else max(0, connections - 1),  # Not the one that asks.
        number("uptime"),
        read_only,
        process.reason,
        folder,
    )


def exit_code(found: list[Line]) -> int:
    """As of ./strata status."""
    if all(one.pid is None for one in found):
        return NOTHING_RUNS
    return RUNNING if all(one.state == SERVES for one in found) else DEGRADED


def table(found: list[Line]) -> Table:
    shown = Table()
    for heading in ("server", "state", "writes", "port", "pid", "epoch", "lease", "connections", "uptime"):
        shown.add_column(heading, justify="left" if heading in ("server", "state", "writes") else "right")
    for one in found:
        lease = "-" if one.has_lease is None else "yes" if one.has_lease else "no"
        numbers = ("-" if number is None else str(number) for number in (one.port, one.pid, one.epoch))
        uptime = "-" if one.uptime_s is None else f"{one.uptime_s} s"
        connections = "-" if one.connections is None else str(one.connections)
        shown.add_row(one.node, one.state, "no" if one.read_only else "yes", *numbers, lease, connections, uptime)
    return shown


def table_of_addresses(cluster: Cluster, sql: str) -> Table:
    """How to connect to each; `sql` is a command that lacks the server."""
    shown = Table()
    for heading in ("server", "state", "port", "SQL"):
        shown.add_column(heading, justify="right" if heading == "port" else "left", overflow="fold")
    for one in lines(cluster):
        shown.add_row(one.node, one.state, "-" if one.port is None else str(one.port), f"{sql} --on {one.node}")
    return shown
