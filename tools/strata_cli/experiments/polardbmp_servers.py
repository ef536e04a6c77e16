"""Servers that write the same tables, whichever system they are of: what loads them (sysbench, with its own mixes or with ours),
and what that took."""

import os
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import dilation, paths
from ..bench import process, sysbench
from ..bench.comparison import STRATA
from ..bench.own_mix import Facts, OwnMix, tallied
from ..bench.servers import database
from ..bench.tatp import Tatp
from ..bench.warehouses import Warehouses
from ..dilation import CLIENT, Emulation
from ..process import BackgroundProcess
from ..server import Server
from ..shell import Outcome, StrataError, run_logged
from .courses import QUIET_S
from .polardbmp import INSERTS, PRODUCTION, TATP, TPCC, Plan

SCRIPTS = paths.ROOT / "bench" / "sysbench"
GROUPS, WIDE = "groups", "secondary_indexes"
LIMIT_S = 300.0  # beyond the time of a run
IGNORED = re.compile(r"ignored errors:\s+(\d+)")
MEAN = re.compile(r"Latency \(ms\):.*?avg:\s+([\d.]+)", re.DOTALL)
PERCENTILE = re.compile(r"(\d+)th percentile:\s+([\d.]+)")


@dataclass
class Measured:
    rate: float
    percentile_ms: float | None
    mean_ms: float
    costs: dict[str, float]
    void: str


def own_mix(plan: Plan) -> OwnMix | None:
    """None: the loads are of sysbench's tables."""
    if plan.loads == (TATP,):
        return Tatp(plan.rows, plan.most_servers, STRATA)
    if plan.loads == (TPCC,):
        return Warehouses(plan.warehouses, plan.most_servers, plan.rows, STRATA)
    return None


class Servers(ABC):
    """Of one system. Not thread-safe, but for loads of one server each."""

    engine: str
    name_variable: str  # tells a server's name, which ends with its number

    def __init__(self, plan: Plan, emulation: Emulation | None) -> None:
        self.plan = plan
        self._emulation = emulation
        self._has_begun = False  # Time is emulated from now on.
        self._mix = own_mix(plan)
        self._facts: Facts = {}
        self._counted: Counter[str] = Counter()  # by the clients of our own mix, since its tables were made

    @abstractmethod
    def use(self, count: int) -> None:
        """So many servers serve from now on."""

    @abstractmethod
    def serving(self) -> Sequence[Server]: ...

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """What servers and other nodes have counted, by the names of columns."""

    @abstractmethod
    def cpu_us(self) -> dict[str, int]:
        """By the names of columns."""

    # --- data --------------------------------------------------------------------------------------------------

    def make_tables(self, server: Server) -> None:
        server.query(f"CREATE DATABASE IF NOT EXISTS {database(self.engine)}")
        if self._mix is not None:
            self._mix.load(partial(self.ask, server))
            self._facts = self._mix.facts(partial(self.ask, server))
        elif INSERTS not in self.plan.loads:
            tables = self.plan.shared_group * self.plan.tables
            self._sysbench("oltp_read_write", "prepare", [server], 1, LIMIT_S, *self._sizes(tables))

    def ask(self, server: Server, text: str) -> list[tuple[Any, ...]]:
        limit_s = LIMIT_S * self.plan.dilation
        return server.query(text, database=database(self.engine), autocommit=True, read_timeout=limit_s)

    def check(self) -> None:
        """Raises StrataError unless every server has the rows of all that was committed, and no others."""
        if self._mix is None:
            return
        for server in self.serving():
            if found := self._mix.problems(partial(self.ask, server), self._facts, self._counted):
                said = "; ".join(found)
                raise StrataError(f"{server.name} does not hold what {sum(self._counted.values()):,} counts say: {said}")

    def checked(self) -> str:
        """In words, of the last check."""
        counted = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in sorted(self._counted.items()))
        return f"every server has what was committed: {counted}"

    # --- loads -------------------------------------------------------------------------------------------------

    def run(self, load: str, shared: int, servers: Sequence[Server], threads: int, seconds: int, *more: str) -> Outcome:
        """`threads`: of all servers together. `seconds`: of emulated time, if it is."""
        limit_s = (seconds + LIMIT_S) * self.plan.dilation
        wanted = [f"--time={seconds}", *more]
        if self._mix is not None:
            wanted += self._mix.options(shared, len(servers))
            outcome = self._sysbench(self._mix.script, "run", servers, threads, limit_s, *wanted)
            self._counted += tallied(self._mix, outcome.log.read_text(), sysbench.transactions(outcome))
            return outcome
        wanted += self._sizes(2 * self.plan.tables)
        if load != INSERTS:
            wanted += [f"--shared={shared}", f"--shared_group={self.plan.shared_group}", "--rand-type=uniform"]
            wanted += [f"--name_variable={self.name_variable}"]
        mix = load if load == PRODUCTION else f"oltp_{load}"
        return self._sysbench(WIDE if load == INSERTS else GROUPS, "run", servers, threads, limit_s, *wanted, mix=mix)

    def _sizes(self, tables: int) -> list[str]:
        return [f"--tables={tables}", f"--table-size={self.plan.rows}", f"--mysql-storage-engine={self.engine}"]

    def _sysbench(
        self, script: str, action: str, servers: Sequence[Server], threads: int, limit_s: float, *more: str, mix: str = ""
    ) -> Outcome:
        command = [
            "sysbench",
            script if action == "prepare" else str(SCRIPTS / f"{script}.lua"),
            "--db-driver=mysql",
            # Connections go to them in turns.
            f"--mysql-socket={','.join(str(server.socket) for server in servers)}",
            "--mysql-user=root",
            f"--mysql-db={database(self.engine)}",
            f"--threads={threads}",
            f"--percentile={self.plan.percentile}",
            *more,
            action,
        ]
        slower = self._emulation if self._has_begun and action == "run" else None
        emulated = slower.environment(CLIENT, CLIENT) if slower else {}
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
        ignored, mean, percentile = IGNORED.search(text), MEAN.search(text), PERCENTILE.search(text)
        costs = {name: value / count for name, value in {**grown, **spent}.items()}
        costs["refused"] = (int(ignored[1]) if ignored else 0) / count
        rate, (of_machine, void) = sysbench.parse(outcome).value, machine()
        if self._mix is not None:
            rate = self._mix.rate(rate, tallied(self._mix, text, count))
        percentile_ms = float(percentile[2]) if percentile else None
        return Measured(rate, percentile_ms, float(mean[1]) if mean else 0.0, costs | of_machine, void)

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

    def wait_until_quiet(self) -> None:
        """CPU time for a second of emulated time, if time is emulated. The registry is not."""
        slower = self.plan.dilation if self._has_begun else 1.0
        process.wait_until_quiet(lambda: sum(self.cpu_us().values()) / 1e6 * slower, QUIET_S * slower)


def cpu_us_of(parts: Sequence[BackgroundProcess]) -> int:
    return int(1e6 * sum(process.cpu_s(pid) for part in parts if (pid := part.pid()) is not None))
