"""Figures of "Understanding the Performance Implications of the Design Principles in Storage-Disaggregated Databases"
(OpenAurora, 2024).

The paper's system is PostgreSQL with 96 GB of data, 16 clients, buffers of 1 MB to 64 GB and a 10 Gb/s network; here the
data is some ten megabytes, the network is modelled, and all processes share one machine.

Its system is followed in what STRATA does otherwise by itself:

- Full-page images are on where the pages are changed in place: in the paper under Remote Disk and LogDB, too.
- Storage nodes under Remote Disk have pages in the system's cache, as those under the others have them in their own.
- GetPage@LSN names the newest position of the log. STRATA names the version of the page that was given up (`-own` below).
- Workers of smart replay make pages of all of the log. Those of STRATA leave the newest 32 MiB to whoever asks (the same).
"""

from collections.abc import Callable
from dataclasses import dataclass

from .ladder import HEAVY, LIGHT, READ, Plan, Point, Result, Variant

TITLE = "Understanding the Performance Implications of the Design Principles in Storage-Disaggregated Databases"
IMAGES = ("--strata-full-page-images=ON",)
NEWEST = ("--strata-exact-page-versions=0",)
BUFFERED = ("--buffered-pages",)
NO_LAG = ("--replay-lag=0",)
MIDDLE, HIGH = 0.4, 0.8  # hit ratios
SIMILAR = 1.25  # times as much, at most
HARDLY = 1.1  # the same


@dataclass(frozen=True)
class Finding:
    """One ratio that the paper gives, and ours."""

    what: str
    paper: float
    ours: float
    least: float | None = None  # of the runs, each beside that of the same turn
    most: float | None = None

    @property
    def agrees(self) -> bool:
        """The same direction; where the paper found no difference, none worth mentioning here."""
        if self.paper == 1:
            return self.at_most(SIMILAR)
        return not self.at_most(HARDLY) and (self.paper - 1) * (self.ours - 1) > 0

    def at_most(self, factor: float) -> bool:
        """Whether what is compared differs here by no more than this."""
        return 1 / factor <= self.ours <= factor


@dataclass(frozen=True)
class Experiment:
    plan: Plan
    title: str
    paper: str  # where in it
    at: float  # the hit ratio for which the paper gives figures
    compare: Callable[[Result], list[Finding]]

    def findings(self, result: Result) -> list[Finding]:
        """None as long as that buffer has not been measured."""
        return self.compare(result) if result.has(self.at) else []


def _ratio(what: str, paper: float, above: Point, below: Point) -> Finding:
    turns = [one / other for one, other in zip(above.tps, below.tps, strict=False)]
    return Finding(what, paper, above.value / below.value, min(turns), max(turns))


def _figure_10(result: Result) -> list[Finding]:
    """§5.2: the paper names the buffer with 80 % hits."""

    def logdb_to_remote(what: str, paper: float, load: str) -> Finding:
        return _ratio(what, paper, result.point("LogDB", HIGH, load), result.point("Remote Disk", HIGH, load))

    return [
        logdb_to_remote("writes of LogDB to Remote Disk, heavy (Figure 10d)", 2.5, HEAVY),
        logdb_to_remote("writes of LogDB to Remote Disk, light: similar (Figure 10b)", 1.0, LIGHT),
        logdb_to_remote("reads of LogDB to Remote Disk: similar (Figure 10a)", 1.0, READ),
    ]


def _figure_14(result: Result) -> list[Finding]:
    """§5.3: the paper names the buffer with 80 % hits."""

    def heavy(label: str) -> Point:
        return result.point(label, HIGH, HEAVY)

    base = heavy("LogDB, page images")
    return [
        _ratio("writes of LogDB-MV to LogDB, both with page images (Figure 14b)", 0.73, heavy("LogDB-MV, page images"), base),
        _ratio("writes of LogDB-MV without page images to LogDB with them (Figure 14d)", 1.37, heavy("LogDB-MV"), base),
    ]


def _figure_18(result: Result) -> list[Finding]:
    """§5.4 and Table 2: the paper names the buffer with 40 % hits."""

    def heavy(label: str) -> Point:
        return result.point(label, MIDDLE, HEAVY)

    found = [
        _ratio("writes of filtered to eager replay", 1.5, heavy("LogDB-MV-FR"), heavy("LogDB-MV")),
        _ratio("writes of smart to filtered replay", 1.6, heavy("LogDB-MV-SR"), heavy("LogDB-MV-FR")),
    ]
    waits = {label: waited_bytes(heavy(label)) for label in ("LogDB-MV", "LogDB-MV-FR", "LogDB-MV-SR")}
    if waits["LogDB-MV"] and waits["LogDB-MV-FR"]:
        found += [
            Finding("log waited for by a page request, filtered to eager", 0.274, waits["LogDB-MV-FR"] / waits["LogDB-MV"]),
            Finding("log waited for by a page request, smart to filtered", 0.536, waits["LogDB-MV-SR"] / waits["LogDB-MV-FR"]),
        ]
    return found


def waited_bytes(point: Point) -> float:
    """Log that a storage node had to replay before it answered, per page asked for."""
    asked = point.counters.get("storage_pages_requested_total", 0)
    return point.counters.get("storage_pages_waited_log_bytes_total", 0) / asked if asked else 0.0


def _replay_variants(options: tuple[str, ...] = (), smart_nodes: tuple[str, ...] = ()) -> tuple[Variant, ...]:
    return (
        Variant("LogDB-MV", "logdb-mv", options),
        Variant("LogDB-MV-FR", "logdb-mv-fr", options),
        Variant("LogDB-MV-SR", "logdb-mv-sr", options, smart_nodes),
    )


EXPERIMENTS = {
    experiment.plan.name: experiment
    for experiment in (
        Experiment(
            Plan(
                "openaurora-fig10",
                (Variant("Remote Disk", "remote-disk", IMAGES, BUFFERED), Variant("LogDB", "logdb", IMAGES + NEWEST)),
                (LIGHT, HEAVY),
            ),
            "Remote disk against LogDB, light and heavy writes",
            "Figure 10, §5.2",
            HIGH,
            _figure_10,
        ),
        Experiment(
            Plan(
                "openaurora-fig14",
                (
                    Variant("LogDB, page images", "logdb", IMAGES + NEWEST),
                    Variant("LogDB-MV, page images", "logdb-mv", IMAGES + NEWEST),
                    Variant("LogDB-MV", "logdb-mv", NEWEST),
                ),
                (HEAVY,),
            ),
            "LogDB against LogDB-MV, with and without full-page images in the log",
            "Figure 14, §5.3",
            HIGH,
            _figure_14,
        ),
        Experiment(
            Plan("openaurora-fig18", _replay_variants(NEWEST, NO_LAG), (HEAVY,)),
            "Eager, filtered and smart replay",
            "Figure 18 and Table 2, §5.4",
            MIDDLE,
            _figure_18,
        ),
        Experiment(
            Plan("openaurora-fig18-own", _replay_variants(), (HEAVY,)),
            "Eager, filtered and smart replay as STRATA does them by itself",
            "Figure 18 and Table 2, §5.4, with what STRATA does instead",
            MIDDLE,
            _figure_18,
        ),
    )
}
