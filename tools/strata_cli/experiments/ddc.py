"""The figures of "Understanding the Effect of Data Center Resource Disaggregation on Production DBMSs" (2020): which there are,
and what the paper found.

The paper runs TPC-H of scale 10 on LegoOS, its memory reached over InfiniBand, with 4 GB, 1 GB and 64 MB of it local: 40, 10 and
0.6 % of the data. Here an unmodified MonetDB has what it allocates in a memory node of the same machine
(`strata-farmem run`), and an unmodified PostgreSQL its shared buffers (`--mode fuse`), with the same shares of a smaller
database local. The server with as little memory and a disk to spill to is the same program in a group of limited memory
(`--mode disk`), its disk slowed down to so many reads and writes in a second.

ddc_sessions.py has the databases, ddc_course.py how it is measured, ddc_spark.py the one figure that is of others.
"""

from collections.abc import Callable, Mapping

from . import ddc_course as course
from . import ddc_spark
from .ddc_course import FIXED_SHARE, MIX_SHARES, SCALE_STEPS, SIZE_SHARES, label_of
from .ddc_result import MONETDB, POSTGRESQL, QUERIES, SCALES, SPARK, Experiment, Plan, Result, Said
from .ddc_sessions import ALL_LOCAL as LOCAL
from .ddc_sessions import DISK, FAR
from .openaurora import Finding

TITLE = "Understanding the Effect of Data Center Resource Disaggregation on Production DBMSs"
LEFT_OUT = "Q20"  # of PostgreSQL's averages, as in the paper
PAPER_SCALE_BYTES = 10e9
SENSITIVE_MONETDB, SENSITIVE_POSTGRESQL = (16, 5, 9), (6, 13, 4)  # low, middle, high
STABLE = 1.5
Findings = list[Finding | Said]


def _without(result: Result) -> str:
    return LEFT_OUT if result.plan.system == POSTGRESQL else ""


def _averages(papers: Mapping[str, float]) -> Callable[[Result], Findings]:
    def findings(result: Result) -> Findings:
        return [
            Finding(
                f"{share} local, on average so many times slower than all local", paper, result.average(share, _without(result))
            )
            for share, paper in papers.items()
        ]

    return findings


def _of_query(result: Result, share: str, name: str, paper: float) -> Findings:
    if not result.has(share, name) or not result.has(LOCAL, name):
        return []
    return [Finding(f"{name}, {share} local, so many times slower", paper, result.slowdown(share, name))]


def _worst(result: Result, share: str) -> tuple[str, float]:
    slower = {
        name: result.slowdown(share, name) for name in result.names() if result.has(share, name) and result.has(LOCAL, name)
    }
    name = max(slower, key=lambda one: slower[one])
    return name, slower[name]


def _monetdb_shares(result: Result) -> Findings:
    name, worst = _worst(result, "0.6 %")
    says = Said("The query that suffers most with 0.6 % local", "Q9, 176 times", f"{name}, {worst:.0f} times", name == "Q9")
    return [*_averages({"40 %": 1.7, "10 %": 5.0})(result), *_of_query(result, "0.6 %", "Q9", 176.0), says]


def _hot(result: Result) -> Findings:
    name, worst = _worst(result, "0.6 %")
    says = Said("The query that suffers most with 0.6 % local", "Q13, 27 times", f"{name}, {worst:.0f} times", name == "Q13")
    return [*_averages({"40 %": 2.0, "10 %": 2.4})(result), *_of_query(result, "0.6 %", "Q13", 27.0), says]


def _joins(result: Result) -> Findings:
    def ratio(setup: str, query: str, other: str, of: str) -> float:
        return result.seconds(setup, f"{query} {of}") / result.seconds(setup, f"{query} {other}")

    return [
        Finding("Q13, hash to merge join, all local", 15.69 / 14.45, ratio(LOCAL, "Q13", "mergejoin", "hashjoin")),
        Finding("Q13, hash to merge join, 0.6 % local", 373.49 / 122.84, ratio("0.6 %", "Q13", "mergejoin", "hashjoin")),
        Finding("Q4, hash join to nested loops, all local", 26.5 / 3.97, ratio(LOCAL, "Q4", "nestloop", "hashjoin")),
        Finding("Q4, hash join to nested loops, 0.6 % local", 348.58 / 18.82, ratio("0.6 %", "Q4", "nestloop", "hashjoin")),
    ]


def _peaks(paper_bytes: float, large: tuple[int, ...], small: tuple[int, ...]) -> Callable[[Result], Findings]:
    def findings(result: Result) -> Findings:
        peaks = {name: result.of(LOCAL, name)[0].peak_bytes for name in result.names() if name != _without(result)}
        average = sum(peaks.values()) / len(peaks)

        def of(numbers: tuple[int, ...]) -> float:
            some = [peaks[f"Q{number}"] for number in numbers if f"Q{number}" in peaks]
            return sum(some) / len(some) / average if some else average

        out: Findings = [
            Finding(
                "peak memory on average, to the size of the data", paper_bytes / PAPER_SCALE_BYTES, average / result.data_bytes
            )
        ]
        for numbers, paper, agrees in ((large, "much more", of(large) > 1.1), (small, "much less", of(small) < 0.9)):
            names = ", ".join(f"Q{number}" for number in numbers)
            out.append(Said(f"{names} to the average", paper, f"{of(numbers):.2f} times as much", agrees))
        return out

    return findings


def _fetched(result: Result) -> Findings:
    """Of all queries, on average."""

    def average(share: str) -> float:
        names = [name for name in result.names() if result.has(share, name) and name != _without(result)]
        return sum(result.fetched(share, name) for name in names) / len(names)

    if result.plan.system == POSTGRESQL:
        return [
            Finding("bytes fetched with 40 % local on average, to the size of the data", 0.9, average("40 %") / result.data_bytes)
        ]
    out: Findings = [
        Finding("bytes fetched with 10 % local on average, to the size of the data", 0.33, average("10 %") / result.data_bytes),
        Finding("bytes fetched with 0.6 % local on average, to the size of the data", 0.91, average("0.6 %") / result.data_bytes),
        Finding("bytes fetched, 0.6 % to 10 % local", 9.1 / 3.3, average("0.6 %") / average("10 %")),
    ]
    if result.has("0.6 %", "Q9"):
        out.append(Finding("Q9's bytes to the average, 0.6 % local", 89 / 9.1, result.fetched("0.6 %", "Q9") / average("0.6 %")))
    return out


def _disk_to_far(result: Result, name: str, shares: tuple[float, ...]) -> tuple[float, float] | None:
    """At the smallest memory with which the server with a disk gets through: the share, and how much slower it is."""
    for share in sorted(shares):
        disk, far = label_of(DISK, share), label_of(FAR, share)
        if result.has(disk, name) and result.has(far, name):
            return share, result.seconds(disk, name) / result.seconds(far, name)
    return None


def _sizes(papers: Mapping[str, float], low: str) -> Callable[[Result], Findings]:
    def findings(result: Result) -> Findings:
        out: Findings = []
        if len(result.setups()) <= 2 * len(SIZE_SHARES):
            return out  # not whole yet
        for name, paper in papers.items():
            found = _disk_to_far(result, name, SIZE_SHARES)
            if found is not None:
                out.append(Finding(f"{name}, {found[0]:.0%} of the data local, disk to far memory", paper, found[1]))
        most, least = label_of(FAR, max(SIZE_SHARES)), label_of(FAR, min(SIZE_SHARES))
        if result.has(most, low) and result.has(least, low):
            grows = result.seconds(least, low) / result.seconds(most, low)
            out.append(Said(f"{low} on far memory, least to most local", "stable", f"{grows:.2f} times as long", grows < STABLE))
        failed = [f"{row.query} with {row.setup}" for row in result.rows if row.note]
        ours = "; ".join(failed) or "none"
        out.append(
            Said(
                "Queries that do not get through",
                "some on the server with a disk, none on far memory",
                ours,
                not any(FAR in one for one in failed),
            )
        )
        return out

    return findings


def _scales(papers: Mapping[str, float]) -> Callable[[Result], Findings]:
    def findings(result: Result) -> Findings:
        out: Findings = []
        for name, paper in papers.items():
            for step in reversed(SCALE_STEPS):
                query = f"{name}, scale {round(result.plan.scale * step, 4):g}"
                if result.has(DISK, query) and result.has(FAR, query):
                    out.append(
                        Finding(f"{query}, disk to far memory", paper, result.seconds(DISK, query) / result.seconds(FAR, query))
                    )
                    break
        return out

    return findings


def _mixes(papers: Mapping[str, float]) -> Callable[[Result], Findings]:
    def findings(result: Result) -> Findings:
        return [
            Finding(f"{mix}, disk to far memory", papers[mix], result.seconds(DISK, mix) / result.seconds(FAR, mix))
            for mix in MIX_SHARES
            if result.has(DISK, mix) and result.has(FAR, mix)
        ]

    return findings


def _prefetch(result: Result) -> Findings:
    names = [
        name for name in result.names() if all(result.has(one, name) for one in ("cold", "hot", "prefetch", "after prefetch"))
    ]

    def average(setups: tuple[str, ...], to: str) -> float:
        return sum(sum(result.seconds(one, name) for one in setups) / result.seconds(to, name) for name in names) / len(names)

    both = average(("prefetch", "after prefetch"), "cold")
    return [
        Finding("after prefetching, to hot", 1.0, average(("after prefetch",), "hot")),
        Said("Prefetching and the query after it, to cold", "generally longer", f"{both:.2f} times as long", both > 1),
    ]


def _pools(result: Result) -> Findings:
    all_of, middle, least = course.POOL_SHARES
    papers = {
        "Q16": {LOCAL: 0.75 / 0.5, "40 %": 10.78 / 0.73},
        "Q5": {LOCAL: 1.0, "40 %": 1.0},
        "Q9": {LOCAL: 2.2 / 1.11, "40 %": 10.55 / 1.7},
    }
    out: Findings = []
    for name, places in papers.items():
        for place, paper in places.items():
            small, large = f"{place}, {middle}", f"{place}, {all_of}"
            if result.has(small, name) and result.has(large, name):
                where = place if place == LOCAL else f"{place} local"
                out.append(Finding(f"{name}, {where}: pool of 40 % to pool of all", paper, result.slowdown(small, name, large)))
    failed = any(row.note for row in result.rows if least in row.setup)
    ours = "it does not get through" if failed else "it gets through"
    return [*out, Said("A pool of 10 %", "4 to 24 times as slow", ours, False)]


def _ways(result: Result) -> Findings:
    (name,) = result.names()

    def faults(setup: str) -> int:
        return max(1, result.of(setup, name)[0].faults)

    return [
        Finding(f"{name}, faults, 1-way to half of fully associative", 1.0, faults("1-way") / faults("half of full")),
        Finding(f"{name}, faults, 256-way to half of fully associative", 1.0, faults("256-way") / faults("half of full")),
        Finding(f"{name}, faults, second chance (the paper: LRU) to FIFO", 1.0, faults("second chance") / faults("FIFO")),
    ]


_CONSTRAINED_PAPERS = {"short-heavy": 6.7, "medium-heavy": 9.9, "long-heavy": 7.7, "random": 5.4}
_POSTGRES_MIXES = dict.fromkeys(MIX_SHARES, 1.5)  # the paper gives 1.2 to 1.9
EXPERIMENTS = {
    one.plan.name: one
    for one in (
        Experiment(
            Plan("ddc-fig4", course.PEAKS, MONETDB),
            "MonetDB's peak memory",
            "Figure 4",
            _peaks(2.2e9, (1, 9, 17, 19), (11, 16, 22)),
        ),
        Experiment(
            Plan("ddc-fig5", course.PEAKS),
            "PostgreSQL's peak memory",
            "Figure 5",
            _peaks(2.8e9, (4, 9, 18, 21), (1, 6, 15, 17, 19)),
        ),
        Experiment(Plan("ddc-fig6", course.HOT, MONETDB), "MonetDB with parts of its memory far", "Figure 6", _monetdb_shares),
        Experiment(Plan("ddc-fig7", course.COLD), "PostgreSQL, cold", "Figure 7", _averages({"40 %": 1.0, "10 %": 1.0})),
        Experiment(Plan("ddc-fig8", course.HOT), "PostgreSQL, hot", "Figure 8", _hot),
        Experiment(
            Plan("ddc-fig10", ddc_spark.DISTRIBUTED, SPARK),
            "Spark on one machine and on three",
            "Figure 10, without Vertica",
            ddc_spark.findings,
        ),
        Experiment(
            Plan("ddc-fig11", course.STREAMS, MONETDB),
            "MonetDB, two streams of queries",
            "Figure 11",
            _averages({"40 %": 1.7, "10 %": 5.0}),
        ),
        Experiment(
            Plan("ddc-fig12", course.SIZES, MONETDB, queries=SENSITIVE_MONETDB),
            "MonetDB, far memory and a disk, by memory size",
            "Figure 12",
            _sizes({"Q16": 28.0, "Q9": 460.0}, "Q16"),
        ),
        Experiment(
            Plan("ddc-fig13", course.SIZES_COLD, queries=SENSITIVE_POSTGRESQL),
            "PostgreSQL, cold, far memory and a disk, by memory size",
            "Figure 13",
            _sizes({}, "Q6"),
        ),
        Experiment(
            Plan("ddc-fig14", course.SIZES, queries=SENSITIVE_POSTGRESQL),
            "PostgreSQL, hot, far memory and a disk, by memory size",
            "Figure 14",
            _sizes({}, "Q6"),
        ),
        Experiment(
            Plan("ddc-fig15", SCALES, MONETDB, queries=SENSITIVE_MONETDB),
            "MonetDB, far memory and a disk, by scale",
            "Figure 15",
            _scales({"Q5": 6.8, "Q9": 27.0}),
        ),
        Experiment(
            Plan("ddc-fig16", SCALES, queries=SENSITIVE_POSTGRESQL),
            "PostgreSQL, cold, far memory and a disk, by scale",
            "Figure 16",
            _scales({"Q6": 1.0}),
        ),
        Experiment(
            Plan("ddc-fig17", course.MIXES, MONETDB),
            "MonetDB, four mixes of fifty queries",
            "Figure 17",
            _mixes(_CONSTRAINED_PAPERS),
        ),
        Experiment(
            Plan("ddc-fig18", course.MIXES),
            "PostgreSQL, four mixes of fifty queries",
            "Figure 18, which gives 1.2 to 1.9 for all four",
            _mixes(_POSTGRES_MIXES),
        ),
        Experiment(Plan("ddc-fig19", course.PREFETCH), "PostgreSQL after prefetching, cold and hot", "Figure 19", _prefetch),
        Experiment(Plan("ddc-fig20", course.HOT, MONETDB), "What MonetDB fetches", "Figure 20", _fetched),
        Experiment(Plan("ddc-fig21", course.HOT), "What PostgreSQL fetches, hot", "Figure 21", _fetched),
        Experiment(
            Plan("ddc-fig22", course.POOLS, MONETDB, queries=SENSITIVE_MONETDB),
            "MonetDB's pool size",
            "Figure 22",
            _pools,
        ),
        Experiment(Plan("ddc-fig23", course.JOINS, queries=(4, 13)), "PostgreSQL's join algorithms", "Figure 23", _joins),
        Experiment(
            Plan("ddc-fig24", course.WAYS, MONETDB, queries=(9,)),
            "Faults by associativity, MonetDB",
            "Figure 24, first row",
            _ways,
        ),
        Experiment(
            Plan("ddc-fig24-postgresql", course.WAYS, queries=(4,)),
            "Faults by associativity, PostgreSQL",
            "Figure 24, second row",
            _ways,
        ),
    )
}


def run(plan: Plan, keep: Callable[[Result], None]) -> Result:
    """Blocks for minutes; `keep` is called after each part."""
    if plan.kind == ddc_spark.DISTRIBUTED:
        return ddc_spark.run(plan, keep)
    return course.run(plan, keep)


__all__ = ["EXPERIMENTS", "FIXED_SHARE", "QUERIES", "TITLE", "Experiment", "Plan", "Result", "run"]
