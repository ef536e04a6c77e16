"""How long the rows of a server that is killed are locked for the others, where several write the same tables: kill -9 again and
again, of one server and of the other, under load. An open transaction of the one that is killed holds a row; the time is from the
kill until another server commits on that row. Whoever was killed is then started, and timed until its first commit."""

import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pymysql
from rich.table import Table

from .. import paths, setup_cmd
from ..cluster import Cluster, Wishes
from ..server import Server
from ..shell import StrataError, console
from ..waiting import wait_until
from . import results, servers
from .servers import alone

LIMIT_S = 120.0
LOOK_EVERY_S = 0.01
BEFORE_S = 2.0  # The other server's rate then is what it is compared with.
PAUSE_S = 0.01  # Of a client between two transactions: the machine is to have room for what a takeover takes.
TABLE = "takeover.held"  # One row is the killed server's, one tells that a server is back.


@dataclass(frozen=True)
class Plan:
    profile: str
    kills: int
    clients: int  # of each server
    rows: int  # of each server's clients


@dataclass
class Takeovers:
    profile: str
    until_commit_s: list[float] = field(default_factory=list)  # of another server, on a row that the killed one held
    until_back_s: list[float] = field(default_factory=list)  # from its start to its first commit
    others_share: list[float] = field(default_factory=list)  # the other server's rate meanwhile to the one before

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), **{name: share(values) for name, values in self.measured().items()}}

    def measured(self) -> dict[str, list[float]]:
        return {"until_commit": self.until_commit_s, "until_back": self.until_back_s, "share": self.others_share}


def share(values: list[float]) -> dict[str, float]:
    """How they are spread."""
    ordered = sorted(values)
    return {f"p{percent}": ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in (0, 50, 99)}


def run(plan: Plan, json_file: Path | None) -> None:
    setup_cmd.ensure_setup()
    found = _measure(plan)
    console.print(table(found))
    if json_file:
        results.write(results.measured([found.as_json()], asdict(plan), servers.machine()), json_file)
        console.print(f"written: {paths.relative(json_file.resolve())}")


def table(found: Takeovers) -> Table:
    out = Table(box=None, header_style="bold", title=f"{found.profile}: {len(found.until_commit_s)} times kill -9")
    out.add_column("", no_wrap=True)
    for name in ("least", "median", "99 %"):
        out.add_column(name, justify="right")
    words = {
        "until_commit": ("until another one commits on its rows", "s"),
        "until_back": ("from its start until it commits again", "s"),
        "share": ("the other one's rate meanwhile to before", ""),
    }
    for name, values in found.measured().items():
        what, unit = words[name]
        out.add_row(what, *(f"{value:.2f} {unit}".rstrip() for value in share(values).values()))
    return out


class Load:
    """Clients of one server, with a table of its own; what they have committed."""

    def __init__(self, server: Server, table: str, plan: Plan) -> None:
        self._server = server
        self._table = table
        self._rows = plan.rows
        self._stop = threading.Event()
        self.committed = 0
        self._threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(plan.clients)]
        for thread in self._threads:
            thread.start()

    def _work(self, client: int) -> None:
        while not self._stop.is_set():
            try:
                self._change(client)
            except pymysql.MySQLError:
                time.sleep(LOOK_EVERY_S)  # its server is killed, or on its way

    def _change(self, client: int) -> None:
        with self._server.connect(autocommit=True, read_timeout=LIMIT_S) as connection, connection.cursor() as cursor:
            rng = random.Random(client)
            while not self._stop.is_set():
                cursor.execute(f"UPDATE {self._table} SET n = n + 1 WHERE id = %s", (rng.randint(1, self._rows),))
                self.committed += 1
                time.sleep(PAUSE_S)

    def stop(self) -> None:
        self._stop.set()

    def end(self) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()


def _measure(plan: Plan) -> Takeovers:
    found = Takeovers(plan.profile)
    with _cluster(plan) as cluster:
        names = cluster.serving_computes()
        first = cluster.computes[names[0]]
        first.query("CREATE DATABASE takeover")
        _make_table(first, TABLE, 2)
        tables = {name: f"takeover.own_{i + 1}" for i, name in enumerate(names)}
        for own in tables.values():
            _make_table(first, own, plan.rows)
        loads = {name: Load(cluster.computes[name], own, plan) for name, own in tables.items()}
        try:
            for number in range(plan.kills):
                victim, other = names[number % 2], names[1 - number % 2]
                _kill(cluster, victim, other, loads[other], found)
                console.print(
                    f"  kill {number + 1} of {plan.kills}: {victim}, taken over after {found.until_commit_s[-1]:.2f} s, "
                    f"back after {found.until_back_s[-1]:.2f} s"
                )
        finally:
            for load in loads.values():
                load.stop()
            for load in loads.values():
                load.end()
    return found


def _make_table(server: Server, name: str, count: int) -> None:
    server.query(f"CREATE TABLE {name} (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=STRATA")
    rows = ", ".join(f"({number}, 0)" for number in range(1, count + 1))
    server.query(f"INSERT INTO {name} VALUES {rows}", autocommit=True)


def _kill(cluster: Cluster, victim: str, other: str, load: Load, found: Takeovers) -> None:
    server = cluster.computes[victim]
    held = server.connect()
    with held.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"UPDATE {TABLE} SET n = n + 1000 WHERE id = 1")
    began, committed = time.monotonic(), load.committed
    time.sleep(BEFORE_S)
    before = (load.committed - committed) / (time.monotonic() - began)
    committed = load.committed
    began = time.monotonic()
    server.kill()
    _change_row(cluster.computes[other], 1)
    took = time.monotonic() - began
    found.until_commit_s.append(took)
    found.others_share.append((load.committed - committed) / took / before if before else 0.0)
    held.close()
    began = time.monotonic()
    server.launch(cluster.compute_settings(victim, server.settings().port))
    if not wait_until(lambda: _commits(server), LIMIT_S, LOOK_EVERY_S):
        raise StrataError(f"no commit within {LIMIT_S:.0f} s of the start:\n{server.log_tail()}")
    found.until_back_s.append(time.monotonic() - began)


def _change_row(server: Server, row: int) -> None:
    with server.connect(read_timeout=LIMIT_S) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION strata_lock_wait_timeout = {LIMIT_S:.0f}")
        cursor.execute(f"UPDATE {TABLE} SET n = n + 1 WHERE id = %s", (row,))
        connection.commit()


def _commits(server: Server) -> bool:
    if end := server.ended():
        raise StrataError(f"mariadbd ended while starting ({end}):\n{server.log_tail()}")
    try:
        server.query(f"UPDATE {TABLE} SET n = n + 1 WHERE id = 2", autocommit=True)
    except pymysql.MySQLError:
        return False
    return True


@contextmanager
def _cluster(plan: Plan) -> Iterator[Cluster]:
    folder = paths.BUILD / "bench" / "takeover"
    with alone(folder.parent / "lock"):
        shutil.rmtree(folder, ignore_errors=True)
        cluster = Cluster(folder)
        try:
            cluster.start(plan.profile, wishes=Wishes(servers=2))
            yield cluster
        finally:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
