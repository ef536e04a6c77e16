"""How long a compute node takes to commit again after kill -9 under load, from the start of its process; under any profile."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import pymysql
from rich.table import Table

from .. import paths, setup_cmd
from ..server import Server, Settings, choose_port
from ..shell import StrataError, console
from ..storage_beneath import storage_beneath
from ..waiting import wait_until
from . import results, servers
from .comparison import STRATA
from .servers import IN_MEMORY, PORT, alone, database
from .sysbench import Bench, Workload

LOOK_EVERY_S = 0.01
LIMIT_S = 120.0


@dataclass(frozen=True)
class Plan:
    profiles: tuple[str, ...]
    tables: int
    rows: int
    threads: int
    seconds: int  # of load before the kill
    rounds: int


@dataclass
class Restarts:
    profile: str
    until_commit_s: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "median_s": median(self.until_commit_s)}


def run(plan: Plan, json_file: Path | None) -> None:
    setup_cmd.ensure_setup()
    found = [_measure(plan, profile) for profile in plan.profiles]
    console.print(table(found))
    console.print(
        f"seconds from the start of the process to the first commit, after kill -9 during {plan.seconds} s of write_only"
    )
    if json_file:
        rows = [one.as_json() for one in found]
        results.write(results.measured(rows, asdict(plan), servers.machine()), json_file)
        console.print(f"written: {paths.relative(json_file.resolve())}")


def table(found: list[Restarts]) -> Table:
    out = Table(box=None, header_style="bold")
    out.add_column("profile", no_wrap=True)
    for name in ("median", "least", "most"):
        out.add_column(name, justify="right")
    for one in found:
        values = one.until_commit_s
        out.add_row(one.profile, *(f"{value:.2f} s" for value in (median(values), min(values), max(values))))
    return out


def _measure(plan: Plan, profile: str) -> Restarts:
    found = Restarts(profile)
    with _server(profile) as node:
        node.start()
        node.server.query(f"CREATE DATABASE {database(STRATA)}")
        bench = Bench(node.server, plan.tables, plan.rows)
        bench.load(STRATA)
        for number in range(plan.rounds):
            _kill_under_load(node, bench, plan)
            found.until_commit_s.append(node.seconds_to_commit())
            console.print(f"  {profile}, {number + 1} of {plan.rounds}: {found.until_commit_s[-1]:.2f} s")
    return found


class _Node:
    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        self.server = Server(folder)
        self._settings = Settings(port=choose_port(None, PORT), engine=STRATA)
        self._options = (*IN_MEMORY.options_alone(STRATA), *options)

    def start(self) -> None:
        self.server.start(self._settings, extra=self._options)

    def seconds_to_commit(self) -> float:
        began = time.monotonic()
        self.server.launch(self._settings, extra=self._options)
        if not wait_until(self._commits, LIMIT_S, LOOK_EVERY_S):
            raise StrataError(f"no commit within {LIMIT_S:.0f} s of the start:\n{self.server.log_tail()}")
        return time.monotonic() - began

    def _commits(self) -> bool:
        if end := self.server.ended():
            raise StrataError(f"mariadbd ended while starting ({end}):\n{self.server.log_tail()}")
        try:
            self.server.query(f"UPDATE {database(STRATA)}.sbtest1 SET k = k + 1 WHERE id = 1", autocommit=True)
        except pymysql.MySQLError:
            return False
        return True


@contextmanager
def _server(profile: str) -> Iterator[_Node]:
    folder = paths.BUILD / "bench" / "restart"
    with alone(folder.parent / "lock"):
        shutil.rmtree(folder / "server", ignore_errors=True)
        with storage_beneath(profile, folder / "cluster") as options:
            node = _Node(folder / "server", options)
            try:
                yield node
            finally:
                node.server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _kill_under_load(node: _Node, bench: Bench, plan: Plan) -> None:
    def load() -> None:
        try:
            bench.run(STRATA, Workload.write_only, plan.threads, plan.seconds + 60)
        except StrataError:
            pass  # its server is killed

    clients = threading.Thread(target=load)
    clients.start()
    try:
        clients.join(plan.seconds)
        if not clients.is_alive():
            raise StrataError("the load ended by itself before the kill")
    finally:
        node.server.kill()
        clients.join()
