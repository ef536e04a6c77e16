"""sysbench 1.0 on both engines, and the loading and index building of its tables."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from .. import paths, setup_cmd
from ..server import Server
from ..shell import Outcome, StrataError, console, run_logged
from . import process, report
from .comparison import INNODB, STRATA, Row, Sample, in_turns
from .servers import IN_MEMORY, ON_DISK, Memory, bench_server, database

# sysbench's rows take about 210 bytes with their index: this is 1.3 GiB in 8 tables.
ON_DISK_ROWS = 800_000
WARM_UP_S = 5


class Workload(StrEnum):
    point_select = "point_select"
    read_only = "read_only"
    select_random_ranges = "select_random_ranges"
    read_write = "read_write"
    write_only = "write_only"
    update_index = "update_index"
    update_non_index = "update_non_index"
    insert = "insert"
    delete = "delete"
    bulk_load = "bulk_load"
    add_index = "add_index"


LOADING = (Workload.bulk_load, Workload.add_index)
# These change how many rows the tables hold: a measurement gets new tables once more than USED_UP of the rows have been changed.
CONSUMING = (Workload.delete, Workload.insert)
USED_UP = 0.02
# Deletes by sysbench's usual distribution hit the same few rows, which soon are gone: an engine that was fast before would then
# be given more statements that delete nothing.
UNIFORM = "--rand-type=uniform"
READING = (Workload.point_select, Workload.read_only, Workload.select_random_ranges)
QUICK = (Workload.point_select, Workload.read_only, Workload.read_write, Workload.write_only, Workload.update_index)


class Dataset(StrEnum):
    memory = "memory"
    disk = "disk"


@dataclass(frozen=True)
class Plan:
    workloads: tuple[Workload, ...]
    engines: tuple[str, ...] = (STRATA, INNODB)
    datasets: tuple[Dataset, ...] = (Dataset.memory,)
    threads: tuple[int, ...] = (1, 8, 64)
    tables: int = 8
    rows: int = 100_000
    seconds: int = 20
    rounds: int = 5
    isolation: str = "REPEATABLE-READ"
    rate: int = 0  # transactions offered a second; 0: as many as the clients get through

    def rows_of(self, dataset: Dataset) -> int:
        return self.rows if dataset == Dataset.memory else max(self.rows, ON_DISK_ROWS)

    def estimate_s(self) -> float:
        runs = len([w for w in self.workloads if w not in LOADING]) * len(self.threads)
        each = (self.seconds + 1) * self.rounds * len(self.engines)
        loads = sum(self.tables * self.rows_of(d) / 80_000 for d in self.datasets) * len(self.engines)
        changing = len([w for w in self.workloads if w in CONSUMING]) * len(self.threads) * self.rounds
        if self.datasets == (Dataset.disk,):
            changing = -(-changing // 4)  # large tables are used up later
        loading = len([w for w in self.workloads if w in LOADING]) * self.rounds
        return len(self.datasets) * runs * each + loads * (1 + changing + loading)

    def settings(self) -> dict[str, object]:
        return {
            "isolation": self.isolation,
            "rate": self.rate,
            "rounds": self.rounds,
            "rows": self.rows,
            "seconds": self.seconds,
            "tables": self.tables,
        }


def run(plan: Plan, json_file: Path | None = None, plot_file: Path | None = None) -> None:
    setup_cmd.ensure_setup()
    console.print(f"sysbench, {' and '.join(plan.engines)} in turns: about {plan.estimate_s() / 60:.0f} minutes")
    rows: list[Row] = []
    for dataset in plan.datasets:
        for row in _on_dataset(plan, dataset):
            rows.append(row)
            report.save(rows, plan.settings(), json_file)
            console.print(report.line(row))
    report.publish(rows, plan.settings(), json_file, plot_file)


def _on_dataset(plan: Plan, dataset: Dataset) -> Iterator[Row]:
    memory: Memory = IN_MEMORY if dataset == Dataset.memory else ON_DISK
    with bench_server(memory, plan.engines) as server:
        server.query(f"SET GLOBAL tx_isolation='{plan.isolation}'")
        bench = Bench(server, plan.tables, plan.rows_of(dataset))
        for workload in (w for w in plan.workloads if w in LOADING):
            yield in_turns(Row(workload, 1, dataset, "rows/s"), plan.engines, plan.rounds, bench.loader(workload))
        rest = [w for w in plan.workloads if w not in LOADING]
        if not rest:
            return
        for engine in plan.engines:
            bench.load(engine)
        for workload in sorted(rest, key=lambda w: w in CONSUMING):
            for threads in plan.threads:
                if workload not in CONSUMING:
                    for engine in plan.engines:
                        bench.run(engine, workload, threads, WARM_UP_S)
                row = Row(workload, threads, dataset, "transactions/s")
                measure = partial(bench.measure, workload=workload, threads=threads, seconds=plan.seconds, rate=plan.rate)
                yield in_turns(row, plan.engines, plan.rounds, measure)


class Bench:
    """sysbench's tables in one server, once per engine."""

    def __init__(self, server: Server, tables: int, rows: int, pids: Callable[[], list[int]] | None = None) -> None:
        """`pids`: the processes whose CPU time counts, if they are more than the server."""
        self._server, self._tables, self._rows = server, tables, rows
        self._pids = pids or self._pid_of_server
        self.environment: Mapping[str, str] = {}  # of sysbench
        self._changed: dict[str, int] = {}  # transactions that wrote, since the tables were made

    def load(self, engine: str) -> float:
        """Makes the tables anew; returns rows per second."""
        self._sysbench(engine, "oltp_read_write", 8, "cleanup", 600)
        started = time.monotonic()
        # One thread: sysbench gives each thread whole tables, and a bulk load by one client is what users do.
        self._sysbench(engine, "oltp_read_write", 1, "prepare", 7200)
        self._changed[engine] = 0
        return self._tables * self._rows / (time.monotonic() - started)

    def loader(self, workload: Workload) -> Callable[[str], Sample]:
        return self._bulk_load if workload == Workload.bulk_load else self._add_index

    def _bulk_load(self, engine: str) -> Sample:
        return Sample(self.load(engine))

    def _add_index(self, engine: str) -> Sample:
        if not self._server.query(f"SHOW TABLES FROM {database(engine)}"):
            self.load(engine)
        # Of every table: one of a small data set takes too short a time to tell.
        tables = [f"{database(engine)}.sbtest{number}" for number in range(1, self._tables + 1)]
        started = time.monotonic()
        for table in tables:
            self._server.query(f"ALTER TABLE {table} ADD INDEX extra (c)")
        rate = len(tables) * self._rows / (time.monotonic() - started)
        for table in tables:
            self._server.query(f"ALTER TABLE {table} DROP INDEX extra")
        return Sample(rate)

    def measure(self, engine: str, workload: Workload, threads: int, seconds: int, rate: int = 0) -> Sample:
        if workload in CONSUMING and self._changed.get(engine, 0) > USED_UP * self._tables * self._rows:
            self.load(engine)
        cpu_s, machine = self._cpu_s(), process.MachineTime.now()
        outcome = self.run(engine, workload, threads, seconds, rate)
        cpu_us = (self._cpu_s() - cpu_s) * 1e6 / transactions(outcome)
        if workload not in READING:
            self._changed[engine] = self._changed.get(engine, 0) + transactions(outcome)
        return replace(parse(outcome), cpu_us=cpu_us, stolen=machine.stolen_since())

    def _cpu_s(self) -> float:
        return sum(process.cpu_s(pid) for pid in self._pids())

    def _pid_of_server(self) -> list[int]:
        pid = self._server.pid()
        return [] if pid is None else [pid]

    def run(self, engine: str, workload: Workload, threads: int, seconds: int, rate: int = 0) -> Outcome:
        return self.run_for(engine, workload, threads, seconds + 300, f"--time={seconds}", f"--rate={rate}")

    def run_for(self, engine: str, workload: Workload, threads: int, timeout_s: float, *length: str) -> Outcome:
        """`length`: --time=..., --events=...; both are limits."""
        script = workload if workload.startswith("select_") else f"oltp_{workload}"
        evenly = [UNIFORM] if workload == Workload.delete else []
        return self._sysbench(engine, script, threads, "run", timeout_s, "--percentile=99", *evenly, *length)

    def run_script(self, engine: str, script: Path, threads: int, timeout_s: float, *more: str) -> Outcome:
        """A load that is not among sysbench's own, on the same tables."""
        return self._sysbench(engine, str(script), threads, "run", timeout_s, "--percentile=99", *more)

    def _sysbench(self, engine: str, script: str, threads: int, action: str, timeout_s: float, *more: str) -> Outcome:
        command = [
            "sysbench",
            script,
            "--db-driver=mysql",
            f"--mysql-socket={self._server.socket}",
            "--mysql-user=root",
            f"--mysql-db={database(engine)}",
            f"--mysql-storage-engine={engine}",
            f"--threads={threads}",
            f"--tables={self._tables}",
            f"--table-size={self._rows}",
            *more,
            action,
        ]
        log = log_of(script, action, engine)
        outcome = run_logged(command, log, env=self.environment, timeout_s=timeout_s)
        if not outcome.ok:
            raise StrataError(f"sysbench failed ({paths.relative(outcome.log)}):\n{outcome.tail(12)}")
        return outcome


def log_of(script: str | Path, action: str, engine: str) -> Path:
    return paths.LOGS / f"bench-{Path(script).stem}-{action}-{engine}.log"


def parse(outcome: Outcome) -> Sample:
    text = outcome.log.read_text()
    rate = re.search(r"transactions:\s+\d+\s+\(([\d.]+) per sec", text)
    p99 = re.search(r"99th percentile:\s+([\d.]+)", text)
    if not rate:
        raise StrataError(f"sysbench printed no rate ({paths.relative(outcome.log)})")
    return Sample(float(rate[1]), float(p99[1]) if p99 else None)


def transactions(outcome: Outcome) -> int:
    found = re.search(r"transactions:\s+(\d+)\s", outcome.log.read_text())
    if not found or int(found[1]) == 0:
        raise StrataError(f"sysbench reports no transactions ({paths.relative(outcome.log)})")
    return int(found[1])


def sweep(
    engine: str,
    seconds: int,
    *,
    preset: str = "release",
    env: Mapping[str, str] | None = None,
    threads: int = 8,
    rows: int = 5_000,
) -> dict[Workload, str]:
    """Every workload after one another on fresh tables: empty text, or what went wrong."""
    problems: dict[Workload, str] = {}
    with bench_server(Memory(256 << 20, 256 << 20), [engine], preset=preset, env=env) as server:
        bench = Bench(server, 2, rows)
        for workload in (w for w in Workload if w not in LOADING):
            try:
                bench.load(engine)
                bench.run(engine, workload, threads, seconds)
                problems[workload] = ""
            except StrataError as error:
                problems[workload] = str(error)
    return problems


def chosen(names: Sequence[Workload] | None, quick: bool) -> tuple[Workload, ...]:
    return tuple(names) if names else QUICK if quick else tuple(Workload)
