"""The servers that the experiments of polardbmp.py load: a cluster of profile fusion with its tables, and what all of it has
counted."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pymysql

from .. import compute_servers, paths
from ..bench.comparison import STRATA
from ..bench.servers import database
from ..cluster import Cluster, Wishes
from ..dilation import Emulation
from ..memory_node import bytes_of
from ..process import BackgroundProcess
from ..server import Server
from ..shell import StrataError
from ..waiting import wait_until
from .courses import EVERY_SECOND, LOOK_S, NODE_LEASE_S, series_of
from .polardbmp import PROFILE, Plan
from .polardbmp_servers import Servers, cpu_us_of

WIDE_COLUMNS = 8
MEMBER_LEASE_S = 2  # as the memory node gives it by itself
KNOWN_LIMIT_S = 30.0  # for what one server has made to be there on the others
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
COMPUTE_CPU = "compute_cpu_us"
CPU = {"compute": COMPUTE_CPU, "memory": "memory_cpu_us", "storage": "storage_cpu_us"}


class Primaries(Servers):
    """A cluster of profile fusion."""

    engine = STRATA
    name_variable = "strata_node_name"

    def __init__(self, plan: Plan, folder: Path, servers: int) -> None:
        emulation = Emulation(plan.wish(), folder.with_name(f"{folder.name}-emulated")) if plan.wish().dilated else None
        super().__init__(plan, emulation)
        self._folder = folder
        self._servers = servers  # at first
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

    @property
    def emulation(self) -> Emulation | None:
        return self._emulation

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
        rows = ", ".join(f"({number}, 0)" for number in range(1, WITNESSES + 1))
        first.query("CREATE TABLE test.witness (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=STRATA")
        first.query(f"INSERT INTO test.witness VALUES {rows}", autocommit=True)
        self.make_tables(first)
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
        return self.ask(self.first(), text)

    def data_bytes(self) -> int:
        rows = self.first().query(
            f"SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = '{database(STRATA)}'"
        )
        return int(rows[0][0] or 0)

    # --- loads -------------------------------------------------------------------------------------------------

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
        return {CPU[kind]: cpu_us_of(of_kind) for kind, of_kind in parts.items()}


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
