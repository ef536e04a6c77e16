"""Statements that change or lock many rows of one table, one client: rows per second, and CPU of the server per row.

    delete            every second row, found by a scan of the whole table
    delete_range      a range of the primary key
    delete_no_key     as delete, of a table without any key
    update_range      one column of a range of the primary key
    select_for_update every row, in a transaction that then gives up
    select_share      the same with LOCK IN SHARE MODE

Each measurement has a table of its own, made anew, so that neither engine works on what an earlier statement left.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from .. import setup_cmd
from ..server import Server
from ..shell import console
from . import process, report
from .comparison import INNODB, STRATA, Row, Sample, in_turns
from .servers import IN_MEMORY, bench_server, database

LOAD_ROWS_PER_S = 150_000  # for the estimate


class Scan(StrEnum):
    delete = "delete"
    delete_range = "delete_range"
    delete_no_key = "delete_no_key"
    update_range = "update_range"
    select_for_update = "select_for_update"
    select_share = "select_share"


KEY, NO_KEY = ", PRIMARY KEY (id)", ""


@dataclass(frozen=True)
class Statement:
    """With {rows}: of the table. `touched`: the share of them that is changed or locked."""

    text: str
    touched: float
    key: str = KEY
    undone: bool = False  # read only: rolled back, outside of what is measured


STATEMENTS = {
    Scan.delete: Statement("DELETE FROM t WHERE k % 2 = 0", 0.5),
    Scan.delete_range: Statement("DELETE FROM t WHERE id BETWEEN {rows} / 4 AND {rows} * 3 / 4", 0.5),
    Scan.delete_no_key: Statement("DELETE FROM t WHERE k % 2 = 0", 0.5, NO_KEY),
    Scan.update_range: Statement("UPDATE t SET k = k + 1 WHERE id BETWEEN {rows} / 4 AND {rows} * 3 / 4", 0.5),
    Scan.select_for_update: Statement("SELECT COUNT(k) FROM t FOR UPDATE", 1, undone=True),
    Scan.select_share: Statement("SELECT COUNT(k) FROM t LOCK IN SHARE MODE", 1, undone=True),
}


@dataclass(frozen=True)
class Plan:
    scans: tuple[Scan, ...] = tuple(Scan)
    engines: tuple[str, ...] = (STRATA, INNODB)
    rows: int = 400_000
    rounds: int = 5

    def estimate_s(self) -> float:
        return len(self.scans) * len(self.engines) * self.rounds * (self.rows / LOAD_ROWS_PER_S + 1)

    def settings(self) -> dict[str, object]:
        return {"rows": self.rows, "rounds": self.rounds}


def chosen(names: Sequence[Scan] | None) -> tuple[Scan, ...]:
    return tuple(names) if names else tuple(Scan)


def run(plan: Plan, json_file: Path | None = None, plot_file: Path | None = None) -> None:
    setup_cmd.ensure_setup()
    console.print(f"scans, {' and '.join(plan.engines)} in turns: about {plan.estimate_s() / 60:.0f} minutes")
    rows: list[Row] = []
    for row in _rows(plan):
        rows.append(row)
        report.save(rows, plan.settings(), json_file)
        console.print(report.line(row))
    report.publish(rows, plan.settings(), json_file, plot_file)


def _rows(plan: Plan) -> Iterator[Row]:
    with bench_server(IN_MEMORY, plan.engines) as server:
        for scan in plan.scans:
            row = Row(f"scan_{scan}", 1, "memory", "rows/s")
            yield in_turns(row, plan.engines, plan.rounds, partial(measure, server, scan, plan.rows))


def measure(server: Server, scan: Scan, rows: int, engine: str) -> Sample:
    statement = STATEMENTS[scan]
    with closing(server.connect(database=database(engine), autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS t")
        cursor.execute(f"CREATE TABLE t (id INT NOT NULL, k INT, c CHAR(120), pad CHAR(60){statement.key}) ENGINE={engine}")
        cursor.execute(f"INSERT INTO t SELECT seq, seq, REPEAT('c', 100), 'pad' FROM seq_1_to_{rows}")
        pid = server.pid()
        assert pid is not None
        cursor.execute("BEGIN")
        began, used_s = time.monotonic(), process.cpu_s(pid)
        cursor.execute(statement.text.format(rows=rows))
        if not statement.undone:
            cursor.execute("COMMIT")
        seconds, cpu_s = time.monotonic() - began, process.cpu_s(pid) - used_s
        cursor.execute("ROLLBACK")
        touched = rows * statement.touched
        return Sample(touched / seconds, cpu_us=cpu_s * 1e6 / touched)
