"""`./strata bench farmem`: TPC-H in an unmodified DuckDB with most of its memory in a memory node, beside all of it local.

What is counted is said first: pages fetched, bytes both ways, faults. Time is beside it, as a ratio of the same program's with
all memory local, the variants in turns, the median of the rounds. Every variant must give the same answers.
"""

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from .. import farmem, paths
from ..shell import StrataError, console
from . import results, servers, tpch

TIMEOUT_S = 1800.0
PROGRAM = Path(__file__).with_name("tpch_in_duckdb.py")
MEBI = 1 << 20
TABLE_WIDTH = 130  # Of a file that it is printed to, too.


@dataclass(frozen=True)
class Plan:
    local: list[str]
    scale: float
    queries: list[int]
    policies: list[str]
    prefetch: list[int]
    link: str
    rounds: int


@dataclass(frozen=True)
class Variant:
    way: str  # local, shared memory, tcp
    local: str
    policy: str
    prefetch: int


@dataclass
class Row:
    variant: Variant
    seconds: list[float]  # of the queries, without loading; one per round
    fetched: int = 0
    prefetched: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    faults: int = 0
    us_per_fault: float = 0.0


def variants(plan: Plan) -> Iterator[Variant]:
    yield Variant("local", "all", "", 0)
    for way in ("shared memory", "tcp"):
        for local in plan.local:
            for policy in plan.policies:
                for prefetch in plan.prefetch:
                    yield Variant(way, local, policy, prefetch)


def command_of(scale: float, queries: list[int]) -> list[str]:
    data = tpch.generated(scale)
    numbers = ",".join(map(str, queries))
    schema, texts = tpch.SOURCES / "schema.sql", tpch.SOURCES / "queries"
    return [str(part) for part in (paths.venv_bin("python3"), PROGRAM, data, schema, texts, scale, numbers)]


def answers(said: str) -> list[tuple[str, str, str]]:
    """Of each query its number, how many rows, and their digest."""
    return [(number, rows, digest) for number, _, rows, digest in map(str.split, said.splitlines())]


def run(plan: Plan, json_file: Path | None) -> None:
    command = command_of(plan.scale, plan.queries)
    rows = [Row(variant, []) for variant in variants(plan)]
    expected: list[tuple[str, str, str]] = []
    with farmem.MemoryNode() as mapped, farmem.MemoryNode(tcp=True) as called:
        places = {"local": None, "shared memory": mapped, "tcp": called}
        for turn in range(plan.rounds):
            for row in rows if turn % 2 == 0 else reversed(rows):
                variant = row.variant
                options = farmem.Options(local=variant.local, policy=variant.policy, prefetch=variant.prefetch, link=plan.link)
                measured = farmem.measure(places[variant.way], options, command, TIMEOUT_S)
                expected = expected or answers(measured.said)
                if answers(measured.said) != expected:
                    raise StrataError(f"{variant}: other answers than before")
                _note(row, measured)
    console.print(_table(rows), width=TABLE_WIDTH)
    console.print(
        f"All {len(rows)} variants gave the same answers to {len(plan.queries)} queries in each of {plan.rounds} rounds."
    )
    if json_file is not None:
        results.write(results.measured([asdict(row) for row in rows], asdict(plan), servers.machine()), json_file)


def _note(row: Row, measured: farmem.Measured) -> None:
    row.seconds.append(sum(float(line.split()[1]) for line in measured.said.splitlines()))
    row.fetched, row.prefetched = measured.total("fetched"), measured.total("prefetched")
    row.bytes_in, row.bytes_out = measured.total("bytes_in"), measured.total("bytes_out")
    row.faults = measured.total("faults")
    row.us_per_fault = measured.total("service_ns") / 1000 / row.faults if row.faults else 0.0


def _table(rows: list[Row]) -> Table:
    table = Table(title="DuckDB, loading and queries; time of the queries alone")
    for name in ("way", "local", "policy", "prefetch", "faults", "fetched", "MiB in", "MiB out", "us/fault", "seconds", "slower"):
        table.add_column(name, justify="left" if name in ("way", "policy") else "right")
    base = statistics.median(rows[0].seconds)
    for row in rows:
        variant, seconds = row.variant, statistics.median(row.seconds)
        counted = [
            f"{row.faults}",
            f"{row.fetched}",
            f"{row.bytes_in / MEBI:.0f}",
            f"{row.bytes_out / MEBI:.0f}",
            f"{row.us_per_fault:.1f}",
        ]
        place = [variant.way, variant.local, variant.policy, str(variant.prefetch)]
        table.add_row(*place, *counted, f"{seconds:.2f}", f"{seconds / base:.1f}x")
    return table
