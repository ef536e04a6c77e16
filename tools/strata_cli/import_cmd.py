"""`./strata import`: tables of another engine become STRATA's, one after the other, while the server runs.

What is done and what is left is in the server itself: a table's engine, and in the schema strata_import the families whose
foreign keys are dropped at the moment. So whatever ends the command, running it again goes on.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import ER
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Shown

from .import_plan import Family, ForeignKey, Name, Table, add_keys, convert, drop_keys, families, from_json, to_json
from .server import Server
from .shell import StrataError, console, errors

SOURCE = "InnoDB"
TARGET = "STRATA"
JOURNAL = "strata_import"
NOT_OURS = ("mysql", "sys", "information_schema", "performance_schema", JOURNAL)
# As dumps are loaded: rows with the number 0, and dates that are refused today, stay what they are.
SQL_MODE = "NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES"
LOOK_EVERY_S = 0.5
LOST = (ER.SERVER_SHUTDOWN, 2006, 2013)
Connect = Callable[[], "pymysql.connections.Connection[Any]"]


@dataclass
class Wishes:
    databases: list[str] = field(default_factory=list)  # Empty: all but the server's own.
    lock_wait_s: int = 60
    binary_log: bool = True
    dry_run: bool = False


@dataclass
class Report:
    converted: dict[str, float] = field(default_factory=dict)  # Seconds.
    left: dict[str, str] = field(default_factory=dict)  # Why.
    planned: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"converted": self.converted, "left": self.left, "planned": self.planned}


def import_tables(data: Path, defaults_file: Path | None, wishes: Wishes, as_json: bool) -> int:
    """0: all tables are STRATA's. 1: some are not; the report says why."""
    try:
        with _progress(as_json) as progress, contextlib.closing(Import(_way_to(data, defaults_file), wishes, progress)) as work:
            report = work.run()
    except pymysql.MySQLError as error:
        raise StrataError(f"{_text(error)}; run the command again to go on where it stopped") from None
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        _show(report, wishes)
    return 1 if report.left else 0


class Import:
    """One run, on a connection of its own and now and then another one to look."""

    def __init__(self, connect: Connect, wishes: Wishes, progress: Progress) -> None:
        self._connect = connect
        self._connection = connect()
        self._wishes = wishes
        self._progress = progress
        self._task = progress.add_task("", total=1, now="", state="")
        self._report = Report()

    def close(self) -> None:
        with contextlib.suppress(pymysql.MySQLError):
            self._connection.close()

    def run(self) -> Report:
        self._prepare()
        pending = self._pending()
        begun = {table.name for family in pending for table in family.tables}
        rest = [family for family in self._planned() if not begun & {table.name for table in family.tables}]
        todo = [*pending, *rest]
        if self._wishes.dry_run:
            self._plan(todo)
            return self._report
        self._progress.update(self._task, total=sum(max(family.size(), 1) for family in todo))
        for family in todo:
            self._progress.update(self._task, now=family.label(), state="")
            if obstacles := family.obstacles():
                self._report.left |= {_dotted(name): reason for name, reason in obstacles.items()}
            elif family.keys:
                self._convert_family(family)
            else:
                self._convert_single(family.tables[0])
            self._progress.advance(self._task, max(family.size(), 1))
        self._forget_journal()
        return self._report

    # --- what there is ---------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if not self._rows("SELECT 1 FROM information_schema.ENGINES WHERE ENGINE = %s AND SUPPORT IN ('YES', 'DEFAULT')", TARGET):
            raise StrataError(f"the server runs without {TARGET}; to load it: INSTALL SONAME 'ha_strata'")
        self._do(f"SET SESSION sql_mode = '{SQL_MODE}', lock_wait_timeout = {self._wishes.lock_wait_s}")
        if not self._wishes.binary_log:
            self._do("SET SESSION sql_log_bin = 0")
        for database in self._wishes.databases:
            if not self._rows("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", database):
                raise StrataError(f"there is no database {database}")

    def _planned(self) -> list[Family]:
        keys = self._keys()
        tables = []
        rows = self._rows(
            "SELECT TABLE_SCHEMA, TABLE_NAME, DATA_LENGTH + INDEX_LENGTH, CREATE_OPTIONS FROM information_schema.TABLES"
            " WHERE ENGINE = %s AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED', 'SEQUENCE') AND TABLE_SCHEMA NOT IN %s"
            " ORDER BY 1, 2",
            SOURCE,
            NOT_OURS,
        )
        special = {
            (schema, table): kind
            for schema, table, kind in self._rows(
                "SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME, INDEX_TYPE FROM information_schema.STATISTICS"
                " WHERE INDEX_TYPE IN ('FULLTEXT', 'SPATIAL')"
            )
        }
        for schema, table, size, options in rows:
            obstacle = ""
            if (schema, table) in special:
                obstacle = f"it has a {special[schema, table]} index"
            elif "partitioned" in (options or ""):
                obstacle = "it is partitioned"
            elif self._wishes.databases and schema not in self._wishes.databases:
                obstacle = "its database was not named"
            tables.append(Table((schema, table), int(size or 0), obstacle))
        found = families(tables, keys)
        wanted = self._wishes.databases
        # Relatives of tables that were named matter; the rest of other databases does not.
        return [family for family in found if not wanted or any(table.name[0] in wanted for table in family.tables)]

    def _keys(self) -> list[ForeignKey]:
        rules = {
            (schema, table, name): (on_delete, on_update)
            for schema, table, name, on_delete, on_update in self._rows(
                "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE"
                " FROM information_schema.REFERENTIAL_CONSTRAINTS"
            )
        }
        columns: dict[tuple[str, str, str], list[tuple[str, Name, str]]] = {}
        for schema, table, name, column, parent_schema, parent, parent_column in self._rows(
            "SELECT TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, COLUMN_NAME, REFERENCED_TABLE_SCHEMA, REFERENCED_TABLE_NAME,"
            " REFERENCED_COLUMN_NAME FROM information_schema.KEY_COLUMN_USAGE WHERE REFERENCED_TABLE_NAME IS NOT NULL"
            " ORDER BY TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, ORDINAL_POSITION"
        ):
            columns.setdefault((schema, table, name), []).append((column, (parent_schema, parent), parent_column))
        found = []
        for (schema, table, name), parts in columns.items():
            on_delete, on_update = rules[schema, table, name]
            own, theirs = tuple(part[0] for part in parts), tuple(part[2] for part in parts)
            found.append(ForeignKey((schema, table), name, own, parts[0][1], theirs, on_delete, on_update))
        return found

    def _engine(self, name: Name) -> str | None:
        rows = self._rows("SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s", *name)
        return rows[0][0] if rows else None

    # --- the journal -----------------------------------------------------------------------------------------------

    def _pending(self) -> list[Family]:
        """Families that an earlier run had begun: some of their foreign keys may be nowhere but here."""
        if not self._rows("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", JOURNAL):
            return []
        return [from_json(json.loads(row[0])) for row in self._rows(f"SELECT family FROM {JOURNAL}.journal ORDER BY id")]

    def _note(self, family: Family) -> None:
        text = json.dumps(to_json(family))
        self._do(f"CREATE DATABASE IF NOT EXISTS {JOURNAL} CHARACTER SET utf8mb4")
        self._do(
            f"CREATE TABLE IF NOT EXISTS {JOURNAL}.journal (id INT AUTO_INCREMENT PRIMARY KEY, first_table VARCHAR(200),"
            f" family LONGTEXT, UNIQUE (first_table)) ENGINE={SOURCE}"
        )
        self._do(f"INSERT IGNORE INTO {JOURNAL}.journal (first_table, family) VALUES (%s, %s)", family.label(), text)

    def _forget(self, family: Family) -> None:
        self._do(f"DELETE FROM {JOURNAL}.journal WHERE first_table = %s", family.label())

    def _forget_journal(self) -> None:
        if self._rows("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", JOURNAL) and not self._pending():
            self._do(f"DROP DATABASE {JOURNAL}")

    # --- the work --------------------------------------------------------------------------------------------------

    def _convert_single(self, table: Table) -> None:
        began = time.monotonic()
        try:
            self._alter(convert(table.name, TARGET, []))
        except pymysql.MySQLError as error:
            self._raise_if_lost(error)
            self._report.left[_dotted(table.name)] = _text(error)
            return
        self._done(table.name, began)

    def _convert_family(self, family: Family) -> None:
        self._note(family)
        try:
            self._drop_from(family, SOURCE)
            for table in family.tables:
                self._convert_one_of(family, table.name)
            self._verify(family)
        except (pymysql.MySQLError, StrataError) as error:
            self._raise_if_lost(error)
            self._put_back(family, _text(error))
            return
        self._forget(family)

    def _convert_one_of(self, family: Family, name: Name) -> None:
        began = time.monotonic()
        engine, keys = self._engine(name), self._missing(family, name)
        if engine is None:
            raise StrataError(f"{_dotted(name)} is gone")
        with self._unchecked() if family.comes_too_early(name) else contextlib.nullcontext():
            if engine.upper() != TARGET:
                self._alter(convert(name, TARGET, keys))
                self._done(name, began)
            elif keys:
                self._alter(add_keys(name, keys))

    def _verify(self, family: Family) -> None:
        """What was added before its parent was there has not been checked by the server."""
        for key in family.keys:
            if family.comes_too_early(key.child) and (orphans := self._rows(key.orphans())[0][0]):
                raise StrataError(f"{orphans} rows have no parent for {key.name}; they came while it was dropped")

    def _put_back(self, family: Family, why: str) -> None:
        """All of the family is the source's again, with its foreign keys; if that fails, the journal has it for the next run."""
        self._drop_from(family, TARGET)
        with self._unchecked():
            for table in family.tables:
                if (self._engine(table.name) or "").upper() == TARGET:
                    self._alter(convert(table.name, SOURCE, []))
                    self._report.converted.pop(_dotted(table.name), None)
            for table in family.tables:
                if (missing := self._missing(family, table.name)) and self._engine(table.name):
                    self._alter(add_keys(table.name, missing))
        self._forget(family)
        self._report.left |= {_dotted(table.name): why for table in family.tables}

    def _drop_from(self, family: Family, engine: str) -> None:
        present = {(key.child, key.name) for key in self._keys()}
        for table in family.tables:
            keys = [key for key in family.keys_of(table.name) if (key.child, key.name) in present]
            if keys and (self._engine(table.name) or "").upper() == engine.upper():
                self._alter(drop_keys(table.name, keys))

    def _missing(self, family: Family, name: Name) -> list[ForeignKey]:
        present = {(key.child, key.name) for key in self._keys()}
        return [key for key in family.keys_of(name) if (key.child, key.name) not in present]

    def _done(self, name: Name, began: float) -> None:
        if (self._engine(name) or "").upper() != TARGET:
            raise StrataError(f"{_dotted(name)} was altered and is not {TARGET}'s; is enforce_storage_engine set?")
        self._report.converted[_dotted(name)] = round(time.monotonic() - began, 3)

    def _plan(self, todo: list[Family]) -> None:
        for family in todo:
            if obstacles := family.obstacles():
                self._report.left |= {_dotted(name): reason for name, reason in obstacles.items()}
            else:
                self._report.planned += [_dotted(table.name) for table in family.tables]

    # --- statements ------------------------------------------------------------------------------------------------

    def _raise_if_lost(self, error: Exception) -> None:
        if isinstance(error, pymysql.MySQLError) and error.args and error.args[0] in LOST:
            raise error

    @contextlib.contextmanager
    def _unchecked(self) -> Iterator[None]:
        self._do("SET SESSION foreign_key_checks = 0")
        try:
            yield
        finally:
            with contextlib.suppress(pymysql.MySQLError):
                self._do("SET SESSION foreign_key_checks = 1")

    def _alter(self, statement: str) -> None:
        """What the server says of its progress is shown meanwhile."""
        if self._progress.disable:
            self._do(statement)
            return
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._do, statement)
            while not wait([running], timeout=LOOK_EVERY_S).done:
                with contextlib.suppress(pymysql.MySQLError), contextlib.closing(self._connect()) as looking:
                    self._show_state(looking)
        running.result()

    def _show_state(self, looking: "pymysql.connections.Connection[Any]") -> None:
        with looking.cursor() as cursor:
            identity = self._connection.thread_id()  # type: ignore[no-untyped-call]
            cursor.execute("SELECT STATE, PROGRESS FROM information_schema.PROCESSLIST WHERE ID = %s", (identity,))
            for state, percent in cursor.fetchall():
                self._progress.update(self._task, state=f"{state} {percent:.0f} %" if percent else state)

    def _do(self, statement: str, *values: Any) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return list(cursor.fetchall())


def _way_to(data: Path, defaults_file: Path | None) -> Connect:
    """To the server of an option file of MariaDB, or to the one on a data folder."""
    if defaults_file is not None:
        if not defaults_file.is_file():
            raise StrataError(f"there is no file {defaults_file}")
        return lambda: pymysql.connect(read_default_file=str(defaults_file), autocommit=True, charset="utf8mb4")
    server = Server(data)
    if server.pid() is None:
        raise StrataError(f"no server runs on {server.data}; start it with ./strata up, or name one with --defaults-file")
    return lambda: server.connect(autocommit=True, read_timeout=None)


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """On stderr, and only where somebody looks."""
    columns = (BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn(), TextColumn("{task.fields[now]}"))
    with Progress(
        *columns, TextColumn("{task.fields[state]}"), console=errors, disable=quiet or not errors.is_terminal
    ) as progress:
        yield progress


def _show(report: Report, wishes: Wishes) -> None:
    for name in report.planned:
        console.print(f"would convert {name}", markup=False)
    if report.left:
        table = Shown("stays", "why")
        for name, why in sorted(report.left.items()):
            table.add_row(name, why)
        console.print(table)
    if not wishes.dry_run:
        seconds = sum(report.converted.values())
        console.print(f"{len(report.converted)} tables are {TARGET}'s now ({seconds:.1f} s), {len(report.left)} are not")


def _dotted(name: Name) -> str:
    return ".".join(name)


def _text(error: Exception) -> str:
    if isinstance(error, pymysql.MySQLError) and len(error.args) > 1:
        return f"error {error.args[0]}: {error.args[1]}"
    return str(error)
