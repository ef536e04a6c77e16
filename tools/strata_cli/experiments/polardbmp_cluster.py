"""The servers that the experiments of polardbmp.py load: a cluster of profile fusion with the tables of all groups, its sysbench,
and what all of it has counted."""

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from .. import compute_servers, dilation, paths
from ..bench import process, sysbench
from ..bench.comparison import STRATA
from ..bench.servers import database
from ..cluster import Cluster, Wishes
from ..dilation import CLIENT, Emulation
from ..memory_node import bytes_of
from ..process import BackgroundProcess
from ..server import Server
from ..shell import Outcome, StrataError, run_logged
from ..waiting import wait_until
from .courses import EVERY_SECOND, LOOK_S, NODE_LEASE_S, QUIET_S, series_of
from .polardbmp import INSERTS, PRODUCTION, PROFILE, Plan

SCRIPTS = paths.ROOT / "bench" / "sysbench"
GROUPS, WIDE = "groups", "secondary_indexes"
LIMIT_S = 300.0  # beyond the time of a run
WIDE_COLUMNS = 8
MEMBER_LEASE_S = 2  # as the memory node gives it by itself
KNOWN_LIMIT_S = 30.0  # for what one server has made to be there on the others
IGNORED = re.compile(r"ignored errors:\s+(\d+)")
MEAN = re.compile(r"Latency \(ms\):.*?avg:\s+([\d.]+)", re.DOTALL)
WITNESSES = 3  # Rows of a table of our own, to be held and to be waited for.
# What a server tells in a variable, and the memory node among its values, as columns: all of it of a transaction.
OF_SERVERS = {
    "buffer_pool_reads": "page_reads",
    "cluster_pages_read": "storage_reads",
    "row_lock_waits": "row_lock_waits",
    "row_lock_wait_us": "row_lock_wait_us",
    "row_lock_deadlocks": "deadlocks",
    "log_bytes": "log_bytes",
    "log_sync_us": "log_sync_us",
}
OF_MEMORY = {
    "fusion_page_grants_total": "page_grants",
    "fusion_page_give_ups_total": "page_transfers",
    "fusion_clock": "timestamps",
}
CPU = {"compute": "compute_cpu_us", "memory": "memory_cpu_us", "storage": "storage_cpu_us"}


@dataclass
class Measured:
    rate: float
    p99_ms: float | None
    mean_ms: float
    costs: dict[str, float]
    void: str


class Primaries:
    """A cluster whose servers all write."""

    def __init__(self, plan: Plan, folder: Path, servers: int) -> None:
        self.plan = plan
        self._folder = folder
        self._servers = servers  # at first
        self._emulation = Emulation(plan.wish(), folder.with_name(f"{folder.name}-emulated")) if plan.wish().dilated else None
        self._has_begun = False
        self.cluster = self._made()

    def _made(self) -> Cluster:
        # The registry counts real seconds, and so do the memory node and who has a lease from it.
        slower = self.plan.dilation
        lease = ("--lease", str(math.ceil(NODE_LEASE_S * slower))) if self._emulation else ()
        of_servers = ("--fusion-lease", str(math.ceil(MEMBER_LEASE_S * slower))) if self._emulation else ()
        cluster = Cluster(
            self._folder,
            program=[paths.storenode_path("release"), *lease],
            memory_program=[paths.memnode_path("release"), *lease, *of_servers],
        )
        cluster.lease_s = self.plan.lease_s
        cluster.emulation = self._emulation
        cluster.compute_options = (
            f"--strata-buffer-pool-size={bytes_of(self.plan.pool)}",
            f"--strata-link={self.plan.link}",
            "--transaction-isolation=READ-COMMITTED",
            "--max-connections=500",
            "--performance-schema=OFF",
        )
        return cluster

    # --- its processes -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.end()
        self.cluster = self._made()
        self.cluster.start(PROFILE, wishes=Wishes(servers=self._servers, memory=self.plan.memory))

    def begin_dilation(self) -> None:
        """Once all is loaded."""
        assert self._emulation is not None
        self.wait_until_quiet()
        self.cluster.stop()
        self._emulation.begin()
        self._has_begun = True
        self.cluster.start(PROFILE)

    def stop(self) -> None:
        """Files and logs stay, until the next run."""
        self.cluster.stop()
        if self._emulation:
            self._emulation.end()

    def end(self) -> None:
        self.stop()
        if self.cluster.exists() and not self.cluster.running():
            self.cluster.wipe()

    def use(self, count: int) -> None:
        """The first ones serve from now on, the others have ended in order."""
        names = list(self.cluster.computes)
        if others := [name for name in names[count:] if self.cluster.computes[name].pid() is not None]:
            compute_servers.end_in_order(self.cluster, others, lambda _: None)
        for name in names[:count]:
            if self.cluster.computes[name].pid() is None:
                self.cluster.start_compute(name)

    def serving(self) -> list[Server]:
        return [self.cluster.computes[name] for name in self.cluster.serving_computes()]

    def named(self, name: str) -> Server:
        return self.cluster.computes[name]

    def first(self) -> Server:
        return next(iter(self.cluster.computes.values()))

    def launch(self, name: str) -> None:
        """It may be long before it serves."""
        server = self.named(name)
        server.launch(self.cluster.compute_settings(name, server.settings().port))

    # --- its data ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        first = self.first()
        first.query(f"CREATE DATABASE IF NOT EXISTS {database(STRATA)}")
        rows = ", ".join(f"({number}, 0)" for number in range(1, WITNESSES + 1))
        first.query("CREATE TABLE test.witness (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=STRATA")
        first.query(f"INSERT INTO test.witness VALUES {rows}", autocommit=True)
        groups = self.plan.shared_group
        if INSERTS not in self.plan.loads:
            self._run("oltp_read_write", "prepare", [first], 1, LIMIT_S, tables=groups * self.plan.tables)
        for server in self.serving():
            if not wait_until(lambda: knows_database(server), KNOWN_LIMIT_S, LOOK_S):  # noqa: B023
                raise StrataError(f"{server.name} does not know of {database(STRATA)} after {KNOWN_LIMIT_S:.0f} s")

    def make_wide(self, indexes: int) -> None:
        """A new table for random inserts, which has rows already: in an empty one all would meet on a page."""
        names = [f"c{number}" for number in range(1, WIDE_COLUMNS + 1)]
        columns = ", ".join(f"{name} INT NOT NULL" for name in names)
        keys = "".join(f", KEY ({name})" for name in names[:indexes])
        drawn = ", ".join(["FLOOR(RAND() * POW(2, 61))", *(["FLOOR(RAND() * POW(2, 31))"] * WIDE_COLUMNS), "REPEAT('-', 35)"])
        self._ask("DROP TABLE IF EXISTS wide")
        self._ask(f"CREATE TABLE wide (id BIGINT PRIMARY KEY, {columns}, pad CHAR(40) NOT NULL{keys}) ENGINE=STRATA")
        self._ask(f"INSERT IGNORE INTO wide SELECT {drawn} FROM seq_1_to_{self.plan.rows}")

    def _ask(self, text: str) -> list[tuple[Any, ...]]:
        limit_s = LIMIT_S * self.plan.dilation
        return self.first().query(text, database=database(STRATA), autocommit=True, read_timeout=limit_s)

    def data_bytes(self) -> int:
        rows = self.first().query(
            f"SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = '{database(STRATA)}'"
        )
        return int(rows[0][0] or 0)

    # --- loads -------------------------------------------------------------------------------------------------

    def run(self, load: str, shared: int, servers: Sequence[Server], threads: int, seconds: int, *more: str) -> Outcome:
        """`threads`: of all servers together. `seconds`: of emulated time, if it is."""
        mix = load if load == PRODUCTION else f"oltp_{load}"
        of_groups = [f"--shared={shared}", f"--shared_group={self.plan.shared_group}", "--rand-type=uniform"]
        script, wanted = (WIDE, []) if load == INSERTS else (GROUPS, of_groups)
        limit_s = (seconds + LIMIT_S) * self.plan.dilation
        wanted += [f"--time={seconds}", *more]
        return self._run(script, "run", servers, threads, limit_s, *wanted, mix=mix, tables=2 * self.plan.tables)

    def _run(
        self,
        script: str,
        action: str,
        servers: Sequence[Server],
        threads: int,
        limit_s: float,
        *more: str,
        tables: int,
        mix: str = "",
    ) -> Outcome:
        command = [
            "sysbench",
            script if action == "prepare" else str(SCRIPTS / f"{script}.lua"),
            "--db-driver=mysql",
            # Connections go to them in turns.
            f"--mysql-socket={','.join(str(server.socket) for server in servers)}",
            "--mysql-user=root",
            f"--mysql-db={database(STRATA)}",
            f"--mysql-storage-engine={STRATA}",
            f"--threads={threads}",
            f"--tables={tables}",
            f"--table-size={self.plan.rows}",
            "--percentile=99",
            *more,
            action,
        ]
        emulated = self._emulation.environment(CLIENT, CLIENT) if self._emulation else {}
        environment = {**os.environ, **emulated, "STRATA_MIX": mix, "LUA_PATH": f"{SCRIPTS}/?.lua;;"}
        outcome = run_logged(command, self._log(servers), env=environment, timeout_s=limit_s)
        if not outcome.ok:
            raise StrataError(f"sysbench failed ({paths.relative(outcome.log)}):\n{outcome.tail(12)}")
        return outcome

    def _log(self, servers: Sequence[Server]) -> Path:
        of = servers[0].name if len(servers) == 1 else "all"
        return paths.LOGS / f"bench-polardbmp-{of}.log"

    def measure(self, load: str, shared: int, servers: Sequence[Server], threads: int, seconds: int) -> Measured:
        before, cpu = self.counters(), self.cpu_us()
        with self.watched() as machine:
            outcome = self.run(load, shared, servers, threads, seconds)
        grown = {name: value - before[name] for name, value in self.counters().items()}
        spent = {name: value - cpu[name] for name, value in self.cpu_us().items()}
        count, text = sysbench.transactions(outcome), outcome.log.read_text()
        ignored, mean = IGNORED.search(text), MEAN.search(text)
        costs = {name: value / count for name, value in {**grown, **spent}.items()}
        costs["refused"] = (int(ignored[1]) if ignored else 0) / count
        sample, (of_machine, void) = sysbench.parse(outcome), machine()
        return Measured(sample.value, sample.p99_ms, float(mean[1]) if mean else 0.0, costs | of_machine, void)

    @contextmanager
    def watched(self) -> Iterator[Callable[[], tuple[dict[str, float], str]]]:
        """Of what happens within it can be asked afterwards: the real cores that all programs and others used, and why
        it is void."""
        began, machine, ours_s = time.monotonic(), process.MachineTime.now(), self._ours_s()
        found: list[tuple[dict[str, float], str]] = []
        with dilation.watched(self._emulation if self._has_begun else None) as validity:
            yield lambda: found[0]
        elapsed_s, used_s = time.monotonic() - began, machine.used_since()
        others_s = max(0.0, used_s - (self._ours_s() - ours_s))
        costs, judged = {"machine_cores": used_s / elapsed_s, "others_cores": others_s / elapsed_s}, validity()
        if judged:
            costs |= {"late_share": judged.late_share, "machine_cores": judged.cores_used}
        found.append((costs, (judged.why_void or "") if judged else ""))

    def _ours_s(self) -> float:
        """CPU time of all that runs, and of every sysbench that has ended."""
        times = os.times()
        return sum(self.cpu_us().values()) / 1e6 + times.children_user + times.children_system

    def go_on(self, name: str, load: str, shared: int, threads: int, seconds: int) -> list[float]:
        """A load of one server that outlives it: what it does each second."""
        server, log = self.named(name), self._log([self.named(name)])

        def run(left: int) -> Path:
            log.unlink(missing_ok=True)
            try:
                self.run(load, shared, [server], threads, left, EVERY_SECOND)
            except StrataError:
                if not log.exists():
                    raise
                wait_until(lambda: answers(server), left, LOOK_S)
            return log

        return series_of(run, seconds)

    # --- what it counts ----------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for server in self.serving():
            said = {str(name): str(value) for name, value in server.query("SHOW GLOBAL STATUS LIKE 'Strata%'")}
            for name, column in OF_SERVERS.items():
                found[column] = found.get(column, 0) + int(said[f"Strata_{name}"])
        for node in self.cluster.memory.values():
            values: Mapping[str, int] = node.status().get("values", {})
            for name, column in OF_MEMORY.items():
                found[column] = found.get(column, 0) + int(values.get(name, 0))
        return found

    def cpu_us(self) -> dict[str, int]:
        cluster = self.cluster
        parts: dict[str, list[BackgroundProcess]] = {
            "compute": list(cluster.computes.values()),
            "memory": list(cluster.memory.values()),
            "storage": list(cluster.storage.values()),
        }
        return {CPU[kind]: _cpu_us(of_kind) for kind, of_kind in parts.items()}

    def wait_until_quiet(self) -> None:
        """CPU time for a second of emulated time, if time is emulated. The registry is not."""
        slower = self.plan.dilation if self._has_begun else 1.0
        process.wait_until_quiet(lambda: sum(self.cpu_us().values()) / 1e6 * slower, QUIET_S * slower)


def _cpu_us(parts: Sequence[BackgroundProcess]) -> int:
    return int(1e6 * sum(process.cpu_s(pid) for part in parts if (pid := part.pid()) is not None))


def knows_database(server: Server) -> bool:
    """It was made by another one, and is there a moment later."""
    try:
        server.connect(database=database(STRATA)).close()
    except pymysql.MySQLError:
        return False
    return True


def answers(server: Server) -> bool:
    try:
        server.connect(connect_timeout=1).close()
    except (pymysql.MySQLError, OSError):
        return False
    return True
