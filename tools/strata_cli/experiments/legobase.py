"""Figures of "Towards Cost-Effective and Elastic Cloud Database Deployment via Memory Disaggregation" (LegoBase, 2021): what is
set up, how it is loaded, and what the paper found.

The paper's system is MySQL with 20 to 256 GB of data, its remote memory reached over RDMA of 25 Gb/s, on machines of their own;
here the data is some hundred megabytes, the memory node is reached over shared memory, as it is or as slow as that network
(`rdma25g`), and all processes share one machine. Percentages are, as in the paper, of the memory that the load touches when there
is enough of it: measured first, in pages.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..dilation import Wish
from ..profile_list import ALL, MONOLITHIC
from ..shell import StrataError
from . import comparisons
from .comparisons import Bar, Spread, bar, mark_of, quotient, ratio, spread, to_first_phase, values_of
from .openaurora import Finding

TITLE = "Towards Cost-Effective and Elastic Cloud Database Deployment via Memory Disaggregation"
ADDRESSES_OFF = ("--strata-lego-remote-addresses=OFF",)
TPCC, READ_WRITE, PRODUCTION, TPCH = "tpcc", "read_write", "production", "tpch"
ALL_LOCAL = 3.0  # times the data: nothing is ever given up, although it grows
OWN, WRITTEN, POOLED = "own", "written", "pooled"  # Which kind of profile.
COMPUTE, MEMORY = "compute", "memory"  # What is struck.
RDMA = "rdma25g"
LEAST_POOL = 8 << 20  # strata_buffer_pool_size takes no less
MIB = 1 << 20
NO_SWAP = "Not measured: how MySQL on memory that is swapped to another machine (Infiniswap) starts again after a crash."


def profile_of(kind: str) -> str:
    """All in one server; pages on storage nodes and in local memory; the same with a memory node between."""
    if kind == OWN:
        return MONOLITHIC
    for profile in ALL:
        if not profile.of_cluster or profile.has_several_writers:
            continue
        if profile.pages_are_written and profile.has_memory_nodes == (kind == POOLED):
            return profile.name
    raise StrataError("no profile has memory nodes in this version")


@dataclass(frozen=True)
class Setup(comparisons.Setup):
    kind: str
    share: float  # of what the load touches: so much fits into the local pool
    options: tuple[str, ...] = ()  # of the compute node
    strikes: tuple[str, ...] = (COMPUTE,)  # where there is a crash: what gets kill -9
    memory_lost: bool = False  # then, with all that the memory node held
    link: str = ""  # "": the plan's
    swapped: bool = False  # The pool holds everything, the process has its share of memory, and swaps the rest to a memory node.


@dataclass(frozen=True)
class Phase:
    """Of a load that changes. Cores are a share of the most."""

    threads: int
    cores: float
    moves: bool  # to another compute node; else the cores are changed in place, a little at a time
    length: float  # of the plan's seconds
    delay: float = 0.0  # of them, until the compute node follows


@dataclass(frozen=True)
class Plan:
    name: str
    setups: tuple[Setup, ...]
    load: str = READ_WRITE
    crashes: bool = False  # kill -9 in the middle
    phases: tuple[Phase, ...] = ()
    tables: int = 8
    rows: int = 60_000
    warehouses: int = 3
    scale: float = 0.05
    threads: int = 8
    seconds: int = 20  # of a run; of a phase of length 1; before the crash, and three times as long behind it
    link: str = "none"
    memory: str = "1G"
    most_cores: float = 1.0  # Of a compute node that moves; the rest of the machine is for the others.
    dilation: float = 1.0
    cores: Mapping[str, int] = field(default_factory=dict)  # of emulated nodes, by kind
    quick: Mapping[str, object] = field(default_factory=dict)  # What is smaller in a short run.

    def settings(self) -> dict[str, object]:
        """Measurements with the same ones can be compared with each other."""
        sizes: dict[str, dict[str, object]] = {TPCC: {"warehouses": self.warehouses}, TPCH: {"scale": self.scale}}
        size = sizes.get(self.load, {"tables": self.tables, "rows": self.rows})
        phases = {"most_cores": self.most_cores} if self.phases else {}
        rest = {"threads": self.threads, "seconds": self.seconds, "link": self.link, "memory": self.memory}
        return {"load": self.load, **size, **rest, **phases, **self.wish().settings()}

    def wish(self) -> Wish:
        return Wish(self.dilation, tuple(self.cores.items()))

    def changed(self, settings: Mapping[str, object]) -> "Plan":
        return replace(self, **settings)  # type: ignore[arg-type]

    def shortened(self) -> "Plan":
        return self.changed(self.quick)

    def link_of(self, setup: Setup) -> str:
        return setup.link or self.link

    @property
    def why_not_dilated(self) -> str:
        """Why its times cannot be emulated; empty: they can."""
        if self.load == TPCC:
            return "its clients are a program in Go, which waits without the C library and cannot be preloaded"
        if self.load == TPCH:
            return "one client waits for one query at a time: more cores would change nothing"
        if self.crashes:
            return "a start after kill -9 is mostly reading and waiting for what is not dilated: disks and the registry"
        if self.phases:
            return "the cores of an emulated node are given when it starts, and its cores change here"
        return ""


@dataclass
class Run:
    """One measurement of one setup."""

    setup: str
    tps: float = 0.0
    p99_ms: float | None = None
    series: list[float] | None = None  # transactions a second, each second
    marks: dict[str, float] | None = None  # what happened when, in seconds; how long it took
    costs: dict[str, float] | None = None  # of a transaction
    queries: dict[str, float] | None = None  # seconds of each
    gets: dict[str, float] | None = None  # pages that each read from the memory node
    void: str = ""  # why, of a dilated run


@dataclass
class Result(comparisons.Result[Plan, Run]):
    touched_bytes: int = field(kw_only=True)  # by the load when all is local

    def setup_facts(self) -> list[dict[str, object]]:
        each = zip(super().setup_facts(), self.plan.setups, strict=True)
        return [facts | {"local_bytes": self.local_bytes(setup)} for facts, setup in each]

    def pool_bytes(self, setup: Setup) -> int:
        """Of its buffer pool. One that is swapped has room for all, and the kernel says what of it is local."""
        return self.local_bytes(replace(setup, share=ALL_LOCAL) if setup.swapped else setup)

    def local_bytes(self, setup: Setup) -> int:
        """Of pages in local memory."""
        whole = max(self.data_bytes, self.touched_bytes) if setup.share > 1 else self.touched_bytes
        return max(LEAST_POOL, int(setup.share * whole / MIB) * MIB)

    def too_large_pool(self) -> str:
        """The setups of which less is said than they have, since no pool is so small; empty: none."""
        wrong = [
            f"{setup.label} is {self.local_bytes(setup) / max(self.touched_bytes, 1):.0%}"
            for setup in self.plan.setups
            if setup.share * self.touched_bytes < LEAST_POOL
        ]
        return f"The data is too small for the least pool of {LEAST_POOL >> 20} MiB: {', '.join(wrong)}." if wrong else ""


Of = Callable[[Run], float]


def p99_of(run: Run) -> float:
    return run.p99_ms or 0.0


def query_of(name: str) -> Of:
    return lambda run: (run.queries or {}).get(name, 0.0)


def gets_of(name: str) -> Of:
    return lambda run: (run.gets or {}).get(name, 0.0)


Experiment = comparisons.Experiment[Plan, Result]
ALL_LABEL = "all local"
ALONE = "10 %, no memory node"


def _share(share: float) -> str:
    return f"{share * 100:.0f} % local"


def _swapped(share: float) -> str:
    return f"{_share(share)}, the rest swapped"


def _rdma(label: str) -> str:
    return f"{label}, RDMA"


def _figure_10(result: Result) -> list[Finding | Bar]:
    """§7.2, the production load."""
    return [
        bar("throughput with 10 % local to all local", 0.9004, quotient(result, _share(0.1), ALL_LABEL), more=True),
        ratio("throughput with 10 % local and no memory node to all local", 0.39, quotient(result, ALONE, ALL_LABEL)),
    ]


def _figure_8(result: Result) -> list[Finding | Bar]:
    """§7.2, and §2.2 of swapping alone. The paper's swapping fails with less than half of the memory local."""
    found: list[Finding | Bar] = []
    for share, faster, p99 in ((0.5, 1.99, 2.33), (0.1, None, None)):
        ours, theirs = _share(share), _swapped(share)
        found.append(bar(f"throughput to that of swapping, {ours}", faster, quotient(result, ours, theirs), more=True, goal=2.0))
        if p99 is not None:
            found.append(ratio(f"99th percentile of swapping to ours, {ours}", p99, quotient(result, theirs, ours, p99_of)))
    for share, paper in ((0.75, 1 - 0.395), (0.5, 0.498)):
        ours_to_all = quotient(result, _swapped(share), ALL_LABEL)
        found.append(ratio(f"throughput of swapping to all local, {_share(share)}", paper, ours_to_all))
    return found


def _figure_9(result: Result) -> list[Finding | Bar]:
    """§7.2, and §7.4 of how often each reads from the memory node."""
    half, swapped = _share(0.5), _swapped(0.5)
    found: list[Finding | Bar] = [
        ratio(f"latency of Q11 when swapping to ours, {half}", 1.757, quotient(result, swapped, half, query_of("Q11")))
    ]
    for query, paper in SWAPPED_GETS.items():
        ours = quotient(result, swapped, half, gets_of(query), least=1.0)
        found.append(ratio(f"reads from the memory node by {query} when swapping to ours, {half}", paper, ours))
    slower = [quotient(result, swapped, half, query_of(name)).value for name in result.of(half)[0].queries or {}]
    found.append(bar("latency when swapping to ours, the median query", None, spread(slower), more=True, goal=1.0))
    return found


def _figure_11(result: Result) -> list[Finding | Bar]:
    """§7.3; 75 % local in §7.2."""
    found: list[Finding | Bar] = []
    for link, end in (("shared memory", ""), ("modelled RDMA of 25 Gb/s", ", RDMA")):
        base = ALL_LABEL + end
        for share, tps, goal, p99 in ((0.1, 0.91, 0.91, 1.10), (0.75, 0.9618, 0.96, 1.0442)):
            label, said = _share(share) + end, f"with {_share(share)} to all local, {link}"
            found.append(bar(f"throughput {said}", tps, quotient(result, label, base), more=True, goal=goal))
            found.append(bar(f"99th percentile {said}", p99, quotient(result, label, base, p99_of), goal=1.10))
    return found


def _figure_12(result: Result) -> list[Finding | Bar]:
    """§7.3; the eleventh in §7.2. The paper shows 16 of the queries."""

    def slower(query: str, label: str = _share(0.1), base: str = ALL_LABEL) -> Spread:
        return quotient(result, label, base, query_of(query))

    queries = sorted((result.of(ALL_LABEL)[0].queries or {}), key=lambda name: int(name[1:]))
    found: list[Finding | Bar] = []
    for query in (name for name in MOST_INTENSIVE if name in queries):
        found.append(bar(f"latency of {query} with 10 % local to all local", 2.0, slower(query)))
        alone = slower(query, ALONE, _share(0.1))
        found.append(ratio(f"latency of {query} with 10 % local, no memory node to one", MOST_INTENSIVE[query], alone))
    if "Q11" in queries:
        found.append(bar("latency of Q11 with 50 % local to all local", 1.0454, slower("Q11", _share(0.5))))
    others = {name: slower(name) for name in queries if name not in (*MOST_INTENSIVE, *NOT_SHOWN)}
    if others:
        slowest = max(others, key=lambda name: others[name].value)
        found.append(bar(f"latency of the slowest other query ({slowest}) with 10 % local to all local", 1.627, others[slowest]))
    return found


MOST_INTENSIVE = {"Q4": 1.48, "Q10": 1.41}  # on memory; how much slower without a memory node
SWAPPED_GETS = {"Q1": 5.5, "Q3": 10.8, "Q4": 4.11}  # Figure 13
NOT_SHOWN = ("Q2", "Q13", "Q16", "Q17", "Q20", "Q22")  # in the paper's figures


def _figure_14(result: Result) -> list[Finding | Bar]:
    """§7.4."""
    found: list[Finding | Bar] = []
    for share, paper in ((0.1, 1.47), (0.25, 1.43), (0.5, 1.216)):
        ours = quotient(result, _share(share), f"{_share(share)}, looked up")
        what = f"throughput with remote addresses kept to without, {_share(share)}"
        found.append(bar(what, paper, ours, more=True, goal=1.40) if share == 0.1 else ratio(what, paper, ours))
    return found


SHARES = (0.1, 0.25, 0.5)
SWAPPED_SHARES = (0.1, 0.5, 0.75)
MEMORY_LOST = "10 % local, all memory lost"
MEMORY_KILLED = "10 % local, memory node killed"
FIRST_COMMIT, WARM_UP = mark_of("until_commit_s"), mark_of("warm_up_s")


def _figure_15(result: Result) -> list[Finding | Bar]:
    """§7.5."""
    own, disk = "monolithic", "remote disk"
    found: list[Finding | Bar] = []
    for share, paper_s in zip(SHARES, (2.0, 2.0, 3.0), strict=True):
        label = _share(share)
        found.append(bar(f"until the first commit, {label}", paper_s, values_of(result, label, FIRST_COMMIT), "s", goal=1.0))
        warm_up = values_of(result, label, WARM_UP)
        found.append(bar(f"from there to nine tenths of the rate, {label}", 16.0, warm_up, "s", goal=5.0))
    slowest = max((_share(share) for share in SHARES), key=lambda label: values_of(result, label, WARM_UP).value)
    for label, said in ((own, "one server"), (disk, "remote disk")):
        to_commit = quotient(result, label, _share(0.1), FIRST_COMMIT)
        found.append(ratio(f"until the first commit, {said} to 10 % local", 25.0, to_commit))
        warm_up = quotient(result, label, slowest, WARM_UP, least=1.0)
        found.append(ratio(f"warm-up, {said} to the slowest of these", 4.38, warm_up))
    lost = quotient(result, MEMORY_LOST, _share(0.1), FIRST_COMMIT)
    found.append(ratio("until the first commit with all memory lost to compute only", 26.0, lost))
    killed = values_of(result, MEMORY_KILLED, FIRST_COMMIT)
    found.append(bar("until the first commit when only the memory node is killed", None, killed, "s", goal=1.0))
    return found


def _figure_16(result: Result) -> list[Finding | Bar]:
    """§7.6."""
    label = result.plan.setups[0].label

    return [
        bar("without an answer at the first move", 2.0, values_of(result, label, mark_of("gap_2_s")), "s"),
        bar("without an answer at the second move", 2.0, values_of(result, label, mark_of("gap_3_s")), "s"),
        ratio("rate of phase 2 to phase 1, twice the cores", 93_188.84 / 43_000, to_first_phase(result, label, 2)),
        ratio("rate of phase 3 to phase 1, four times the cores", 167_953.26 / 43_000, to_first_phase(result, label, 3)),
        bar("rate of phase 4 to phase 1", 1.0, to_first_phase(result, label, 4), more=True, goal=0.9),
        bar("core-seconds saved beside the most cores all the time", 0.44, values_of(result, label, mark_of("saved")), more=True),
    ]


EXPERIMENTS = {
    experiment.plan.name: experiment
    for experiment in (
        Experiment(
            Plan(
                "lego-fig8",
                (
                    Setup(ALL_LABEL, WRITTEN, ALL_LOCAL),
                    *(Setup(_share(share), POOLED, share) for share in SWAPPED_SHARES),
                    *(Setup(_swapped(share), WRITTEN, share, swapped=True) for share in SWAPPED_SHARES),
                ),
                TPCC,
                seconds=15,
                quick={"seconds": 8, "warehouses": 2},
            ),
            "TPC-C with a part of the memory local, the rest on a memory node as pages or swapped to one",
            "Figures 3 and 8, §2.2, §7.2",
            _figure_8,
        ),
        Experiment(
            Plan(
                "lego-fig9",
                (
                    Setup(ALL_LABEL, WRITTEN, ALL_LOCAL),
                    Setup(_share(0.5), POOLED, 0.5),
                    Setup(_swapped(0.5), WRITTEN, 0.5, swapped=True),
                ),
                TPCH,
                threads=1,
                quick={"scale": 0.03, "seconds": 5},
            ),
            "TPC-H with half of the memory local, the rest on a memory node as pages or swapped to one",
            "Figures 9 and 13, §7.2, §7.4",
            _figure_9,
        ),
        Experiment(
            Plan(
                "lego-fig10",
                (Setup(ALL_LABEL, WRITTEN, ALL_LOCAL), Setup(_share(0.1), POOLED, 0.1), Setup(ALONE, WRITTEN, 0.1)),
                PRODUCTION,
                quick={"seconds": 8},
            ),
            "Three inserts, two updates and five selects, with a tenth of the memory local",
            "Figure 10, §7.2",
            _figure_10,
        ),
        Experiment(
            Plan(
                "lego-fig11",
                (
                    Setup(ALL_LABEL, WRITTEN, ALL_LOCAL),
                    *(Setup(_share(share), POOLED, share) for share in (0.1, 0.25, 0.5, 0.75, 1.0)),
                    Setup(ALONE, WRITTEN, 0.1),
                    Setup(_rdma(ALL_LABEL), WRITTEN, ALL_LOCAL, link=RDMA),
                    *(Setup(_rdma(_share(share)), POOLED, share, link=RDMA) for share in (0.1, 0.75)),
                ),
                TPCC,
                seconds=15,  # three times through all setups take a quarter of an hour
                quick={"seconds": 8, "warehouses": 2},
            ),
            "TPC-C with a part of the memory local",
            "Figure 11, §7.3; 75 % in §7.2",
            _figure_11,
        ),
        Experiment(
            Plan(
                "lego-fig12",
                (
                    Setup(ALL_LABEL, WRITTEN, ALL_LOCAL),
                    Setup(_share(0.1), POOLED, 0.1),
                    Setup(_share(0.5), POOLED, 0.5),
                    Setup(ALONE, WRITTEN, 0.1),
                ),
                TPCH,
                threads=1,
                quick={"scale": 0.03, "seconds": 5},
            ),
            "TPC-H, each query with a part of the memory local",
            "Figures 9, 12 and 13, §7.2 to §7.4",
            _figure_12,
        ),
        Experiment(
            Plan(
                "lego-fig14",
                tuple(
                    Setup(_share(share) + suffix, POOLED, share, options)
                    for share in SHARES
                    for suffix, options in (("", ()), (", looked up", ADDRESSES_OFF))
                ),
                quick={"seconds": 8},
            ),
            "Remote addresses kept by compute, or looked up for each read",
            "Figure 14, §7.4",
            _figure_14,
        ),
        Experiment(
            Plan(
                "lego-fig15",
                (
                    *(Setup(_share(share), POOLED, share) for share in SHARES),
                    Setup(MEMORY_LOST, POOLED, 0.1, strikes=(COMPUTE, MEMORY), memory_lost=True),
                    Setup(MEMORY_KILLED, POOLED, 0.1, strikes=(MEMORY,)),
                    Setup("remote disk", WRITTEN, ALL_LOCAL),
                    Setup("monolithic", OWN, ALL_LOCAL),
                ),
                crashes=True,
                quick={"seconds": 8},
            ),
            "kill -9 under load: until it commits again, until it is as fast as before",
            "Figure 15, §7.5",
            _figure_15,
        ),
        Experiment(
            Plan(
                "lego-fig16",
                (Setup("moved", POOLED, 0.25),),
                phases=(
                    Phase(6, 0.25, moves=False, length=0.95),
                    Phase(12, 0.5, moves=True, length=1.0, delay=0.05),
                    Phase(24, 1.0, moves=True, length=1.05, delay=0.05),
                    Phase(6, 0.25, moves=False, length=1.3, delay=0.3),
                ),
                seconds=40,
                quick={"seconds": 20},
            ),
            "A load that changes, and a compute node that moves and gives cores back",
            "Figure 16, §7.6",
            _figure_16,
        ),
    )
}
