"""Figures of "Understanding the Effect of Data Center Resource Disaggregation on Production DBMSs" (2020) that are of PostgreSQL:
what is set up, how it is measured, and what the paper found.

The paper runs TPC-H of scale 10 on LegoOS, its memory reached over InfiniBand, with 4 GB, 1 GB and 64 MB of it local: 40, 10 and
0.6 % of the data. Here an unmodified PostgreSQL has its shared buffers in a memory node of the same machine
(`strata-farmem run --mode fuse`), with the same shares of a smaller database local. What its processes allocate for
themselves stays local, and there is no disk to speak of: a cold run reads files that the system's cache was told to forget.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean

from .. import farmem, farmem_postgres
from .. import farmem_postgres_packages as packages
from ..farmem_postgres import Postgres
from ..shell import StrataError, console
from ..waiting import wait_until
from .openaurora import Finding

TITLE = "Understanding the Effect of Data Center Resource Disaggregation on Production DBMSs"
LOCAL = "all local"
COLD, HOT, STREAMS, JOINS = "cold", "hot", "two streams", "joins"
QUERIES = tuple(range(1, 23))
LEFT_OUT = 20  # of averages, as in the paper
STATS_TIMEOUT_S = 60.0
PAGE = 4096
MIB = 1 << 20
SHARES = {"40 %": 0.4, "10 %": 0.1, "0.6 %": 0.006}
LEAST_LOCAL = 1 << 20  # a query holds some dozens of pages at once
JOIN_ALGORITHMS = ("nestloop", "mergejoin", "hashjoin")


@dataclass(frozen=True)
class Plan:
    name: str
    kind: str
    scale: float = 0.1
    queries: tuple[int, ...] = QUERIES
    link: str = "none"

    def shortened(self) -> "Plan":
        return replace(self, scale=0.01)


@dataclass
class Row:
    setup: str
    query: str  # or the join algorithm with it, or the stream
    seconds: float
    remote_bytes: int = 0  # fetched


@dataclass
class Result:
    plan: Plan
    data_bytes: int
    rows: list[Row] = field(default_factory=list)

    def seconds(self, setup: str, query: str) -> float:
        return mean(row.seconds for row in self.rows if (row.setup, row.query) == (setup, query))

    def slowdown(self, setup: str, query: str) -> float:
        return self.seconds(setup, query) / self.seconds(LOCAL, query)

    def average(self, setup: str) -> float:
        queries = dict.fromkeys(row.query for row in self.rows if row.query != f"Q{LEFT_OUT}")
        return mean(self.slowdown(setup, query) for query in queries)

    def is_whole(self) -> bool:
        return {row.setup for row in self.rows} == {LOCAL, *SHARES}

    def local_bytes(self, setup: str) -> int:
        return max(LEAST_LOCAL, round(self.data_bytes * SHARES[setup]) // PAGE * PAGE)


@dataclass(frozen=True)
class Experiment:
    plan: Plan
    title: str
    paper: str
    findings: Callable[[Result], list[Finding]]


def _averages(papers: Mapping[str, float]) -> Callable[[Result], list[Finding]]:
    def findings(result: Result) -> list[Finding]:
        return [
            Finding(f"{share} local, on average so many times slower than all local", paper, result.average(share))
            for share, paper in papers.items()
        ]

    return findings


def _hot(result: Result) -> list[Finding]:
    worst = max(result.slowdown("0.6 %", f"Q{number}") for number in result.plan.queries)
    q13 = (
        [Finding("Q13, 0.6 % local, so many times slower", 27.0, result.slowdown("0.6 %", "Q13"))]
        if 13 in result.plan.queries
        else []
    )
    return [*_averages({"40 %": 2.0, "10 %": 2.4})(result), *q13, Finding("the worst, 0.6 % local", 27.0, worst)]


def _joins(result: Result) -> list[Finding]:
    def ratio(setup: str, query: str, other: str, of: str) -> float:
        return result.seconds(setup, f"{query} {of}") / result.seconds(setup, f"{query} {other}")

    return [
        Finding("Q13, hash to merge join, all local", 15.69 / 14.45, ratio(LOCAL, "Q13", "mergejoin", "hashjoin")),
        Finding("Q13, hash to merge join, 0.6 % local", 373.49 / 122.84, ratio("0.6 %", "Q13", "mergejoin", "hashjoin")),
        Finding("Q4, hash join to nested loops, all local", 26.5 / 3.97, ratio(LOCAL, "Q4", "nestloop", "hashjoin")),
        Finding("Q4, hash join to nested loops, 0.6 % local", 348.58 / 18.82, ratio("0.6 %", "Q4", "nestloop", "hashjoin")),
    ]


EXPERIMENTS = {
    one.plan.name: one
    for one in (
        Experiment(Plan("ddc-fig7", COLD), "PostgreSQL, cold", "Figure 7", _averages({"40 %": 1.0, "10 %": 1.0})),
        Experiment(Plan("ddc-fig8", HOT), "PostgreSQL, hot, and what it fetches", "Figures 8 and 21", _hot),
        Experiment(
            Plan("ddc-fig11", STREAMS),
            "PostgreSQL, two streams of queries",
            "Figure 11, which is of MonetDB",
            _averages({"40 %": 1.7, "10 %": 5.0}),
        ),
        Experiment(Plan("ddc-fig23", JOINS, queries=(4, 13)), "PostgreSQL's join algorithms", "Figure 23", _joins),
    )
}


def run(plan: Plan, keep: Callable[[Result], None]) -> Result:
    """Every setup in turn; answers must be equal. Blocks for minutes; `keep` is called after each part."""
    packages.fetch(console.print)
    with tempfile.TemporaryDirectory(prefix="strata-pg-") as folder, farmem.MemoryNode() as place:
        Path(folder).chmod(0o755)
        server = Postgres(Path(folder))
        with console.status(f"loading TPC-H, scale {plan.scale:g}"):
            server.make()
            server.start({"shared_buffers": "256MB"})
            try:
                server.load_tpch(plan.scale)
                result = Result(plan, int(server.query("SELECT pg_database_size('postgres')")))
            finally:
                server.stop()
        answers: dict[str, str] = {}
        for setup in (LOCAL, *SHARES):
            with console.status(f"{plan.name}: {setup}"):
                course = _Course(result, server, place, setup, answers)
                result.rows += {COLD: course.cold, HOT: course.hot, STREAMS: course.streams, JOINS: course.joins}[plan.kind]()
            keep(result)
    return result


class _Course:
    """One setup of a result."""

    def __init__(self, result: Result, server: Postgres, place: farmem.Place, setup: str, answers: dict[str, str]) -> None:
        self._result, self._plan, self._server, self._place = result, result.plan, server, place
        self._setup, self._answers = setup, answers
        self._stats = server.folder / "far.json"
        # A table of more than a quarter of the buffers would be read past them.
        self._settings = {"shared_buffers": f"{max(128, 4 * result.data_bytes // MIB)}MB", "work_mem": "256MB"}

    def _start(self) -> None:
        prefix: list[str] = []
        if self._setup != LOCAL:
            self._stats.unlink(missing_ok=True)
            local = str(self._result.local_bytes(self._setup))
            options = farmem.Options(mode=farmem.FUSE, local=local, link=self._plan.link, quiet=True, stats=self._stats)
            prefix = farmem.run_command(self._place, options, [])
        self._server.start(self._settings, prefix)

    def _fetched(self) -> int:
        """Bytes so far, as of now: the file is written each second."""
        if self._setup == LOCAL:
            return 0
        asked = time.time()
        if not wait_until(lambda: self._stats.exists() and self._stats.stat().st_mtime > asked, STATS_TIMEOUT_S):
            raise StrataError("strata-farmem does not write its statistics")
        return int(json.loads(self._stats.read_text())["processes"][0]["bytes_in"])

    def _timed(self, name: str, text: str) -> float:
        seconds, said = farmem_postgres.timed(self._server, text)
        if self._answers.setdefault(name, said) != said:
            raise StrataError(f"{name}, {self._setup}: another answer than before")
        return seconds

    def _text(self, number: int) -> str:
        return farmem_postgres.tpch_query(number, self._plan.scale)

    def cold(self) -> Iterator[Row]:
        """Each query on a server that has just been started, and files that no cache has."""
        for number in self._plan.queries:
            _forget_files(self._server.data)
            self._start()
            try:
                before = self._fetched()
                seconds = self._timed(f"Q{number}", self._text(number))
                yield Row(self._setup, f"Q{number}", seconds, self._fetched() - before)
            finally:
                self._server.stop()

    def hot(self) -> Iterator[Row]:
        """Each query twice; the second time counts."""
        yield from self._twice({f"Q{number}": self._text(number) for number in self._plan.queries})

    def joins(self) -> Iterator[Row]:
        """Two of the three algorithms are switched off. Query 13 by nested loops ends nowhere, says the paper."""
        texts = {}
        for number in self._plan.queries:
            for algorithm in JOIN_ALGORITHMS[1 if number == 13 else 0 :]:
                off = "".join(f"SET enable_{other} = off;\n" for other in JOIN_ALGORITHMS if other != algorithm)
                texts[f"Q{number} {algorithm}"] = off + self._text(number)
        yield from self._twice(texts)

    def _twice(self, texts: Mapping[str, str]) -> Iterator[Row]:
        self._start()
        try:
            for name, text in texts.items():
                self._timed(name, text)
                before = self._fetched()
                seconds = self._timed(name, text)
                yield Row(self._setup, name, seconds, self._fetched() - before)
        finally:
            self._server.stop()

    def streams(self) -> Iterator[Row]:
        """Two clients at once, each with all queries, one from the first on, the other from the middle on."""
        self._start()
        try:
            half = len(self._plan.queries) // 2
            orders = [self._plan.queries, (*self._plan.queries[half:], *self._plan.queries[:half])]
            self._stream(orders[0])  # Everything has been read once.
            before, started = self._fetched(), time.monotonic()
            with ThreadPoolExecutor(len(orders)) as clients:
                list(clients.map(self._stream, orders))
            seconds = time.monotonic() - started
            yield Row(self._setup, "both streams", seconds, self._fetched() - before)
        finally:
            self._server.stop()

    def _stream(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._timed(f"Q{number}", self._text(number))


def _forget_files(folder: Path) -> None:
    """The system's cache has none of them afterwards; of nobody else's anything is changed."""
    for file in filter(Path.is_file, folder.rglob("*")):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def rows_of(result: Result) -> list[dict[str, object]]:
    return [asdict(row) for row in result.rows]
