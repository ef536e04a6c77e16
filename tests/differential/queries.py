"""Conditions and SELECT statements. Every one has one right answer: as a set of rows, or in order when the order is total."""

import random
import re

from .schema import Column, Index, Schema, Table
from .step import Step

NUMBERS = ("int", "unsigned", "decimal")
JOIN_HINTS = ("JOIN", "JOIN", "LEFT JOIN", "STRAIGHT_JOIN", "RIGHT JOIN")
FRACTION = re.compile(r"\.\d+")


def literal(rng: random.Random, column: Column) -> str:
    return rng.choice(column.type.good)


def constant(rng: random.Random, column: Column) -> str:
    """A literal to compare with: no more digits of a second than the column has (README)."""
    value = literal(rng, column)
    if column.type.family not in ("time", "datetime", "timestamp"):
        return value
    digits = int("0" + column.type.sql.partition("(")[2].rstrip(")"))
    return FRACTION.sub(lambda match: match[0][: digits + 1] if digits else "", value)


def comparable(a: Column, b: Column) -> bool:
    if a.type.family in NUMBERS and b.type.family in NUMBERS:
        return True
    if a.type.family == b.type.family == "text":
        return a.type.collation == b.type.collation and a.type.whole == b.type.whole
    if a.type.family == b.type.family == "bit":
        return a.type.sql == b.type.sql
    return a.type.family == b.type.family and a.type.family not in ("geometry", "json", "enum", "set")


class Queries:
    def __init__(self, rng: random.Random, schema: Schema) -> None:
        self._rng = rng
        self._schema = schema
        self.in_transaction = False  # the session that asks next

    def sorts(self, table: Table) -> bool:
        """Whether its rows are asked for in a total order."""
        return table.total_order is not None and self._may_sort(table)

    def _may_sort(self, table: Table) -> bool:
        """In a transaction InnoDB is not the judge of sorted rows with VIRTUAL columns: see the README."""
        return not (self.in_transaction and table.has_virtual)

    # --- conditions --------------------------------------------------------------------------------------------

    def condition(self, table: Table, alias: str = "", depth: int = 2) -> str:
        rng = self._rng
        roll = rng.random()
        if depth > 0 and roll < 0.3:
            operator = rng.choice((" AND ", " AND ", " OR "))
            return "(" + operator.join(self.condition(table, alias, depth - 1) for _ in range(2)) + ")"
        if depth > 0 and roll < 0.34:
            return f"NOT {self.condition(table, alias, depth - 1)}"
        return self._atom(table, self._column(table), alias)

    def _column(self, table: Table) -> Column:
        """Indexed columns more often than others."""
        candidates = [c for c in table.columns if c.type.family != "geometry"] or table.columns
        indexed = [c for c in candidates if table.indexed(c)]
        return self._rng.choice(indexed if indexed and self._rng.random() < 0.7 else candidates)

    def _atom(self, table: Table, column: Column, alias: str) -> str:
        rng = self._rng
        name = f"{alias}.{column.name}" if alias else column.name
        roll = rng.random()
        if roll < 0.08:
            return f"{name} IS {rng.choice(('NULL', 'NOT NULL'))}"
        if roll < 0.34:
            return f"{name} {rng.choice(('=', '=', '=', '<=>', '<>'))} {constant(rng, column)}"
        if roll < 0.56:
            return f"{name} {rng.choice(('<', '<=', '>', '>='))} {constant(rng, column)}"
        if roll < 0.68:
            return f"{name} {rng.choice(('', 'NOT '))}BETWEEN {constant(rng, column)} AND {constant(rng, column)}"
        if roll < 0.84:
            values = ", ".join(constant(rng, column) for _ in range(rng.randint(1, 6)))
            return f"{name} {rng.choice(('', '', 'NOT '))}IN ({values})"
        if column.type.text and roll < 0.95:
            return f"{name} {rng.choice(('', '', 'NOT '))}LIKE {self._pattern(column)}"
        others = [c for c in table.columns if c is not column and comparable(c, column)]
        if not others:
            return f"{name} = {constant(rng, column)}"
        other = rng.choice(others).name
        return (
            f"{name} {rng.choice(('=', '<', '>='))} {alias}.{other}"
            if alias
            else f"{name} {rng.choice(('=', '<', '>='))} {other}"
        )

    def _pattern(self, column: Column) -> str:
        value = self._rng.choice([v for v in column.type.good if v.startswith("'")] or ["'a'"])[1:-1]
        start = value[: self._rng.randint(1, 3)].rstrip("\\")
        return self._rng.choice((f"'{start}%'", f"'{start}%'", f"'%{start}'", f"'{start}_%'", f"'{start}'", "'%'", "'_'"))

    def key_condition(self, table: Table, point: bool) -> str:
        """A condition on the primary key alone: what a locking statement visits is the same whatever the plan."""
        assert table.primary is not None
        column = table.column(table.primary.parts[0].column)
        if point and all(True for _ in table.primary.parts):
            return " AND ".join(f"{p.column} = {constant(self._rng, table.column(p.column))}" for p in table.primary.parts)
        low = constant(self._rng, column)
        return self._rng.choice(
            (
                f"{column.name} >= {low}",
                f"{column.name} <= {low}",
                f"{column.name} BETWEEN {low} AND {constant(self._rng, column)}",
            )
        )

    # --- SELECT ------------------------------------------------------------------------------------------------

    def select(self, suffix: str = "") -> Step:
        rng = self._rng
        table = rng.choice(list(self._schema.tables.values()))
        makers = [self._rows] * 8 + [self._aggregate] * 3 + [self._groups] * 2 + [self._distinct] * 2 + [self._by_index] * 4
        makers += [self._join] * 4 + [self._subquery] * 4 + [self._derived, self._union, self._window, self._concat]
        step: Step = rng.choice(makers)(table)
        return Step(step.sql + suffix, ordered=step.ordered) if suffix else step

    def _list(self, table: Table, alias: str = "", sorted_rows: bool = False) -> str:
        dot = f"{alias}." if alias else ""
        virtual = table.has_virtual
        if self._rng.random() < 0.4 or (sorted_rows and virtual):
            return dot + "*"
        chosen = self._rng.sample(table.columns, self._rng.randint(1, len(table.columns)))
        return ", ".join(dot + column.name for column in chosen)

    def _where(self, table: Table, alias: str = "", chance: float = 0.8) -> str:
        return f" WHERE {self.condition(table, alias)}" if self._rng.random() < chance else ""

    def _limit(self) -> str:
        roll = self._rng.random()
        if roll < 0.5:
            return ""
        return f" LIMIT {self._rng.randint(0, 12)}" + (f" OFFSET {self._rng.randint(0, 12)}" if roll > 0.8 else "")

    def _hint(self, table: Table, chance: float = 0.2) -> str:
        keys = [index.name for index in table.indexes]
        if not keys or self._rng.random() > chance:
            return ""
        return f" {self._rng.choice(('FORCE', 'FORCE', 'IGNORE'))} INDEX ({self._rng.choice(keys)})"

    def _rows(self, table: Table) -> Step:
        unsorted = not self.sorts(table) or self._rng.random() < 0.4
        chosen = self._list(table, sorted_rows=not unsorted)
        sql = f"SELECT {chosen} FROM {table.name}{self._hint(table)}{self._where(table)}"
        if unsorted:
            return Step(sql)
        return Step(f"{sql} ORDER BY {self._order(table)}{self._limit()}", ordered=True)

    def _order(self, table: Table, alias: str = "") -> str:
        """A total order: some index's or column's, then the primary key, forwards or backwards or mixed."""
        rng = self._rng
        dot = f"{alias}." if alias else ""
        assert table.total_order is not None
        keys = [part.strip() for part in table.total_order.split(",")]
        lead: list[str] = []
        if rng.random() < 0.6:
            indexes = [index for index in table.indexes if index.whole and not index.primary]
            if indexes and rng.random() < 0.7:
                lead = [part.column for part in rng.choice(indexes).parts]
            else:
                lead = [rng.choice([c for c in table.columns if c.type.sortable]).name]
        roll = rng.random()
        names = [dot + name for name in dict.fromkeys([*lead, *keys])]
        if roll < 0.45:
            return ", ".join(names)
        if roll < 0.8:
            return ", ".join(f"{name} DESC" for name in names)
        return ", ".join(name + rng.choice(("", " DESC")) for name in names)

    def _aggregate(self, table: Table) -> Step:
        rng = self._rng
        column = self._column(table)
        asked = ["COUNT(*)", f"COUNT({column.name})", f"COUNT(DISTINCT {column.name})"]
        if column.type.exact:
            asked += [f"MIN({column.name})", f"MAX({column.name})"] * 2
        if column.type.sums:
            asked += [f"SUM({column.name})", f"AVG({column.name})", f"SUM(DISTINCT {column.name})"]
        chosen = ", ".join(rng.sample(asked, rng.randint(1, 3)))
        return Step(f"SELECT {chosen} FROM {table.name}{self._hint(table)}{self._where(table, chance=0.6)}")

    def _exact(self, table: Table, most: int) -> list[Column]:
        """BIT through a temporary table is a number, otherwise bytes."""
        columns = [column for column in table.columns if column.type.exact and column.type.family != "bit"]
        return self._rng.sample(columns, min(len(columns), self._rng.randint(1, most)))

    def _groups(self, table: Table) -> Step:
        columns = self._exact(table, 2)
        names = ", ".join(column.name for column in columns)
        if not columns:
            other = self._column(table).name
            return Step(f"SELECT COUNT(*) FROM {table.name}{self._where(table)} GROUP BY {other}")
        having = " HAVING COUNT(*) > 1" if self._rng.random() < 0.3 else ""
        source = f"FROM {table.name}{self._hint(table)}{self._where(table, chance=0.5)}"
        sql = f"SELECT {names}, COUNT(*) {source} GROUP BY {names}{having}"
        if self._rng.random() < 0.4 and self._may_sort(table):
            return Step(f"{sql} ORDER BY {names}{self._limit()}", ordered=True)
        return Step(sql)

    def _distinct(self, table: Table) -> Step:
        columns = self._exact(table, 2)
        if not columns:
            return self._aggregate(table)
        names = ", ".join(column.name for column in columns)
        sql = f"SELECT DISTINCT {names} FROM {table.name}{self._hint(table)}{self._where(table, chance=0.5)}"
        if self._rng.random() < 0.4 and self._may_sort(table):
            return Step(f"{sql} ORDER BY {names} DESC{self._limit()}", ordered=True)
        return Step(sql)

    def _by_index(self, table: Table) -> Step:
        """Reads an index alone, or the table through it, by its leading columns."""
        if not table.indexes:
            return self._rows(table)
        index = self._rng.choice(table.indexes)
        parts = index.parts[: self._rng.randint(1, len(index.parts))]
        where = " AND ".join(self._atom(table, table.column(part.column), "") for part in parts)
        names = ", ".join(part.column for part in index.parts)
        if table.total_order is None or not self.sorts(table) or self._rng.random() < 0.5:
            chosen = self._rng.choice((names, names, self._list(table)))
            return Step(f"SELECT {chosen} FROM {table.name} FORCE INDEX ({index.name}) WHERE {where}")
        virtual = table.has_virtual
        chosen = "*" if virtual else self._rng.choice((names, names, self._list(table)))
        sql = f"SELECT {chosen} FROM {table.name} FORCE INDEX ({index.name}) WHERE {where}"
        way = self._rng.choice(("", " DESC"))
        columns = dict.fromkeys([part.column for part in index.parts] + table.total_order.split(", "))
        return Step(f"{sql} ORDER BY {', '.join(name + way for name in columns)}{self._limit()}", ordered=True)

    def _pair(self, table: Table) -> tuple[Table, str] | None:
        """A table to join with and the condition, on columns that can be compared; a is the outer one."""
        other = self._rng.choice(list(self._schema.tables.values()))
        pairs = [(a, b) for a in table.columns for b in other.columns if comparable(a, b)]
        if not pairs:
            return None
        indexed = [(a, b) for a, b in pairs if other.indexed(b)]
        a, b = self._rng.choice(indexed if indexed and self._rng.random() < 0.8 else pairs)
        return other, f"a.{a.name} = b.{b.name}"

    def _join(self, table: Table) -> Step:
        found = self._pair(table)
        if found is None:
            return self._rows(table)
        other, on = found
        join = self._rng.choice(JOIN_HINTS)
        where = f" WHERE {self.condition(table, 'a')}" if self._rng.random() < 0.7 else ""
        source = f"FROM {table.name} a {join} {other.name} b ON {on}{where}"
        if self._rng.random() < 0.35:
            return Step(f"SELECT COUNT(*) {source}")
        unsorted = not self.sorts(table) or not self.sorts(other) or self._rng.random() < 0.4
        chosen = f"{self._list(table, 'a', not unsorted)}, {self._list(other, 'b', not unsorted)}"
        if unsorted:
            return Step(f"SELECT {chosen} {source}")
        assert other.total_order is not None
        order = ", ".join([self._order(table, "a")] + [f"b.{name}" for name in other.total_order.split(", ")])
        return Step(f"SELECT {chosen} {source} ORDER BY {order}{self._limit()}", ordered=True)

    def _subquery(self, table: Table) -> Step:
        rng = self._rng
        found = self._pair(table)
        if found is None:
            return self._rows(table)
        other, on = found
        a, b = (side.strip() for side in on.split("="))
        outer = f"FROM {table.name} a WHERE"
        inner = f"FROM {other.name} b WHERE"
        where = self.condition(other, "b", 1)
        chosen = self._list(table, "a")
        maybe_not = rng.choice(("", "NOT "))
        form = rng.randrange(5)
        if form == 0:
            return Step(f"SELECT {chosen} {outer} {a} {maybe_not}IN (SELECT {b} {inner} {where})")
        if form == 1:
            return Step(f"SELECT {chosen} {outer} {maybe_not}EXISTS (SELECT 1 {inner} {on} AND {where})")
        if form == 2:
            column = self._column(table).name
            return Step(f"SELECT a.{column}, (SELECT COUNT(*) {inner} {on}) {outer} {self.condition(table, 'a', 1)}")
        if form == 3 and other.column(b[2:]).type.exact:
            return Step(f"SELECT {chosen} {outer} {a} = (SELECT {rng.choice(('MAX', 'MIN'))}({b}) {inner} {where})")
        return Step(f"SELECT COUNT(*) {outer} {a} {rng.choice(('>= ALL', '= ANY', '< ANY'))} (SELECT {b} {inner} {where})")

    def _derived(self, table: Table) -> Step:
        columns = self._exact(table, 1)
        if not columns:
            return self._rows(table)
        name = columns[0].name
        return Step(
            f"SELECT d.{name}, d.n, COUNT(a.{name}) FROM (SELECT {name}, COUNT(*) n FROM {table.name} GROUP BY {name}) d"
            f" LEFT JOIN {table.name} a ON a.{name} = d.{name} GROUP BY d.{name}, d.n"
        )

    def _union(self, table: Table) -> Step:
        columns = self._exact(table, 2)
        if not columns:
            return self._rows(table)
        names = ", ".join(column.name for column in columns)
        first, second = (f"SELECT {names} FROM {table.name}{self._where(table)}" for _ in range(2))
        return Step(f"{first} {self._rng.choice(('UNION', 'UNION ALL', 'INTERSECT', 'EXCEPT'))} {second}")

    def _window(self, table: Table) -> Step:
        if table.total_order is None:
            return self._rows(table)
        chosen = self._rng.choice(("ROW_NUMBER()", "COUNT(*)"))
        return Step(
            f"SELECT {table.total_order}, {chosen} OVER (ORDER BY {self._order(table)}) FROM {table.name}{self._where(table)}"
        )

    def _concat(self, table: Table) -> Step:
        if table.total_order is None:
            return self._rows(table)
        column = self._column(table).name
        return Step(
            f"SELECT GROUP_CONCAT({column} ORDER BY {self._order(table)} SEPARATOR '|') FROM {table.name}{self._where(table)}"
        )

    # --- everything of a table ---------------------------------------------------------------------------------

    def verification(self, table: Table) -> list[Step]:
        """The whole table, through every index, and what the engine says of it."""
        steps = [Step(f"SELECT * FROM {table.name}")]
        for index in table.indexes:
            steps += self._whole_index(table, index)
        steps.append(Step(f"CHECK TABLE {table.name} EXTENDED"))
        # The server does not read generated columns for it, and sums up their NULL flags all the same (README).
        if not any(column.generated for column in table.columns) and not any(index.hashed for index in table.indexes):
            steps.append(Step(f"CHECKSUM TABLE {table.name} EXTENDED"))
        steps.append(Step(f"SHOW CREATE TABLE {table.name}"))
        return steps

    def _whole_index(self, table: Table, index: Index) -> list[Step]:
        first = table.column(index.parts[0].column)
        low = f"{index.parts[0].column} >= {constant(self._rng, first)} OR {index.parts[0].column} IS NULL"
        steps = [Step(f"SELECT * FROM {table.name} FORCE INDEX ({index.name}) WHERE {low}")]
        if not index.whole:
            return steps
        names = [part.column for part in index.parts]
        way = self._rng.choice(("", " DESC"))
        chosen, order = ", ".join(names), ", ".join(name + way for name in names)
        steps.append(Step(f"SELECT {chosen} FROM {table.name} FORCE INDEX ({index.name}) ORDER BY {order}"))
        if table.total_order is not None and self.sorts(table):
            order = ", ".join(dict.fromkeys([*names, *table.total_order.split(", ")]))
            steps.append(Step(f"SELECT * FROM {table.name} FORCE INDEX ({index.name}) ORDER BY {order}", ordered=True))
        return steps
