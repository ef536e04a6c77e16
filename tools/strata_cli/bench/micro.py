"""The kernel's modules one by one (bench/micro, Google Benchmark), each beside what the machine allows."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import build_cmd, paths
from ..build_cmd import BuildType
from ..shell import StrataError, console, run_logged
from . import results, servers

PROGRAM = paths.preset_dir("release") / "bench" / "micro" / "strata_micro"
FOLDER = paths.BUILD / "bench" / "micro"
UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
LIMIT = "limit/"
TABLE_WIDTH = 100


@dataclass(frozen=True)
class Operation:
    """`limit` names one of the measured limits; the operation cannot need less than `times` of it."""

    name: str
    ns: float
    limit: str | None = None
    times: int = 1

    @property
    def is_limit(self) -> bool:
        return self.name.startswith(LIMIT)

    def as_json(self, limits: dict[str, float]) -> dict[str, object]:
        return {"name": self.name, "ns": self.ns, "limit": self.limit, "limit_ns": self.limit_ns(limits)}

    def limit_ns(self, limits: dict[str, float]) -> float | None:
        return limits[self.limit] * self.times if self.limit in limits else None


def run(filter_: str | None, seconds: float, json_file: Path | None) -> None:
    outcome = build_cmd.try_build(BuildType.release, ("strata_micro",))
    if not outcome.ok:
        raise StrataError(f"strata_micro did not build ({paths.relative(outcome.log)}):\n{outcome.tail(12)}")
    operations = _measured(filter_, seconds)
    limits = {one.name.removeprefix(LIMIT): one.ns for one in operations if one.is_limit}
    Console(highlight=False, width=max(console.width, TABLE_WIDTH)).print(table(operations, limits))
    console.print("CPU time of an operation in memory; elapsed time of one that waits or runs in several threads, per operation")
    if json_file:
        rows = [one.as_json(limits) for one in operations]
        settings = {"filter": filter_, "seconds": seconds}
        results.write(results.measured(rows, settings, servers.machine()), json_file)
        console.print(f"written: {paths.relative(json_file.resolve())}")


def _measured(filter_: str | None, seconds: float) -> list[Operation]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    out = FOLDER / "out.json"
    command = [str(PROGRAM), f"--benchmark_out={out}", "--benchmark_out_format=json", f"--benchmark_min_time={seconds}"]
    if filter_:
        command.append(f"--benchmark_filter={LIMIT}|{filter_}")
    try:
        with console.status("measuring"):
            environment = {"STRATA_MICRO_DIRECTORY": str(FOLDER)}
            outcome = run_logged(command, paths.LOGS / "bench-micro.log", env=environment, timeout_s=3600)
        if not outcome.ok:
            raise StrataError(f"strata_micro failed ({paths.relative(outcome.log)}):\n{outcome.tail(12)}")
        return parse(json.loads(out.read_text()))
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


def parse(content: dict[str, Any]) -> list[Operation]:
    operations = []
    for one in content["benchmarks"]:
        per_second = one.get("items_per_second")
        elapsed = "real_time" in one["name"]
        ns = 1e9 / per_second if per_second else one["real_time" if elapsed else "cpu_time"] * UNITS[one["time_unit"]]
        ns = one.get("median_ns", ns)  # of an operation whose single times count
        name = re.sub(r"/(real_time|iterations:\d+)", "", one["name"])
        found = re.fullmatch(r"limit: (\w+)(?: x(\d+))?", one.get("label", ""))
        limit, times = (found[1], int(found[2] or 1)) if found else (None, 1)
        operations.append(Operation(name, ns, limit, times))
    return operations


def table(operations: list[Operation], limits: dict[str, float]) -> Table:
    out = Table(box=None, header_style="bold")
    for name in ("operation", "time", "limit", "its time", "times the limit"):
        out.add_column(name, justify="left" if name in ("operation", "limit") else "right", no_wrap=True)
    for one in operations:
        limit_ns = one.limit_ns(limits)
        if one.limit is None or limit_ns is None:
            out.add_row(one.name, duration(one.ns), "", "", "")
            continue
        times = f" x {one.times}" if one.times > 1 else ""
        out.add_row(one.name, duration(one.ns), one.limit + times, duration(limit_ns), f"{one.ns / limit_ns:.1f}")
    return out


def markdown(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Of what run() has written: the operations, with their limits."""
    lines = ["| operation | time | limit | its time | times the limit |", "|---|---|---|---|---|"]
    for row in rows:
        if row["name"].startswith(LIMIT):
            continue
        limit_ns = row["limit_ns"]
        beside = [row["limit"], duration(limit_ns), f"{row['ns'] / limit_ns:.1f}"] if limit_ns else ["", "", ""]
        lines.append(f"| {' | '.join([row['name'], duration(row['ns']), *beside])} |")
    return lines


def duration(ns: float) -> str:
    return f"{ns:,.1f} ns" if ns < 10_000 else f"{ns / 1e3:,.1f} us" if ns < 10_000_000 else f"{ns / 1e6:,.1f} ms"
