"""How the experiments of ddc.py go: which setups there are, and what each is asked."""

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .. import farmem, farmem_monetdb, farmem_postgres
from .. import farmem_postgres_packages as packages
from ..bench import tpch
from ..farmem_postgres import Postgres
from ..shell import StrataError, console
from .ddc_result import MIB, MONETDB, SCALES, SHARES, Plan, Result, Row, share_of
from .ddc_sessions import ALL_LOCAL as LOCAL
from .ddc_sessions import (
    DISK,
    FAR,
    Counted,
    Monet,
    PostgresSession,
    Session,
    Setup,
    TooMuchError,
    closing,
    forget_files,
    same_answers,
)

PEAKS, COLD, HOT, STREAMS, JOINS = "peaks", "cold", "hot", "two streams", "joins"
SIZES, SIZES_COLD, MIXES, PREFETCH = "sizes", "sizes, cold", "mixes", "prefetch"
POOLS, WAYS = "pools", "ways"
JOIN_ALGORITHMS = ("nestloop", "mergejoin", "hashjoin")
SIZE_SHARES = (0.8, 0.4, 0.2, 0.1, 0.05)  # of the data
FIXED_SHARE = 0.4  # 4 GB of ten
SCALE_STEPS = (0.2, 0.6, 1.0, 1.6, 2.0)  # of the plan's, as 2 to 20 are of ten; local memory stays as it is
MIX_LENGTH, MIX_SEED = 50, 2020
MIX_SHARES = {"short-heavy": (8, 1, 1), "medium-heavy": (1, 8, 1), "long-heavy": (1, 1, 8), "random": (1, 1, 1)}
POOL_OWN_MIB = 150  # below, an embedded MonetDB with nothing in it does not start
POOL_SHARES = {"pool of all": 1.6, "pool 40 %": 0.4, "pool 10 %": 0.1}
DISK_LEAST = 24 * MIB  # the code of a database, too, is within the limit of a program that spills to a disk


def label_of(way: str, share: float) -> str:
    return f"{way}, {share:.0%} local" if share >= 0.01 else f"{way}, {share:.1%} local"


def _said(why: TooMuchError) -> str:
    """The last line: what is before it is where in a program it was."""
    return str(why).strip().splitlines()[-1][:200]


class Bed:
    """One database, with its data, and a memory node. Use with `with`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._stack = contextlib.ExitStack()
        self._server: Postgres | None = None
        self.data_bytes = 0
        self._answers: dict[str, str] = {}
        self._outside = 0

    def __enter__(self) -> "Bed":
        try:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="strata-ddc-")))
            self._folder.chmod(0o755)
            self._place = self._stack.enter_context(farmem.MemoryNode())
            self._make()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _make(self) -> None:
        if self.plan.system == MONETDB:
            farmem_monetdb.fetch(console.print)
            data = tpch.generated(self.plan.scale)
            self.data_bytes = sum((data / f"{table}.tbl").stat().st_size for table in tpch.TABLES)
            return
        packages.fetch(console.print)
        self._server = server = Postgres(self._folder)
        with console.status(f"loading TPC-H, scale {self.plan.scale:g}"):
            server.make()
            server.start({"shared_buffers": "256MB"})
            try:
                server.load_tpch(self.plan.scale)
                server.query("CREATE EXTENSION pg_prewarm;")
                self.data_bytes = int(server.query("SELECT pg_database_size('postgres')"))
            finally:
                server.stop()

    def session(self, setup: Setup, *, cold: bool = False) -> "contextlib.AbstractContextManager[Session]":
        if setup.way == DISK:
            setup = replace(setup, outside_bytes=max(self._outside, DISK_LEAST), disk_iops=self.plan.disk_iops)
        if setup.way == FAR:
            setup = replace(setup, link=self.plan.link)
        if self._server is None:
            return closing(Monet(setup, self._place, self._folder, self.plan.scale))
        if cold:
            forget_files(self._server.data)
        return closing(PostgresSession(setup, self._place, self._server, self.data_bytes))

    def note_outside(self, counted: Counted) -> None:
        self._outside = max(self._outside, counted.outside_bytes)

    def check(self, name: str, answer: str, where: str) -> None:
        same_answers(self._answers, name, answer, where)

    def text(self, number: int) -> str:
        return farmem_postgres.tpch_query(number, self.plan.scale)

    def texts(self) -> dict[str, str]:
        return {f"Q{number}": self.text(number) for number in self.plan.queries}


class Course:
    def __init__(self, bed: Bed, result: Result, keep: Callable[[Result], None]) -> None:
        self._bed, self._result, self._keep = bed, result, keep

    def run(self) -> None:
        kinds: dict[str, Callable[[], Iterator[Row]]] = {
            PEAKS: self._peaks,
            COLD: lambda: self._each(self._shares(), self._cold),
            HOT: lambda: self._each(self._shares(), self._hot),
            STREAMS: lambda: self._each(self._shares(), self._streams),
            JOINS: lambda: self._each(self._shares(), self._joins),
            SIZES: lambda: self._each(self._sizes(), self._hot),
            SIZES_COLD: lambda: self._each(self._sizes(), self._cold),
            MIXES: self._mixes,
            PREFETCH: lambda: self._each(self._shares()[1:2], self._prefetched),
            POOLS: lambda: self._each(self._pools(), self._hot),
            WAYS: lambda: self._each(self._ways(), self._hot),
        }
        for row in kinds[self._result.plan.kind]():
            self._result.rows.append(row)
            self._keep(self._result)

    def measured(self, setup: Setup, *, cold: bool) -> Iterator[Row]:
        yield from (self._cold if cold else self._hot)(setup)

    def _share(self, share: float) -> int:
        return share_of(self._result.data_bytes, share)

    def _shares(self) -> list[Setup]:
        return [Setup(LOCAL), *(Setup(label, FAR, self._share(share)) for label, share in SHARES.items())]

    def _sizes(self) -> list[Setup]:
        # What the program has beside its far memory is known when it comes to the disk.
        far = [Setup(label_of(FAR, share), FAR, self._share(share)) for share in SIZE_SHARES]
        return [Setup(LOCAL), *far, *(Setup(label_of(DISK, share), DISK, self._share(share)) for share in SIZE_SHARES)]

    def _pools(self) -> list[Setup]:
        places = {"all local": (LOCAL, 0), "40 %": (FAR, self._share(0.4)), "0.6 %": (FAR, self._share(0.006))}
        return [
            Setup(f"{place}, {pool}", way, local, pool_mib=POOL_OWN_MIB + round(share * self._result.data_bytes / MIB))
            for place, (way, local) in places.items()
            for pool, share in POOL_SHARES.items()
        ]

    def _ways(self) -> list[Setup]:
        local = self._share(SHARES["10 %"])
        local -= local % (256 * 4096)  # whole sets
        local = max(local, 1024 * 4096)
        half = local // 4096 // 2
        policies = {
            "1-way": "assoc:1",
            "256-way": "assoc:256",
            "half of full": f"assoc:{half}",
            "FIFO": "fifo",
            "second chance": "second-chance",
        }
        return [Setup(LOCAL), *(Setup(label, FAR, local, policy) for label, policy in policies.items())]

    def _each(self, setups: Sequence[Setup], measure: Callable[[Setup], Iterator[Row]]) -> Iterator[Row]:
        for setup in setups:
            with console.status(f"{self._result.plan.name}: {setup.label}"):
                yield from measure(setup)

    def _asked(self, session: Session, setup: Setup, name: str, text: str) -> Row:
        """A query once; too much for it is a result, too."""
        before = session.counted()
        asked = session.ask(text)
        self._bed.check(name, asked.answer, setup.label)
        counted = session.counted().since(before)
        if setup.way == FAR:
            self._bed.note_outside(counted)
        return Row(setup.label, name, asked.seconds, counted.fetched_bytes, counted.faults)

    def _twice(self, setup: Setup, texts: Mapping[str, str]) -> Iterator[Row]:
        """Each query twice; the second time counts. After one that was too much: another database."""
        left = dict(texts)
        while left:
            try:
                with self._bed.session(setup) as session:
                    for name in list(left):
                        text = left.pop(name)
                        try:
                            self._bed.check(name, session.ask(text).answer, setup.label)
                            yield self._asked(session, setup, name, text)
                        except TooMuchError as why:
                            yield Row(setup.label, name, 0.0, note=_said(why))
                            break
            except TooMuchError as why:  # it did not even load
                yield from (Row(setup.label, name, 0.0, note=_said(why)) for name in left)
                return

    def _hot(self, setup: Setup) -> Iterator[Row]:
        yield from self._twice(setup, self._bed.texts())

    def _cold(self, setup: Setup) -> Iterator[Row]:
        """Each query on a server that has just been started, and files that no cache has."""
        for name, text in self._bed.texts().items():
            try:
                with self._bed.session(setup, cold=True) as session:
                    yield self._asked(session, setup, name, text)
            except TooMuchError as why:
                yield Row(setup.label, name, 0.0, note=_said(why))

    def _joins(self, setup: Setup) -> Iterator[Row]:
        """Two of the three algorithms are switched off. Query 13 by nested loops ends nowhere, says the paper."""
        texts = {}
        for number in self._result.plan.queries:
            for algorithm in JOIN_ALGORITHMS[1 if number == 13 else 0 :]:
                off = "".join(f"SET enable_{other} = off;\n" for other in JOIN_ALGORITHMS if other != algorithm)
                texts[f"Q{number} {algorithm}"] = off + self._bed.text(number)
        yield from self._twice(setup, texts)

    def _streams(self, setup: Setup) -> Iterator[Row]:
        """Two clients at once, each with all queries, one from the first on, the other from the middle on."""
        texts = list(self._bed.texts().values())
        half = len(texts) // 2
        with self._bed.session(setup) as session:
            session.ask_at_once([texts])  # everything has been read once
            before = session.counted()
            started = time.monotonic()
            streams = session.ask_at_once([texts, [*texts[half:], *texts[:half]]])
            seconds = time.monotonic() - started
            counted = session.counted().since(before)
        first, second = ([asked.answer for asked in stream] for stream in streams)
        for number, answer in enumerate(first):
            self._bed.check(f"of stream {number}", answer, setup.label)
        for number, answer in enumerate([*second[len(texts) - half :], *second[: len(texts) - half]]):
            self._bed.check(f"of stream {number}", answer, setup.label)
        yield Row(setup.label, "both streams", seconds, counted.fetched_bytes, counted.faults)

    def _peaks(self) -> Iterator[Row]:
        setup = Setup(LOCAL)
        with self._bed.session(setup) as session:
            for name, text in self._bed.texts().items():
                session.ask(text)
                asked = session.ask(text, with_peak=True)
                self._bed.check(name, asked.answer, setup.label)
                yield Row(LOCAL, name, asked.seconds, peak_bytes=asked.peak_bytes)

    def _prefetched(self, setup: Setup) -> Iterator[Row]:
        """Cold, hot, and cold after all tables and indexes were read into the buffers; how long that takes, too."""
        warm = "SELECT SUM(pg_prewarm(oid)) FROM pg_class WHERE relkind IN ('r', 'i', 'm') AND oid >= 16384;\n"
        for name, text in self._bed.texts().items():
            with self._bed.session(setup, cold=True) as session:
                yield replace(self._asked(session, setup, name, text), setup="cold")
                yield replace(self._asked(session, setup, name, text), setup="hot")
            with self._bed.session(setup, cold=True) as session:
                yield replace(self._asked(session, setup, "prefetch", warm), setup="prefetch", query=name)
                yield replace(self._asked(session, setup, name, text), setup="after prefetch")

    def _mixes(self) -> Iterator[Row]:
        """Fifty queries, drawn by how long they take with all memory local; one after the other, from cold buffers on."""
        took: dict[str, float] = {}
        for row in self._hot(Setup(LOCAL)):
            took[row.query] = row.seconds
        drawn = mixes_of(took)
        local = self._share(FIXED_SHARE)
        for setup in (Setup(LOCAL), Setup(FAR, FAR, local), Setup(DISK, DISK, local)):
            for mix, names in drawn.items():
                with console.status(f"{self._result.plan.name}: {setup.label}, {mix}"):
                    yield self._mix(setup, mix, names)

    def _mix(self, setup: Setup, mix: str, names: Sequence[str]) -> Row:
        texts = self._bed.texts()
        series: list[float] = []
        try:
            with self._bed.session(setup, cold=True) as session:
                before = session.counted()
                for name in names:
                    asked = session.ask(texts[name])
                    self._bed.check(name, asked.answer, setup.label)
                    series.append((series[-1] if series else 0.0) + asked.seconds)
                counted = session.counted().since(before)
        except TooMuchError as why:
            return Row(setup.label, mix, 0.0, note=f"after {len(series)} queries: {_said(why)}", series=series)
        if setup.way == FAR:
            self._bed.note_outside(counted)
        return Row(setup.label, mix, series[-1], counted.fetched_bytes, counted.faults, series=series)


def mixes_of(took: Mapping[str, float], length: int = MIX_LENGTH, seed: int = MIX_SEED) -> dict[str, list[str]]:
    """Which queries each mix has, in order. A third of all queries is short, a third long."""
    chosen = random.Random(seed)
    by_time = sorted(took, key=lambda name: took[name])
    third = len(by_time) / 3
    classes = [by_time[round(n * third) : round((n + 1) * third)] or by_time for n in range(3)]
    out: dict[str, list[str]] = {}
    for mix, weights in MIX_SHARES.items():
        if mix == "random":
            out[mix] = chosen.choices(by_time, k=length)
            continue
        counts = [round(length * weight / sum(weights)) for weight in weights]
        names = [name for count, names in zip(counts, classes, strict=True) for name in chosen.choices(names, k=count)]
        chosen.shuffle(names)
        out[mix] = names
    return out


def run(plan: Plan, keep: Callable[[Result], None]) -> Result:
    """Every setup in turn; answers must be equal. Blocks for minutes; `keep` is called after each part."""
    if plan.kind == SCALES:
        return _scales(plan, keep)
    with Bed(plan) as bed:
        result = Result(plan, bed.data_bytes)
        Course(bed, result, keep).run()
    return result


def _scales(plan: Plan, keep: Callable[[Result], None]) -> Result:
    """The same local memory, more and more data."""
    out: Result | None = None
    local = 0
    for step in SCALE_STEPS:
        scaled = replace(plan, scale=round(plan.scale * step, 4))
        with Bed(scaled) as bed:
            if out is None:
                local = share_of(round(bed.data_bytes / step), FIXED_SHARE)
                out = Result(plan, round(bed.data_bytes / step))
            part = Course(bed, Result(scaled, bed.data_bytes), lambda _: None)
            for setup in (Setup(LOCAL), Setup(FAR, FAR, local), Setup(DISK, DISK, local)):
                with console.status(f"{plan.name}: scale {scaled.scale:g}, {setup.label}"):
                    for row in part.measured(setup, cold=plan.system != MONETDB):
                        out.rows.append(replace(row, query=f"{row.query}, scale {scaled.scale:g}"))
                        keep(out)
    if out is None:
        raise StrataError("no scale to measure")
    return out
