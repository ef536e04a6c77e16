"""Histories on several servers that write the same tables (profile fusion): sessions of every level on all of them, one checker.

A server sees no table yet that another one makes after it has started: the first server makes them all, and a history begins with
tables that are empty again. After some histories, and after each one that fails, a new cluster is made, in another size.
"""

import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pymysql
from fusion_cluster import PROFILE, Several
from strata_cli.process import BackgroundProcess
from strata_cli.server import Server

from . import families, target, workload
from .campaign import AnyClient, Campaign, Plan
from .checker import Report
from .faults import KINDS, PULSE, Faults, draw
from .history import History

HISTORIES_PER_CLUSTER = 6
KEPT_MOST = 6  # clusters of histories that failed
SIZES = ((2048, "32M"), (512, "8M"), (2048, "8M"))  # slots of the memory node, a server's buffer pool
STRIKES_TIMEOUT_S = 240.0
LAST_WORK_S = 2.0  # when all is well again
LOOK_S = 0.1
STALL_S = 1.5  # more than a busy machine takes for LOOK_S
PULSE_TIMEOUT_S = 60.0
BAD_LINE = re.compile(r"assert|got signal|\[FATAL\]|should not have happened|damaged data|terminate called", re.IGNORECASE)
LINES_SHOWN_MOST = 10


class SeveralCampaign(Campaign):
    def __init__(
        self,
        folder: Path,
        servers: int,
        *,
        seed: str = "1",
        preset: str = "release",
        options: tuple[str, ...] = (),
        kinds: Sequence[str] = KINDS,
        profile: str = PROFILE,
    ) -> None:
        super().__init__(folder, "STRATA", preset, options)
        self._count = servers
        self._preset = preset
        self._profile = profile
        self._rng = random.Random(f"clusters {seed}")
        self.fault_kinds = kinds
        self._clusters = 0
        self._kept = 0
        self._histories = 0  # on this cluster
        self._cluster: Several | None = None
        self._faults: Faults | None = None
        self.struck: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.fenced = self.stalls = 0

    # --- clusters ---

    @property
    def cluster(self) -> Several:
        assert self._cluster is not None
        return self._cluster

    def start(self) -> None:
        self._clusters += 1
        self._histories = 0
        slots, pool = self._rng.choice(SIZES)
        place = self._folder / f"cluster-{self._clusters}"
        shutil.rmtree(place, ignore_errors=True)
        options = (*target.DURABLE, f"--strata-buffer-pool-size={pool}", *self._options)
        self._cluster = Several(place, preset=self._preset, slots=slots, server_options=options, profile=self._profile)
        first = self.cluster.add()
        workload.create_table(first, self.engine)
        families.create_tables(first, self.engine)
        for sql in (
            f"CREATE TABLE {PULSE} (id INT PRIMARY KEY, n INT NOT NULL) ENGINE={self.engine}",
            f"INSERT INTO {PULSE} VALUES {', '.join(f'({i}, 0)' for i in range(self._count))}",
        ):
            first.query(sql, autocommit=True)
        for _ in range(self._count - 1):
            self.cluster.add()

    def stop(self, keep: bool = False) -> None:
        if self._cluster is None:
            return
        if self._faults is not None:
            self._faults.abandon()
        self._cluster.kill()
        if not keep:
            shutil.rmtree(self._cluster.folder, ignore_errors=True)
        self._cluster = None

    def _renew(self, failed: bool) -> None:
        self._kept += failed
        keep = failed and self._kept <= KEPT_MOST
        if keep:
            print(f"  the cluster is kept: {self.cluster.folder}", flush=True)
        self.stop(keep=keep)
        self.start()

    def _parts(self) -> list[BackgroundProcess]:
        return [*self.cluster.servers, self.cluster.memory, *self.cluster.storage]

    # --- histories ---

    def one(self, plan: Plan, seconds: float) -> Report:
        self._maybe_renew()
        report = super().one(plan, seconds)
        if not report.ok:
            self._renew(failed=True)
        return report

    def family(self, plan: Plan, seconds: float) -> families.Report:
        self._maybe_renew()
        report = super().family(plan, seconds)
        if not report.ok:
            self._renew(failed=True)
        return report

    def _read_final(self, history: History) -> list[str]:
        try:
            return super()._read_final(history)
        except (pymysql.MySQLError, OSError) as error:
            history.final = {}
            return [f"the end cannot be read: {error}"]

    def _judge(self, clients: list[families.Client]) -> families.Report:
        try:
            return super()._judge(clients)
        except (pymysql.MySQLError, OSError) as error:
            return families.Report(
                [f"the end cannot be read: {error}", *(text for client in clients for text in client.problems)]
            )

    def _maybe_renew(self) -> None:
        if self._histories >= HISTORIES_PER_CLUSTER:
            self._renew(failed=False)
        self._histories += 1

    # --- what is under them ---

    def _servers(self) -> Sequence[Server]:
        return self.cluster.servers

    def _excuses(self, number: int, text: str) -> bool:
        return self._faults is not None and self._faults.excuses(number, text)

    def _make_lists(self) -> None:
        self._rng.choice(self.cluster.servers).query(f"DELETE FROM {workload.DATABASE}.{workload.TABLE}", autocommit=True)

    def _make_families(self) -> None:
        families.empty_tables(self._rng.choice(self.cluster.servers))

    def _set_globals(self, plan: Plan) -> None:
        """Every commit is durable: what a server has not made durable no other one sees."""

    def _disturb(self, plan: Plan, seconds: float, clients: Sequence[AnyClient]) -> list[str]:
        strikes = draw(plan.seed, plan.faults, seconds, self._count, len(self.cluster.storage), self.fault_kinds)
        faults = self._faults = Faults(self.cluster, strikes)
        began = time.monotonic()
        faults.start()
        over_at = 0.0
        looked = began
        while not faults.problems and not any(client.problems for client in clients):
            now = time.monotonic()
            if now - looked > STALL_S:
                faults.machine_stood_still(now - looked)
            looked = now
            over_at = over_at or (now + LAST_WORK_S if faults.over() and plan.faults else 0.0)
            if now >= began + seconds and (now >= over_at > 0.0 or not plan.faults or now > began + seconds + STRIKES_TIMEOUT_S):
                break
            time.sleep(LOOK_S)
        faults.end()
        self.struck += faults.struck
        self.refused += faults.refused
        self.fenced += faults.fenced
        self.stalls += faults.stalls
        return faults.problems

    def _recover(self) -> list[str]:
        """Every server takes part again, and sees what the others do."""
        problems = self._log_problems()
        try:
            for server in self.cluster.servers:
                server.query(f"UPDATE {PULSE} SET n = n + 1", autocommit=True, read_timeout=PULSE_TIMEOUT_S)
            rows = {tuple(server.query(f"SELECT id, n FROM {PULSE}")) for server in self.cluster.servers}
        except (pymysql.MySQLError, OSError) as error:
            return [*problems, f"no pulse: {error}"]
        beats = {n for row in rows for _, n in row}
        if len(rows) != 1 or beats != {self._count * self._histories}:
            problems.append(f"after {self._count * self._histories} updates the servers show {sorted(rows)}")
        return problems

    def _log_problems(self) -> list[str]:
        found = []
        for part in self._parts():
            text = part.log.read_text(errors="replace") if part.log.exists() else ""
            lines = [line for line in text.splitlines() if BAD_LINE.search(line)]
            found += [f"{part.log}: {line}" for line in lines[:LINES_SHOWN_MOST]]
        return found
