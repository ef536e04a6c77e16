"""Foreign keys: rows per second, and CPU of the server per row.

    insert          children of random parents by several clients, each committed by itself (bench/sysbench/children.lua)
    insert_to_one   the same, all of one parent
    insert_bulk     children in one statement
    delete_cascade  all parents in one statement; their children go along
    update_cascade  every parent gets another key in one statement; its children follow
    set_null        all parents go, their children stay without one

Each measurement has tables of its own, made anew. A rate of cascades counts the children.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from .. import paths, setup_cmd
from ..server import Server
from ..shell import console
from . import process, report
from .comparison import INNODB, STRATA, Row, Sample, in_turns
from .servers import IN_MEMORY, bench_server, database
from .sysbench import Bench, parse, transactions

SCRIPT = paths.ROOT / "bench" / "sysbench" / "children.lua"
CHILDREN_EACH = 20
PARENTS = 1000  # of children that are inserted
LOAD_ROWS_PER_S = 80_000  # for the estimate


class Change(StrEnum):
    insert = "insert"
    insert_to_one = "insert_to_one"
    insert_bulk = "insert_bulk"
    delete_cascade = "delete_cascade"
    update_cascade = "update_cascade"
    set_null = "set_null"


@dataclass(frozen=True)
class Statement:
    """With {rows}: children. `actions` of the foreign key."""

    text: str
    actions: str = ""
    filled: bool = True


CLIENTS = {Change.insert: PARENTS, Change.insert_to_one: 1}
STATEMENTS = {
    Change.insert_bulk: Statement(
        f"INSERT INTO child (p, c) SELECT 1 + seq % {PARENTS}, 'child' FROM seq_1_to_{{rows}}", filled=False
    ),
    Change.delete_cascade: Statement("DELETE FROM parent", "ON DELETE CASCADE"),
    Change.update_cascade: Statement("UPDATE parent SET id = id + 1000000", "ON UPDATE CASCADE"),
    Change.set_null: Statement("DELETE FROM parent", "ON DELETE SET NULL"),
}


@dataclass(frozen=True)
class Plan:
    changes: tuple[Change, ...] = tuple(Change)
    engines: tuple[str, ...] = (STRATA, INNODB)
    threads: tuple[int, ...] = (1, 16)
    rows: int = 200_000
    seconds: int = 5
    rounds: int = 5

    def estimate_s(self) -> float:
        statements = len([change for change in self.changes if change in STATEMENTS])
        clients = len(self.threads) * (len(self.changes) - statements)
        each = statements * 2 * self.rows / LOAD_ROWS_PER_S + clients * (self.seconds + 1)
        return len(self.engines) * self.rounds * each

    def settings(self) -> dict[str, object]:
        return {"rows": self.rows, "rounds": self.rounds, "seconds": self.seconds}


def chosen(names: Sequence[Change] | None) -> tuple[Change, ...]:
    return tuple(names) if names else tuple(Change)


def run(plan: Plan, json_file: Path | None = None, plot_file: Path | None = None) -> None:
    setup_cmd.ensure_setup()
    console.print(f"foreign keys, {' and '.join(plan.engines)} in turns: about {plan.estimate_s() / 60:.0f} minutes")
    rows: list[Row] = []
    for row in _rows(plan):
        rows.append(row)
        report.save(rows, plan.settings(), json_file)
        console.print(report.line(row))
    report.publish(rows, plan.settings(), json_file, plot_file)


def _rows(plan: Plan) -> Iterator[Row]:
    with bench_server(IN_MEMORY, plan.engines) as server:
        for change in plan.changes:
            if change in STATEMENTS:
                row = Row(f"references_{change}", 1, "memory", "rows/s")
                yield in_turns(row, plan.engines, plan.rounds, partial(measure, server, STATEMENTS[change], plan.rows))
                continue
            for threads in plan.threads:
                row = Row(f"references_{change}", threads, "memory", "transactions/s")
                yield in_turns(
                    row, plan.engines, plan.rounds, partial(measure_clients, server, CLIENTS[change], threads, plan.seconds)
                )


def make_tables(cursor: Any, engine: str, parents: int, actions: str) -> None:
    cursor.execute("DROP TABLE IF EXISTS child, parent")
    cursor.execute(f"CREATE TABLE parent (id INT PRIMARY KEY, c CHAR(60)) ENGINE={engine}")
    cursor.execute(
        "CREATE TABLE child (id INT AUTO_INCREMENT PRIMARY KEY, p INT, c CHAR(60), KEY (p),"
        f" FOREIGN KEY (p) REFERENCES parent (id) {actions}) ENGINE={engine}"
    )
    cursor.execute(f"INSERT INTO parent SELECT seq, 'parent' FROM seq_1_to_{parents}")


def measure(server: Server, statement: Statement, rows: int, engine: str) -> Sample:
    with closing(server.connect(database=database(engine), autocommit=True)) as connection, connection.cursor() as cursor:
        parents = rows // CHILDREN_EACH if statement.filled else PARENTS
        make_tables(cursor, engine, parents, statement.actions)
        if statement.filled:
            cursor.execute(f"INSERT INTO child (p, c) SELECT 1 + seq % {parents}, 'child' FROM seq_1_to_{rows}")
        pid = server.pid()
        assert pid is not None
        began, used_s = time.monotonic(), process.cpu_s(pid)
        cursor.execute(statement.text.format(rows=rows))
        seconds, cpu_s = time.monotonic() - began, process.cpu_s(pid) - used_s
        return Sample(rows / seconds, cpu_us=cpu_s * 1e6 / rows)


def measure_clients(server: Server, parents: int, threads: int, seconds: int, engine: str) -> Sample:
    with closing(server.connect(database=database(engine), autocommit=True)) as connection, connection.cursor() as cursor:
        make_tables(cursor, engine, parents, "")
    pid = server.pid()
    assert pid is not None
    used_s = process.cpu_s(pid)
    outcome = Bench(server, 1, parents).run_script(engine, SCRIPT, threads, seconds + 300, f"--time={seconds}")
    cpu_us = (process.cpu_s(pid) - used_s) * 1e6 / transactions(outcome)
    return replace(parse(outcome), cpu_us=cpu_us)
