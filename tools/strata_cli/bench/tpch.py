"""TPC-H: loading and the 22 queries, in both engines; the engines' answers are compared."""

import re
import shutil
import time
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pymysql

from .. import paths, setup_cmd
from ..server import Server
from ..shell import StrataError, console, run_logged
from . import report
from .comparison import INNODB, STRATA, Row, Sample, in_turns
from .servers import MIB, Memory, bench_server, database

SOURCES = paths.ROOT / "bench" / "tpch"
TABLES = ("region", "nation", "supplier", "part", "partsupp", "customer", "orders", "lineitem")
QUERIES = range(1, 23)
# The server's error for max_statement_time.
STATEMENT_TIMEOUT = 1969
LOAD_TIMEOUT_S = 3 * 3600.0

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Plan:
    engines: tuple[str, ...] = (STRATA, INNODB)
    scale: float = 0.1
    queries: tuple[int, ...] = tuple(QUERIES)
    rounds: int = 3
    loads: int = 1
    limit_s: float = 120

    @property
    def memory(self) -> Memory:
        """Data and indexes fit: TPC-H here asks what a query costs, not what a disk does."""
        return Memory(pool_bytes=max(1024, int(self.scale * 4096)) * MIB)

    def settings(self) -> dict[str, object]:
        return {
            "scale": self.scale,
            "rounds": self.rounds,
            "loads": self.loads,
            "limit_s": self.limit_s,
            "pool_bytes": self.memory.pool_bytes,
        }


def run(plan: Plan, json_file: Path | None = None, plot_file: Path | None = None) -> None:
    setup_cmd.ensure_setup()
    data = generated(plan.scale)
    with bench_server(plan.memory, plan.engines) as server:
        bench = Bench(server, plan, data)
        rows = [in_turns(Row("load", 1, bench.dataset, "s", less_is_better=True), plan.engines, plan.loads, bench.load)]
        console.print(report.line(rows[0]))
        for engine in plan.engines:
            bench.analyze(engine)
        for query in plan.queries:
            rows.append(bench.row(query))
            report.save(rows, plan.settings(), json_file)
            console.print(report.line(rows[-1]))
    report.publish(rows, plan.settings(), json_file, plot_file)
    compared = f"the engines' answers to {len(plan.queries)} queries"
    if bench.different:
        raise StrataError(
            f"{compared} differ in {', '.join(f'Q{n}' for n in bench.different)}; see build/bench/tpch-difference-*"
        )
    if len(plan.engines) > 1:
        console.print(f"{compared} are equal" + (" (timeouts not compared)" if any(row.notes for row in rows) else ""))


def generated(scale: float) -> Path:
    """The tables' text files, made once per scale."""
    folder = paths.BUILD / "bench" / f"tpch-{scale:g}"
    complete = folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with console.status(f"generating TPC-H data, scale {scale:g}"):
            command = [str(paths.venv_bin("tpchgen-cli")), "tbl", "--scale-factor", f"{scale:g}", "--output-dir", str(folder)]
            outcome = run_logged(command, paths.LOGS / "bench-tpchgen.log", timeout_s=3600)
        if not outcome.ok:
            raise StrataError(f"tpchgen-cli failed ({paths.relative(outcome.log)}):\n{outcome.tail(12)}")
        complete.touch()
    return folder


def schema() -> list[str]:
    text = re.sub(r"^--.*$", "", (SOURCES / "schema.sql").read_text(), flags=re.MULTILINE)
    return [statement for part in text.split(";") if (statement := part.strip())]


def query_text(number: int, scale: float) -> str:
    # Q11's fraction shrinks with the scale, so that its answer does not (specification 2.4.11.3).
    fraction = f"{Decimal('0.0001') / Decimal(str(scale)):f}"
    return (SOURCES / "queries" / f"{number:02}.sql").read_text().replace(":fraction", fraction)


class Bench:
    """TPC-H's tables in one server, once per engine."""

    def __init__(self, server: Server, plan: Plan, data: Path) -> None:
        self._server, self._plan, self._data = server, plan, data
        self.dataset = f"scale {plan.scale:g}"
        self.different: list[int] = []

    def load(self, engine: str) -> Sample:
        """Makes the tables anew; one client, one LOAD DATA per table, indexes in place."""
        name = database(engine)
        self._server.query(f"DROP DATABASE {name}")
        self._server.query(f"CREATE DATABASE {name} CHARACTER SET latin1 COLLATE latin1_bin")
        connection = self._connect(engine, local_infile=True, read_timeout=LOAD_TIMEOUT_S)
        try:
            with connection.cursor() as cursor, console.status(f"loading scale {self._plan.scale:g} into {engine}"):
                for statement in schema():
                    cursor.execute(statement)
                started = time.monotonic()
                for table in TABLES:
                    cursor.execute(_load_statement(self._data / f"{table}.tbl", table))
                took_s = time.monotonic() - started
                self._check_counts(cursor)
                return Sample(took_s)
        finally:
            connection.close()

    def _check_counts(self, cursor: "pymysql.cursors.Cursor") -> None:
        for table in TABLES:
            cursor.execute(f"SELECT COUNT(*) FROM {table}")
            found = cursor.fetchall()[0][0]
            with (self._data / f"{table}.tbl").open("rb") as lines:
                expected = sum(1 for _ in lines)
            if found != expected:
                raise StrataError(f"{table} holds {found} rows after loading, its file {expected}")

    def analyze(self, engine: str) -> None:
        for table in TABLES:
            self._server.query(f"ANALYZE TABLE {database(engine)}.{table}", read_timeout=LOAD_TIMEOUT_S)

    def row(self, query: int) -> Row:
        """Warm-up runs give the answers to compare; an engine that exceeds the limit then is not measured."""
        row = Row(f"Q{query}", 1, self.dataset, "s", less_is_better=True)
        answers: dict[str, Rows] = {}
        for engine in self._plan.engines:
            answer, _ = self.ask(engine, query)
            if answer is None:
                row.notes[engine] = "timeout"
            else:
                answers[engine] = answer
        if len(answers) == 2 and answers[STRATA] != answers[INNODB]:
            self.different.append(query)
            self._keep(query, answers)
        return in_turns(row, tuple(answers), self._plan.rounds, lambda engine: Sample(self.ask(engine, query)[1]))

    def ask(self, engine: str, query: int) -> tuple[Rows | None, float]:
        """Its answer, None if it takes too long, and the seconds that it took."""
        connection = self._connect(engine, read_timeout=self._plan.limit_s + 300)
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SET max_statement_time = {self._plan.limit_s}")
                started = time.monotonic()
                cursor.execute(query_text(query, self._plan.scale))
                rows = list(cursor.fetchall())
                return rows, time.monotonic() - started
        except pymysql.MySQLError as error:
            if error.args[0] != STATEMENT_TIMEOUT:
                raise StrataError(f"Q{query} failed in {engine}: {error}") from None
            return None, self._plan.limit_s
        finally:
            connection.close()

    def _connect(self, engine: str, **options: Any) -> "pymysql.connections.Connection[Any]":
        set_engine = f"SET default_storage_engine = {engine}"
        return self._server.connect(database=database(engine), init_command=set_engine, autocommit=True, **options)

    def _keep(self, query: int, answers: dict[str, Rows]) -> None:
        for engine, rows in answers.items():
            text = "".join("|".join(str(value) for value in row) + "\n" for row in rows)
            (paths.BUILD / "bench" / f"tpch-difference-q{query:02}-{engine.lower()}").write_text(text)


def _load_statement(file: Path, table: str) -> str:
    where = str(file).replace("\\", "\\\\").replace("'", "\\'")
    return f"LOAD DATA LOCAL INFILE '{where}' INTO TABLE {table} FIELDS TERMINATED BY '|' LINES TERMINATED BY '|\\n'"


def chosen(text: str | None) -> tuple[int, ...]:
    if text is None:
        return tuple(QUERIES)
    try:
        numbers = tuple(int(part.strip().lstrip("Qq")) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or any(number not in QUERIES for number in numbers):
        raise StrataError(f"--queries {text}: give numbers from 1 to 22 with commas between them")
    return numbers
