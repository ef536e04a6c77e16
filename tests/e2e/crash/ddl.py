"""CREATE, ALTER, TRUNCATE, RENAME and DROP: after a crash each table is as before the statement in flight or as after it."""

import copy
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .clients import TURNED_AWAY
from .session import Connector, Excused, ServerGone, Session
from .worker import Worker

TABLES_MAX = 5
PREFIX = "ddl_"


@dataclass
class Table:
    rows: int = 0  # Rows 1..rows; a = id * 3, b = 'row <id>', an added column has its default value.
    added: dict[str, int] = field(default_factory=dict)
    indexes: dict[str, str] = field(default_factory=lambda: {"a_key": "a"})


Catalog = dict[str, Table]


class DdlWorker(Worker):
    """Owns all tables named ddl_*. `catalog` is what was acknowledged; `candidate` is it after the statement in flight."""

    def __init__(
        self, server: Connector, database: str, number: int, rng: random.Random, engine: str, catalog: Catalog, next_name: int
    ) -> None:
        super().__init__(server, database, number, rng)
        self.catalog = catalog
        self.candidate: Catalog | None = None
        self.next_name = next_name
        self.in_flight = ""
        self.was_answered = False  # with an error, though it may be done
        self._engine = engine

    def is_settled(self) -> bool:
        return self.candidate is None

    def not_logged(self) -> set[str]:
        """Tables that the statement in flight may have changed without a word in the binary log: the server writes it there after
        the engine has committed, and makes up for that at its next start neither for TRUNCATE nor where it had answered."""
        doubtful = self.candidate is not None and (self.was_answered or self.in_flight.startswith("TRUNCATE"))
        return set(re.findall(rf"\b{PREFIX}\d+", self.in_flight)) if doubtful else set()

    def step(self, session: Session) -> None:
        after = copy.deepcopy(self.catalog)
        statement = self._choose()(after)
        self.candidate, self.in_flight = after, statement
        try:
            session.execute(statement)
        except Excused as error:  # It may have come as far as it likes.
            self.was_answered = True
            raise ServerGone(str(error)) from error
        except ServerGone as error:
            self.was_answered = TURNED_AWAY in str(error)
            raise
        session.commit()
        self.catalog, self.candidate, self.in_flight = after, None, ""

    def abandon(self, session: Session) -> None:
        self.candidate = None
        super().abandon(session)

    def _choose(self) -> Callable[[Catalog], str]:
        if not self.catalog:
            return self._create
        choices = [self._fill, self._fill, self._add_column, self._drop_column, self._add_index, self._drop_index]
        choices += [self._truncate, self._rename, self._drop, self._rebuild]
        if len(self.catalog) < TABLES_MAX:
            choices += [self._create, self._create]
        return self.rng.choice(choices)

    def _new_name(self) -> str:
        self.next_name += 1
        return f"{PREFIX}{self.next_name}"

    def _some(self, after: Catalog) -> tuple[str, Table]:
        name = self.rng.choice(sorted(after))
        return name, after[name]

    def _create(self, after: Catalog) -> str:
        name = self._new_name()
        after[name] = Table()
        return f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT NOT NULL, b VARCHAR(100), KEY a_key (a)) ENGINE={self._engine}"

    def _fill(self, after: Catalog) -> str:
        name, table = self._some(after)
        first, table.rows = table.rows + 1, table.rows + self.rng.randint(1, 60)
        rows = ", ".join(f"({n}, {n * 3}, 'row {n}')" for n in range(first, table.rows + 1))
        return f"INSERT INTO {name} (id, a, b) VALUES {rows}"

    def _add_column(self, after: Catalog) -> str:
        name, table = self._some(after)
        value = self.rng.randint(1, 1000)
        column = f"c{value}"
        if column in table.added:
            return f"ALTER TABLE {name} FORCE"
        table.added[column] = value
        return f"ALTER TABLE {name} ADD COLUMN {column} INT NOT NULL DEFAULT {value}"

    def _drop_column(self, after: Catalog) -> str:
        name, table = self._some(after)
        free = [c for c in table.added if c not in table.indexes.values()]
        if not free:
            return f"ALTER TABLE {name} FORCE"
        column = self.rng.choice(free)
        del table.added[column]
        return f"ALTER TABLE {name} DROP COLUMN {column}"

    def _add_index(self, after: Catalog) -> str:
        name, table = self._some(after)
        column = self.rng.choice(["a", "b", *table.added])
        index = f"{column}_extra"
        if index in table.indexes:
            return f"ALTER TABLE {name} FORCE"
        table.indexes[index] = column
        return f"CREATE INDEX {index} ON {name} ({column})"

    def _drop_index(self, after: Catalog) -> str:
        name, table = self._some(after)
        if not table.indexes:
            return f"ALTER TABLE {name} FORCE"
        index = self.rng.choice(sorted(table.indexes))
        del table.indexes[index]
        return f"DROP INDEX {index} ON {name}"

    def _truncate(self, after: Catalog) -> str:
        name, table = self._some(after)
        table.rows = 0
        return f"TRUNCATE TABLE {name}"

    def _rename(self, after: Catalog) -> str:
        name, table = self._some(after)
        new = self._new_name()
        del after[name]
        after[new] = table
        return f"RENAME TABLE {name} TO {new}"

    def _drop(self, after: Catalog) -> str:
        name, _ = self._some(after)
        del after[name]
        return f"DROP TABLE {name}"

    def _rebuild(self, after: Catalog) -> str:
        return f"ALTER TABLE {self._some(after)[0]} FORCE"


def existing(session: Session) -> Catalog:
    """What the server has, with every value of every row checked. Raises AssertionError for wrong contents."""
    catalog: Catalog = {}
    names = session.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'ddl\\_%%'", ()
    )
    for (name,) in names:
        columns = [row[0] for row in session.execute(f"SHOW COLUMNS FROM {name}")]
        indexes = {row[2]: row[4] for row in session.execute(f"SHOW INDEX FROM {name}") if row[2] != "PRIMARY"}
        added = {column: int(column[1:]) for column in columns if column.startswith("c")}
        rows = session.execute(f"SELECT * FROM {name} ORDER BY id")
        for position, row in enumerate(rows, 1):
            wanted = {"id": position, "a": position * 3, "b": f"row {position}", **added}
            if dict(zip(columns, row, strict=True)) != wanted:
                raise AssertionError(f"ddl: {name} holds {row}, not {wanted}")
        catalog[name] = Table(len(rows), added, indexes)
    return catalog


def verify(session: Session, worker: DdlWorker) -> list[str]:
    """Also settles the worker's catalog to what is there."""
    try:
        actual = existing(session)
    except AssertionError as error:
        return [str(error)]
    problems: list[str] = []
    if actual != worker.catalog and actual != worker.candidate:
        wrong = sorted(n for n in actual.keys() | worker.catalog.keys() if actual.get(n) != worker.catalog.get(n))
        shown = [(n, actual.get(n), worker.catalog.get(n)) for n in wrong[:3]]
        in_flight = worker.in_flight[:100] or "nothing"
        problems.append(f"ddl: tables are neither as before nor as after ({in_flight}) (name, is, was acknowledged): {shown}")
    garbage = session.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE '%%#sql%%'", ()
    )
    if garbage:
        problems.append(f"ddl: remains of an interrupted statement: {[row[0] for row in garbage]}")
    worker.catalog, worker.candidate, worker.in_flight = actual, None, ""
    return problems
