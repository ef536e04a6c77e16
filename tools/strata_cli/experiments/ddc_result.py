"""What an experiment of ddc.py is about, and what was measured."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import mean

from .ddc_sessions import ALL_LOCAL as LOCAL
from .openaurora import Finding

MONETDB, POSTGRESQL, SPARK = "MonetDB", "PostgreSQL", "Spark"
QUERIES = tuple(range(1, 23))
PAGE = 4096
MIB = 1 << 20
SHARES = {"40 %": 0.4, "10 %": 0.1, "0.6 %": 0.006}  # of the data; 4 GB, 1 GB and 64 MB in the paper
LEAST_LOCAL = 1 << 20  # a query holds some dozens of pages at once
# A fetched page over 25 Gb/s RDMA, as `--link rdma25g` models it: 3 us, and 4 KiB at 3.1 GB/s.
MODELLED_FETCH_S = 4.3e-6


SCALES = "scales"  # a kind of plan: by the size of the data


@dataclass(frozen=True)
class Plan:
    name: str
    kind: str
    system: str = POSTGRESQL
    scale: float = 0.1
    queries: tuple[int, ...] = QUERIES
    link: str = "none"
    disk_iops: int = 3000  # of the disk that a server without far memory spills to

    def shortened(self) -> "Plan":
        # The least scale is a fifth of the plan's there, and below 0.01 TPC-H has parts with the same supplier twice.
        return replace(self, scale=0.05 if self.kind == SCALES else 0.01)


@dataclass
class Row:
    setup: str
    query: str  # or what belongs to it: a join algorithm, a mix of queries, a scale
    seconds: float
    remote_bytes: int = 0  # fetched; with a disk: read from where it was swapped to
    faults: int = 0
    peak_bytes: int = 0
    series: list[float] = field(default_factory=list)  # seconds after each query of a mix
    note: str = ""  # why there is no figure


@dataclass
class Result:
    plan: Plan
    data_bytes: int
    rows: list[Row] = field(default_factory=list)

    def setups(self) -> list[str]:
        return list(dict.fromkeys(row.setup for row in self.rows))

    def names(self) -> list[str]:
        return list(dict.fromkeys(row.query for row in self.rows))

    def of(self, setup: str, query: str) -> list[Row]:
        return [row for row in self.rows if (row.setup, row.query) == (setup, query) and not row.note]

    def has(self, setup: str, query: str) -> bool:
        return bool(self.of(setup, query))

    def note(self, setup: str, query: str) -> str:
        return next((row.note for row in self.rows if (row.setup, row.query) == (setup, query)), "")

    def seconds(self, setup: str, query: str) -> float:
        return mean(row.seconds for row in self.of(setup, query))

    def fetched(self, setup: str, query: str) -> float:
        return mean(row.remote_bytes for row in self.of(setup, query))

    def slowdown(self, setup: str, query: str, to: str = LOCAL) -> float:
        return self.seconds(setup, query) / self.seconds(to, query)

    def modelled(self, setup: str, query: str) -> float | None:
        """All local, and each fetched page over the modelled link; None: not known."""
        if not self.has(LOCAL, query) or not self.has(setup, query):
            return None
        return self.seconds(LOCAL, query) + self.fetched(setup, query) / PAGE * MODELLED_FETCH_S

    def average(self, setup: str, without: str = "") -> float:
        both = [name for name in self.names() if name != without and self.has(setup, name) and self.has(LOCAL, name)]
        return mean(self.slowdown(setup, name) for name in both)

    def share_bytes(self, share: str) -> int:
        return share_of(self.data_bytes, SHARES[share])


def share_of(data_bytes: int, share: float) -> int:
    return max(LEAST_LOCAL, round(data_bytes * share) // PAGE * PAGE)


@dataclass(frozen=True)
class Said:
    """What the paper says in words, and what is so here."""

    what: str
    paper: str
    ours: str
    agrees: bool

    def sentence(self) -> str:
        return f"{self.what}: {self.ours} here; in the paper {self.paper}; {'agrees' if self.agrees else 'does not agree'}."


@dataclass(frozen=True)
class Experiment:
    plan: Plan
    title: str
    paper: str
    findings: Callable[[Result], "list[Finding | Said]"]
