"""Servers that write the same tables: profile fusion beside Galera, whose servers find out at COMMIT what locks avoid.

In turns, on the same machine: a Galera cluster with InnoDB (galera_cluster.py), a fusion cluster of as many servers, and one
server with InnoDB alone, which says what a load costs where nobody shares anything. Clients are spread over all servers.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from .. import galera_packages, paths, setup_cmd
from ..cluster import Cluster, Wishes
from ..galera_cluster import SERVERS_MAX, GaleraCluster
from ..process import BackgroundProcess
from ..profile_list import OF_SEVERAL_WRITERS
from ..server import Server, Settings, choose_port
from ..shell import Outcome, StrataError, console, run_logged
from . import process, profiles, report, sysbench
from .comparison import INNODB, STRATA, Row, Sample, in_turns
from .servers import MIB, PORT, Memory, alone

GALERA, FUSION, ONE = "galera", OF_SEVERAL_WRITERS[0], "innodb"
SYSTEMS = (GALERA, FUSION, ONE)  # Ratios are to the first one.
DATABASE = "bench"
SCRIPTS = paths.ROOT / "bench" / "sysbench"
MEMORY = Memory(256 * MIB, 256 * MIB)  # Of each server.
WARM_UP_S = 2
LEASE_S = 30  # Of a fusion server: a busy machine may not let it run for long.
CAUGHT_UP = "SET SESSION wsrep_sync_wait = 15"  # Galera: waits for what was committed before.
HOT_ROWS = 1000
REFUSED = re.compile(r"^refused at commit (\d+), before (\d+)$", re.MULTILINE)


class Workload(StrEnum):
    read_write = "read_write"
    write_only = "write_only"
    hot_rows = "hot_rows"  # 4 of 1,000
    hot_row = "hot_row"

    @property
    def is_hot(self) -> bool:
        return self in (Workload.hot_rows, Workload.hot_row)

    @property
    def updates(self) -> int:
        """Of a transaction on hot rows."""
        return 4 if self == Workload.hot_rows else 1


@dataclass(frozen=True)
class Plan:
    workloads: tuple[Workload, ...] = tuple(Workload)
    systems: tuple[str, ...] = SYSTEMS
    threads: tuple[int, ...] = (24,)
    servers: int = 3
    tables: int = 8
    rows: int = 25_000
    seconds: int = 10
    rounds: int = 3
    sync_wait: int = 0  # of Galera

    def settings(self) -> dict[str, object]:
        return {
            "systems": ",".join(self.systems),
            "servers": self.servers,
            "wsrep_sync_wait": self.sync_wait,
            "rounds": self.rounds,
            "rows": self.rows,
            "seconds": self.seconds,
            "tables": self.tables,
        }


@dataclass(frozen=True)
class Contended(Sample):
    """With the transactions a second that were refused and begun anew: by certification, as deadlocks, after too long a wait."""

    at_commit: float = 0.0
    before: float = 0.0


def chosen_systems(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if len(set(names)) != len(names) or not set(names) <= set(SYSTEMS):
        raise StrataError(f"--systems {text}: give different ones of {', '.join(SYSTEMS)}, with commas between them")
    return names


def run(plan: Plan, json_file: Path | None) -> None:
    if not 2 <= plan.servers <= SERVERS_MAX:
        raise StrataError(f"--servers {plan.servers}: 2 to {SERVERS_MAX}")
    setup_cmd.ensure_setup()
    if GALERA in plan.systems:
        galera_packages.fetch(console.print)
    rows: list[Row] = []
    with systems(plan) as found:
        for row in _measure(plan, found):
            rows.append(row)
            report.write([as_json(plan.systems, row) for row in rows], plan.settings(), json_file)
            console.print(line(plan.systems, row))
    console.print(profiles.table(plan.systems, rows))
    console.print(f"transactions per second, in brackets the ratio to {plan.systems[0]}; medians of {plan.rounds} rounds")
    if json_file:
        console.print(f"written: {paths.relative(json_file.resolve())}")


class System:
    """What one competitor is: its servers, which all have the tables, and its processes."""

    def __init__(
        self, name: str, servers: Sequence[Server], parts: Callable[[], Sequence[BackgroundProcess]], plan: Plan
    ) -> None:
        self.name = name
        self._servers = servers
        self._parts = parts
        self._plan = plan
        self._engine = STRATA if name == FUSION else INNODB
        self.load()

    def cpu_s(self) -> float:
        return sum(process.cpu_s(pid) for part in self._parts() if (pid := part.pid()) is not None)

    def load(self) -> None:
        first = self._servers[0]
        first.query(f"CREATE DATABASE {DATABASE}")
        first.query(f"CREATE TABLE {DATABASE}.hot (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE={self._engine}")
        rows = ", ".join(f"({number}, 0)" for number in range(1, HOT_ROWS + 1))
        first.query(f"INSERT INTO {DATABASE}.hot VALUES {rows}", autocommit=True)
        self._sysbench("oltp_read_write", [first], 1, "prepare", 1800)
        for server in self._servers:
            server.query(f"SELECT COUNT(*) FROM {DATABASE}.sbtest1", **self._caught_up())

    def _caught_up(self) -> dict[str, str]:
        return {"init_command": CAUGHT_UP} if self.name == GALERA else {}

    def measure(self, workload: Workload, threads: int) -> Sample:
        self.run(workload, threads, WARM_UP_S)
        if workload.is_hot:
            self._servers[0].query("UPDATE hot SET n = 0", database=DATABASE, autocommit=True, **self._caught_up())
        cpu_s, machine = self.cpu_s(), process.MachineTime.now()
        outcome = self.run(workload, threads, self._plan.seconds)
        done = sysbench.transactions(outcome)
        cpu_us, stolen = (self.cpu_s() - cpu_s) * 1e6 / done, machine.stolen_since()
        if workload.is_hot:
            self._check_sums(done * workload.updates)
        plain = sysbench.parse(outcome)
        at_commit, before = refused(outcome.log.read_text())
        a_second = plain.value / done
        return Contended(plain.value, plain.p99_ms, cpu_us, stolen, at_commit * a_second, before * a_second)

    def _check_sums(self, wanted: int) -> None:
        """Every server has counted each committed transaction once."""
        for server in self._servers:
            rows = server.query("SELECT SUM(n) FROM hot", database=DATABASE, **self._caught_up())
            if rows[0][0] != wanted:
                raise StrataError(f"{self.name}, {server.data.name}: the counters' sum is {rows[0][0]} after {wanted} updates")

    def run(self, workload: Workload, threads: int, seconds: int) -> Outcome:
        hot = [f"--hot_rows={HOT_ROWS if workload == Workload.hot_rows else 1}", f"--updates={workload.updates}"]
        mix = "hot" if workload.is_hot else f"oltp_{workload}"
        more = ["--percentile=99", f"--time={seconds}", *(hot if workload.is_hot else ["--rand-type=uniform"])]
        return self._sysbench(mix, self._servers, threads, "run", seconds + 300, *more)

    def _sysbench(self, mix: str, servers: Sequence[Server], threads: int, action: str, timeout_s: float, *more: str) -> Outcome:
        command = [
            "sysbench",
            str(SCRIPTS / "conflicts.lua") if action == "run" else mix,
            "--db-driver=mysql",
            # Connections go to them in turns.
            f"--mysql-socket={','.join(str(server.socket) for server in servers)}",
            "--mysql-user=root",
            f"--mysql-db={DATABASE}",
            f"--mysql-storage-engine={self._engine}",
            f"--threads={threads}",
            f"--tables={self._plan.tables}",
            f"--table-size={self._plan.rows}",
            # Galera gives each server ids of its own.
            "--auto_inc=off",
            *more,
            action,
        ]
        environment = {**os.environ, "STRATA_MIX": mix, "LUA_PATH": f"{SCRIPTS}/?.lua;;"}
        outcome = run_logged(command, sysbench.log_of(mix, action, self.name), env=environment, timeout_s=timeout_s)
        if not outcome.ok:
            raise StrataError(f"sysbench failed ({paths.relative(outcome.log)}):\n{outcome.tail(12)}")
        return outcome


def refused(output: str) -> tuple[int, int]:
    """Transactions at COMMIT and before, of all threads."""
    found = REFUSED.findall(output)
    return sum(int(at_commit) for at_commit, _ in found), sum(int(before) for _, before in found)


# --- the systems -----------------------------------------------------------------------------------------------


@contextmanager
def systems(plan: Plan) -> Iterator[dict[str, System]]:
    folder = paths.BUILD / "bench" / "galera"
    makers = {GALERA: _galera, FUSION: _fusion, ONE: _one}
    with alone(folder.parent / "lock"), ExitStack() as stack:
        found: dict[str, System] = {}
        for name in plan.systems:
            console.print(f"starting and loading {name} ...")
            found[name] = stack.enter_context(makers[name](folder / name, plan))
        yield found


@contextmanager
def _galera(folder: Path, plan: Plan) -> Iterator[System]:
    options = (*MEMORY.options_alone(INNODB), f"--wsrep-sync-wait={plan.sync_wait}")
    cluster = GaleraCluster(folder, plan.servers, server_options=options)
    cluster.start()
    try:
        yield System(GALERA, cluster.servers, lambda: cluster.servers, plan)
    except BaseException:
        _say_where(cluster.servers)
        raise
    else:
        cluster.kill()
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        cluster.kill()


@contextmanager
def _fusion(folder: Path, plan: Plan) -> Iterator[System]:
    cluster = Cluster(folder)
    if cluster.exists():
        cluster.stop()
        cluster.wipe()
    cluster = Cluster(folder)
    cluster.compute_options = tuple(MEMORY.options_alone(STRATA))
    cluster.lease_s = LEASE_S
    try:
        cluster.start(FUSION, wishes=Wishes(servers=plan.servers))
        yield System(FUSION, list(cluster.computes.values()), lambda: list(cluster.parts().values()), plan)
    except BaseException:
        _say_where(cluster.parts().values())
        raise
    else:
        cluster.stop()
        if not cluster.running():
            cluster.wipe()
    finally:
        cluster.stop()


@contextmanager
def _one(folder: Path, plan: Plan) -> Iterator[System]:
    server = Server(folder)
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        server.start(Settings(port=choose_port(None, PORT), engine=INNODB), extra=MEMORY.options_alone(INNODB))
        yield System(ONE, [server], lambda: [server], plan)
    except BaseException:
        _say_where([server])
        raise
    else:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        server.stop()


def _say_where(parts: Iterable[BackgroundProcess]) -> None:
    """Logs outlive what failed, until the next run."""
    console.print("logs:", ", ".join(paths.relative(part.log) for part in parts))


def _measure(plan: Plan, found: dict[str, System]) -> Iterator[Row]:
    def one(name: str, workload: Workload, threads: int) -> Sample:
        process.wait_until_quiet(lambda: sum(system.cpu_s() for system in found.values()), profiles.QUIET_WAIT_S)
        return found[name].measure(workload, threads)

    for workload in plan.workloads:
        for threads in plan.threads:
            row = Row(workload, threads, "memory", "transactions/s")
            yield in_turns(row, plan.systems, plan.rounds, partial(one, workload=workload, threads=threads))


# --- what it says ----------------------------------------------------------------------------------------------


def as_json(names: Sequence[str], row: Row) -> dict[str, object]:
    """As a row of profiles.py, with what was refused."""
    line = profiles.row_as_json(names, row)
    for name, values in line["profiles"].items():
        values["refused_at_commit"] = _median(row, name, lambda sample: sample.at_commit)
        values["refused_before"] = _median(row, name, lambda sample: sample.before)
    return line


def _median(row: Row, name: str, of: Callable[[Contended], float]) -> float | None:
    values = [of(sample) for sample in row.samples.get(name, []) if isinstance(sample, Contended)]
    return sorted(values)[len(values) // 2] if values else None


def line(names: Sequence[str], row: Row) -> str:
    parts = [f"{row.workload}, {row.threads} clients:"]
    for name in names:
        low_high = profiles.spread(row, name, names[0])
        spread = f", {low_high[0]:.2f}-{low_high[1]:.2f}" if low_high and name != names[0] else ""
        at_commit = _median(row, name, lambda sample: sample.at_commit)
        before = _median(row, name, lambda sample: sample.before)
        rate = f"{report.number(row.value(name))}/s, ratio {report.ratio(profiles.ratio(row, name, names[0]))}{spread}"
        refusals = f"refused {at_commit or 0:.0f}/s at COMMIT, {before or 0:.0f}/s before"
        cost = f"{row.cpu_us(name) or 0:.0f} us of CPU, p99 {row.p99(name) or 0:.0f} ms"
        parts.append(f"  {name}: {rate}; {refusals}; {cost}")
    return "\n".join(parts)
