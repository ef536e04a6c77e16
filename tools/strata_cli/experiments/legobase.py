"""Figures of "Towards Cost-Effective and Elastic Cloud Database Deployment via Memory Disaggregation" (LegoBase, 2021).

The paper's system is MySQL with 20 to 40 GB of data, its remote memory reached over RDMA of 25 Gb/s, on machines of their own;
here the data is some ten megabytes, the memory node is reached over shared memory, and all processes share one machine.
Percentages are of the data: so much of it fits into the local buffer pool.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from ..profile_list import ALL, MONOLITHIC
from ..shell import StrataError
from .openaurora import Finding

ADDRESSES_OFF = ("--strata-lego-remote-addresses=OFF",)
TPCC, READ_WRITE = "tpcc", "read_write"
ALL_LOCAL = 1.5  # Of the data: nothing is ever given up.
OWN, WRITTEN, POOLED = "own", "written", "pooled"  # Which kind of profile.


def profile_of(kind: str) -> str:
    """All in one server; pages on storage nodes and in local memory; the same with a memory node between."""
    if kind == OWN:
        return MONOLITHIC
    for profile in ALL:
        if profile.of_cluster and profile.pages_are_written and profile.has_memory_nodes == (kind == POOLED):
            return profile.name
    raise StrataError("no profile has memory nodes in this version")


@dataclass(frozen=True)
class Setup:
    label: str
    kind: str
    share: float  # of the data that fits into the local pool
    options: tuple[str, ...] = ()  # of the compute node
    loses_memory: bool = False  # when it is struck: its memory node as well, with all it holds


@dataclass(frozen=True)
class Phase:
    """Of a load that changes. Cores are a share of the machine's, as the paper's are of 32."""

    threads: int
    cores: float
    moves: bool  # to another compute node; else the cores are changed in place, a little at a time


@dataclass(frozen=True)
class Plan:
    name: str
    setups: tuple[Setup, ...]
    load: str = READ_WRITE
    crashes: bool = False  # kill -9 in the middle
    phases: tuple[Phase, ...] = ()
    tables: int = 8
    rows: int = 20_000
    warehouses: int = 1
    threads: int = 8
    seconds: int = 10  # of a run; of a phase; before the crash, and three times as long behind it
    link: str = "none"
    memory: str = "1G"

    def settings(self) -> dict[str, object]:
        """Measurements with the same ones can be compared with each other."""
        size = {"warehouses": self.warehouses} if self.load == TPCC else {"tables": self.tables, "rows": self.rows}
        rest = {"threads": self.threads, "seconds": self.seconds, "link": self.link, "memory": self.memory}
        return {"load": self.load, **size, **rest}


@dataclass
class Run:
    """One measurement of one setup."""

    setup: str
    tps: float = 0.0
    p99_ms: float | None = None
    series: list[float] | None = None  # transactions a second, each second
    marks: dict[str, float] | None = None  # what happened when, in seconds; how long it took


@dataclass
class Result:
    plan: Plan
    data_bytes: int
    runs: list[Run]
    commits: list[str]
    machine: dict[str, object]

    def of(self, label: str) -> list[Run]:
        found = [run for run in self.runs if run.setup == label]
        if not found:
            raise StrataError(f"nothing was measured for {label}")
        return found

    def tps(self, label: str) -> float:
        return median(run.tps for run in self.of(label))

    def p99(self, label: str) -> float:
        return median(run.p99_ms or 0.0 for run in self.of(label))

    def mark(self, label: str, name: str) -> float:
        return median((run.marks or {})[name] for run in self.of(label))

    def is_whole(self) -> bool:
        return {run.setup for run in self.runs} == {setup.label for setup in self.plan.setups}


@dataclass(frozen=True)
class Bar:
    """A value that the paper gives by itself, and ours."""

    what: str
    paper: float
    ours: float
    unit: str
    more_is_better: bool = False

    @property
    def agrees(self) -> bool:
        return self.ours >= self.paper if self.more_is_better else self.ours <= self.paper


@dataclass(frozen=True)
class Experiment:
    plan: Plan
    title: str
    paper: str  # where in it
    compare: Callable[[Result], list[Finding | Bar]]

    def findings(self, result: Result) -> list[Finding | Bar]:
        return self.compare(result) if result.is_whole() else []


def _share(share: float) -> str:
    return f"{share:.0%} local"


def _figure_11(result: Result) -> list[Finding | Bar]:
    """§7.2 and §7.3; the last one of §7.2's other load."""
    base = "all local"

    def tps(share: float) -> float:
        return result.tps(_share(share)) / result.tps(base)

    def p99(share: float) -> float:
        return result.p99(_share(share)) / result.p99(base) if result.p99(base) else 0.0

    return [
        Bar("throughput with 10 % local to all local", 0.91, tps(0.1), "", more_is_better=True),
        Bar("99th percentile with 10 % local to all local", 1.10, p99(0.1), ""),
        Bar("throughput with 75 % local to all local", 0.9618, tps(0.75), "", more_is_better=True),
        Bar("99th percentile with 75 % local to all local", 1.0442, p99(0.75), ""),
        Finding("throughput with 10 % local and nothing behind it", 0.39, result.tps("10%, no memory node") / result.tps(base)),
    ]


def _figure_14(result: Result) -> list[Finding | Bar]:
    """§7.4."""
    found: list[Finding | Bar] = []
    for share, paper in ((0.1, 1.47), (0.25, 1.43), (0.5, 1.216)):
        ours = result.tps(_share(share)) / result.tps(f"{_share(share)}, looked up")
        found.append(Finding(f"throughput with remote addresses kept to without, {_share(share)}", paper, ours))
    return found


def _figure_15(result: Result) -> list[Finding | Bar]:
    """§7.5."""
    own = "monolithic"
    found: list[Finding | Bar] = []
    for share, paper_s in ((0.1, 2.0), (0.25, 2.0), (0.5, 3.0)):
        ours = result.mark(_share(share), "until_commit_s")
        found.append(Bar(f"until the first commit, {_share(share)}", paper_s, ours, "s"))
        ratio = result.mark(own, "until_commit_s") / ours
        found.append(Finding(f"the same of one server to {_share(share)}", 50 / paper_s, ratio))
        warm_up_s = result.mark(_share(share), "warm_up_s")
        found.append(Bar(f"from there to nine tenths of the rate, {_share(share)}", 16.0, warm_up_s, "s"))
    warm = [result.mark(_share(share), "warm_up_s") for share in (0.1, 0.25, 0.5)]
    found.append(Finding("warm-up of one server to the slowest of these", 4.38, result.mark(own, "warm_up_s") / max(*warm, 1.0)))
    lost = result.mark("10% local, memory lost", "until_commit_s") / result.mark(_share(0.1), "until_commit_s")
    found.append(Finding("until the first commit with all memory lost to compute only", 26.0, lost))
    return found


def _figure_16(result: Result) -> list[Finding | Bar]:
    """§7.6."""
    label = result.plan.setups[0].label
    rate = [result.mark(label, f"phase_{number}_tps") for number in (1, 2, 3)]
    return [
        Bar("without an answer at the first move", 2.0, result.mark(label, "gap_2_s"), "s"),
        Bar("without an answer at the second move", 2.0, result.mark(label, "gap_3_s"), "s"),
        Finding("rate of phase 2 to phase 1", 93_188.84 / 43_000, rate[1] / rate[0]),
        Finding("rate of phase 3 to phase 1", 167_953.26 / 43_000, rate[2] / rate[0]),
        Bar("core-seconds saved beside the most cores all the time", 0.44, result.mark(label, "saved"), "", more_is_better=True),
    ]


EXPERIMENTS = {
    experiment.plan.name: experiment
    for experiment in (
        Experiment(
            Plan(
                "lego-fig11",
                (
                    Setup("all local", WRITTEN, ALL_LOCAL),
                    *(Setup(_share(share), POOLED, share) for share in (0.1, 0.25, 0.5, 0.75, 1.0)),
                    Setup("10%, no memory node", WRITTEN, 0.1),
                ),
                TPCC,
                seconds=20,
            ),
            "TPC-C with a part of the memory local",
            "Figure 11, §7.3; 75 % in §7.2",
            _figure_11,
        ),
        Experiment(
            Plan(
                "lego-fig14",
                tuple(
                    Setup(_share(share) + suffix, POOLED, share, options)
                    for share in (0.1, 0.25, 0.5)
                    for suffix, options in (("", ()), (", looked up", ADDRESSES_OFF))
                ),
            ),
            "Remote addresses kept by compute, or looked up for each read",
            "Figure 14, §7.4",
            _figure_14,
        ),
        Experiment(
            Plan(
                "lego-fig15",
                (
                    *(Setup(_share(share), POOLED, share) for share in (0.1, 0.25, 0.5)),
                    Setup("10% local, memory lost", POOLED, 0.1, loses_memory=True),
                    Setup("monolithic", OWN, ALL_LOCAL),
                ),
                crashes=True,
                seconds=20,
            ),
            "kill -9 under load: until it commits again, until it is as fast as before",
            "Figure 15, §7.5",
            _figure_15,
        ),
        Experiment(
            Plan(
                "lego-fig16",
                (Setup("moved", POOLED, 0.25),),
                phases=(Phase(4, 0.25, False), Phase(8, 0.5, True), Phase(16, 1.0, True), Phase(4, 0.25, False)),
                seconds=20,
            ),
            "A load that changes, and a compute node that moves and gives cores back",
            "Figure 16, §7.6",
            _figure_16,
        ),
    )
}
