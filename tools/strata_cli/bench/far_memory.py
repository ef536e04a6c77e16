"""`./strata bench farmem`: TPC-H in an unmodified DuckDB with most of its memory in a memory node, beside all of it local, and
beside what the kernel does by itself: swapping to the same memory node, to zram and to a disk.

A program that swaps has its whole memory limited, one on far memory only what it allocates; so the first gets what is local of
the second's far memory and, besides, what the second had outside of it: not its code, which others have mapped, too.

What is counted is said first: pages fetched, bytes both ways, faults. Time is beside it, as a ratio of the same program's with
all memory local, the variants in turns, the median of the rounds. Every variant must give the same answers.
"""

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .. import farmem, paths
from ..shell import StrataError, console
from . import results, servers, tpch

TIMEOUT_S = 1800.0
LOCAL = "local"
# Each way: its mode, and whether its memory node is reached over TCP; no memory node: None.
WAYS: dict[str, tuple[str, bool | None]] = {
    "shared memory": (farmem.UFFD, False),
    "tcp": (farmem.UFFD, True),
    "swap": (farmem.SWAP, False),
    "swap over tcp": (farmem.SWAP, True),
    "zram": (farmem.ZRAM, None),
    "disk": (farmem.DISK, None),
}
SWAP_BYTES = "4G"
PROGRAM = Path(__file__).with_name("tpch_in_duckdb.py")
MEBI = 1 << 20
TABLE_WIDTH = 140  # Of a file that it is printed to, too.


@dataclass(frozen=True)
class Plan:
    local: list[str]
    scale: float
    queries: list[int]
    policies: list[str]
    prefetch: list[int]
    link: str
    rounds: int
    ways: list[str]
    disk_iops: int = 0  # 0: as many as it can


@dataclass(frozen=True)
class Variant:
    way: str  # LOCAL, or of WAYS
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
    local_mib: float = 0.0  # memory of its own, at most, with what is outside of far memory; when swapping: all that is charged
    skipped: str = ""  # why it cannot be here


def variants(plan: Plan) -> Iterator[Variant]:
    yield Variant(LOCAL, "all", "", 0)
    for way in plan.ways:
        for local in plan.local:
            for policy in plan.policies if WAYS[way][0] == farmem.UFFD else ["kernel"]:
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
    outside: dict[str, int] = {}  # bytes, by how much was local
    with farmem.MemoryNode() as mapped, farmem.MemoryNode(tcp=True) as called:
        for turn in range(plan.rounds):
            for row in rows if turn % 2 == 0 else reversed(rows):
                variant = row.variant
                if row.skipped:
                    continue
                tcp = WAYS[variant.way][1] if variant.way != LOCAL else None
                place = None if tcp is None else called if tcp else mapped
                try:
                    measured = farmem.measure(place, _options(plan, variant, outside), command, TIMEOUT_S)
                except farmem.NotStartedError as why:
                    row.skipped = str(why)
                    continue
                expected = expected or answers(measured.said)
                if answers(measured.said) != expected:
                    raise StrataError(f"{variant}: other answers than before")
                _note(row, measured, outside)
    done = [row for row in rows if row.seconds]
    Console(highlight=False, width=max(console.width, TABLE_WIDTH)).print(_table(done))
    for row in rows:
        if row.skipped:
            console.print(f"{row.variant.way}, {row.variant.local}: skipped, {row.skipped}", markup=False)
    console.print(
        f"All {len(done)} variants gave the same answers to {len(plan.queries)} queries in each of {plan.rounds} rounds."
    )
    if json_file is not None:
        results.write(results.measured([asdict(row) for row in rows], asdict(plan), servers.machine()), json_file)


def _options(plan: Plan, variant: Variant, outside: dict[str, int]) -> farmem.Options:
    if variant.way == LOCAL:
        return farmem.Options()
    mode, tcp = WAYS[variant.way]
    link = "none" if tcp is None else plan.link
    if mode == farmem.UFFD:
        return farmem.Options(local=variant.local, policy=variant.policy, prefetch=variant.prefetch, link=link)
    return farmem.Options(
        mode=mode,
        local=str(bytes_of(variant.local) + outside.get(variant.local, 0)),
        far=SWAP_BYTES,
        prefetch=variant.prefetch,
        link=link,
        disk_folder=paths.BUILD if mode == farmem.DISK else None,
        disk_iops=plan.disk_iops if mode == farmem.DISK else 0,
    )


def bytes_of(size: str) -> int:
    """As the command line takes sizes: 16M."""
    units = {"K": 1 << 10, "M": MEBI, "G": 1 << 30}
    return int(size[:-1]) * units[size[-1].upper()] if size[-1].upper() in units else int(size)


def _note(row: Row, measured: farmem.Measured, outside: dict[str, int]) -> None:
    variant = row.variant
    if variant.way != LOCAL:
        row.local_mib = (measured.total("local_pages_max") * 4096 + measured.total("outside_bytes_max")) / MEBI
    if variant.way != LOCAL and WAYS[variant.way][0] == farmem.UFFD:
        outside[variant.local] = max(outside.get(variant.local, 0), measured.total("outside_anonymous_bytes_max"))
    row.seconds.append(sum(float(line.split()[1]) for line in measured.said.splitlines()))
    row.fetched, row.prefetched = measured.total("fetched"), measured.total("prefetched")
    row.bytes_in, row.bytes_out = measured.total("bytes_in"), measured.total("bytes_out")
    row.faults = measured.total("faults")
    row.us_per_fault = measured.total("service_ns") / 1000 / row.faults if row.faults else 0.0


def _table(rows: list[Row]) -> Table:
    table = Table(title="DuckDB, loading and queries; time of the queries alone")
    for name in (
        "way",
        "local",
        "MiB own",
        "policy",
        "prefetch",
        "faults",
        "fetched",
        "MiB in",
        "MiB out",
        "us/fault",
        "seconds",
        "slower",
    ):
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
        place = [variant.way, variant.local, f"{row.local_mib:.0f}", variant.policy, str(variant.prefetch)]
        table.add_row(*place, *counted, f"{seconds:.2f}", f"{seconds / base:.1f}x")
    return table
