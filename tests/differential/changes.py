"""INSERT, REPLACE, UPDATE and DELETE. Rows are visited in a total order wherever the outcome depends on it."""

import random

from .queries import Queries, comparable, literal
from .schema import Column, Schema, Table
from .step import Step

WILD_CHANCE = 0.05
SEQUENCE_ROWS = (10, 30, 100, 250, 600)


class Changes:
    def __init__(self, rng: random.Random, schema: Schema, queries: Queries) -> None:
        self._rng = rng
        self._schema = schema
        self._queries = queries
        self.zero_is_a_value = False  # sql_mode has NO_AUTO_VALUE_ON_ZERO
        self.concurrent = False  # other sessions have transactions open: only the primary key decides what is visited

    def change(self) -> Step:
        rng = self._rng
        tables = list(self._schema.tables.values())
        if self.concurrent:
            # A statement that InnoDB refuses for a lock may have used up values of AUTO_INCREMENT in STRATA.
            tables = [t for t in tables if t.primary and not t.auto]
            if not tables:
                return self._queries.select()
            makers = [self.insert] * 3 + [self._on_duplicate, self._replace] + [self._update] * 4 + [self._delete] * 2
            return rng.choice(makers)(rng.choice(tables))
        table = rng.choice(tables)
        makers = [self.insert] * 8 + [self._on_duplicate] * 3 + [self._replace] * 3 + [self._insert_select] * 2 + [self._bulk]
        makers += [self._update] * 8 + [self._update_join] * 2 + [self._delete] * 4 + [self._delete_join]
        return rng.choice(makers)(table)

    # --- values ------------------------------------------------------------------------------------------------

    def _value(self, column: Column, wild: float = WILD_CHANCE) -> str:
        roll = self._rng.random()
        if column.auto:
            generated = ("NULL",) if self.zero_is_a_value else ("NULL", "NULL", "DEFAULT", "0")
            return self._rng.choice(generated) if roll < 0.6 else literal(self._rng, column)
        if roll < (0.08 if column.nullable else 0.01) and (column.nullable or column.type.family != "geometry"):
            return "NULL"
        if roll < 0.11 and (column.default is not None or column.nullable):
            return "DEFAULT"
        return self._rng.choice(column.type.wild or column.type.good) if roll > 1 - wild else literal(self._rng, column)

    def _columns(self, table: Table) -> list[Column]:
        """Usually all; sometimes those with a default are left out."""
        if self._rng.random() < 0.6:
            return table.writable
        needed = [c for c in table.writable if not c.nullable and c.default is None and not c.auto]
        others = [c for c in table.writable if c not in needed and self._rng.random() < 0.6]
        chosen = needed + others or table.writable
        self._rng.shuffle(chosen)
        return chosen

    def _rows(self, columns: list[Column]) -> str:
        count = self._rng.choice((1, 1, 1, 2, 3, 5, 12))
        wild = WILD_CHANCE if count < 4 else 0.01
        return ", ".join("(" + ", ".join(self._value(c, wild / len(columns) * 3) for c in columns) + ")" for _ in range(count))

    def _into(self, verb: str, table: Table) -> str:
        columns = self._columns(table)
        names = ", ".join(column.name for column in columns)
        return f"{verb} INTO {table.name} ({names}) VALUES {self._rows(columns)}"

    def _returning(self, table: Table) -> str:
        return f" RETURNING {self._rng.choice(table.columns).name}" if self._rng.random() < 0.06 else ""

    # --- INSERT ------------------------------------------------------------------------------------------------

    def insert(self, table: Table) -> Step:
        verb = "INSERT" if self.concurrent else self._rng.choice(("INSERT", "INSERT", "INSERT IGNORE"))
        return Step(self._into(verb, table) + self._returning(table), ordered=True)

    def _replace(self, table: Table) -> Step:
        return Step(self._into("REPLACE", table) + self._returning(table), ordered=True)

    def _on_duplicate(self, table: Table) -> Step:
        columns = self._rng.sample(table.writable, min(len(table.writable), self._rng.randint(1, 2)))
        changes = ", ".join(f"{c.name} = {self._rng.choice((f'VALUES({c.name})', self._new_value(table, c)))}" for c in columns)
        return Step(f"{self._into('INSERT', table)} ON DUPLICATE KEY UPDATE {changes}", ordered=True)

    def _insert_select(self, table: Table) -> Step:
        # Into itself the rows go through a temporary table: see the README.
        tables = self._schema.tables.values()
        sources = [t for t in tables if self._queries.sorts(t) and (t is not table or not t.has_long_values)]
        if not sources:
            return self.insert(table)
        source = self._rng.choice(sources)
        columns = self._columns(table)
        chosen = []
        for column in columns:
            fitting = [c for c in source.columns if comparable(c, column)]
            taken = self._rng.choice(fitting).name if fitting and self._rng.random() < 0.8 else self._value(column, 0)
            chosen.append(f"IF({taken} < 1, 1, {taken})" if column.auto and taken != "DEFAULT" else taken)
        values = ", ".join("NULL" if value == "DEFAULT" else value for value in chosen)
        verb = self._rng.choice(("INSERT IGNORE", "INSERT IGNORE", "INSERT", "REPLACE"))
        where = f" WHERE {self._queries.condition(source)}" if self._rng.random() < 0.8 else ""
        names = ", ".join(column.name for column in columns)
        return Step(
            f"{verb} INTO {table.name} ({names}) SELECT {values} FROM {source.name}{where}"
            f" ORDER BY {source.total_order} LIMIT {self._rng.randint(1, 30)}",
            ordered=True,
        )

    def _bulk(self, table: Table) -> Step:
        """Many rows at once, so that trees grow levels and split."""
        rows = self._rng.choice(SEQUENCE_ROWS)
        columns = table.writable
        values = ", ".join(self._sequence_value(column) for column in columns)
        verb = self._rng.choice(("INSERT IGNORE", "INSERT IGNORE", "REPLACE"))
        return Step(
            f"{verb} INTO {table.name} ({', '.join(c.name for c in columns)}) SELECT {values} FROM seq_1_to_{rows}", ordered=True
        )

    def _sequence_value(self, column: Column) -> str:
        rng = self._rng
        family = column.type.family
        if column.auto:
            return "NULL"
        if rng.random() < 0.8:
            if family in ("int", "unsigned", "decimal", "float"):
                return rng.choice(("seq", "seq", "seq MOD 50", "seq * 7 MOD 101", "1000 - seq"))
            if family in ("text", "binary") and (column.type.characters > 5 or not column.type.characters):
                return rng.choice(
                    (
                        "CONCAT('k', seq * 7919 MOD 997)",
                        "CONCAT(seq, REPEAT('x', seq MOD 5))",
                        "CHAR(65 + seq MOD 60 USING latin1)",
                    )
                )
            if family in ("date", "datetime", "timestamp"):
                return f"'2001-02-03' + INTERVAL seq {rng.choice(('DAY', 'HOUR', 'MONTH')) if family != 'date' else 'DAY'}"
        choices = ", ".join(literal(rng, column) for _ in range(5))
        return f"ELT(1 + seq MOD 5, {choices})" if family not in ("bit", "geometry") else literal(rng, column)

    # --- UPDATE ------------------------------------------------------------------------------------------------

    def _new_value(self, table: Table, column: Column) -> str:
        """An expression over the row, or a literal."""
        rng = self._rng
        name = column.name
        if rng.random() < 0.5:
            return self._value(column)
        if column.auto:
            return rng.choice((f"{name} + 1", f"{name} + 100", f"IF({name} > 5, 3, {name} + 2)"))
        family = column.type.family
        same = [c for c in table.columns if c is not column and comparable(c, column)]
        if same and rng.random() < 0.3:
            return rng.choice(same).name
        if family in ("int", "unsigned"):
            return rng.choice((f"{name} + 1", f"{name} + 100", f"{name} - 1", f"{name} DIV 2", f"IF({name} > 5, 3, {name} + 2)"))
        if family in ("decimal", "float"):
            return rng.choice((f"{name} + 1", f"{name} + 0.5"))
        if family == "text":
            return rng.choice(
                (
                    f"CONCAT({name}, 'x')",
                    f"UPPER({name})",
                    f"LOWER({name})",
                    f"LEFT({name}, 2)",
                    f"REVERSE({name})",
                    f"CONCAT('b', {name})",
                )
            )
        if family == "binary":
            return rng.choice((f"CONCAT({name}, x'00')", f"LEFT({name}, 1)"))
        if family in ("date", "datetime", "timestamp"):
            return rng.choice((f"{name} + INTERVAL 1 DAY", f"{name} - INTERVAL 1 MONTH"))
        return self._value(column)

    def _update(self, table: Table) -> Step:
        rng = self._rng
        order = table.total_order
        columns = table.writable if order else [c for c in table.writable if not table.in_unique(c)]
        if not columns:
            return self._delete(table)
        columns = rng.sample(columns, min(len(columns), rng.choice((1, 1, 2, 3))))
        # Without an order each row gets the same literal, so that it does not matter which row is first.
        changes = ", ".join(f"{c.name} = {self._new_value(table, c) if order else self._value(c)}" for c in columns)
        if self.concurrent:
            where = self._queries.key_condition(table, rng.random() < 0.7)
            return Step(f"UPDATE {table.name} FORCE INDEX (PRIMARY) SET {changes} WHERE {where} ORDER BY {order}", ordered=True)
        ignore = "IGNORE " if rng.random() < 0.15 else ""
        where = f" WHERE {self._queries.condition(table)}" if rng.random() < 0.9 else ""
        sql = f"UPDATE {ignore}{table.name} SET {changes}{where}"
        if order is None:
            return Step(sql)
        limit = f" LIMIT {rng.randint(1, 8)}" if rng.random() < 0.4 else ""
        return Step(f"{sql} ORDER BY {order}{rng.choice(('', ' DESC')) if ',' not in order else ''}{limit}", ordered=True)

    def _update_join(self, table: Table) -> Step:
        """Each row of the changed table meets at most one row of the other, or takes nothing from it."""
        columns = [c for c in table.writable if not table.in_unique(c)]
        others = [t for t in self._schema.tables.values() if t is not table]
        if not columns or not others:
            return self._update(table)
        other = self._rng.choice(others)
        pairs = [(a, b) for a in table.columns for b in other.columns if comparable(a, b)]
        if not pairs:
            return self._update(table)
        a, b = self._rng.choice(pairs)
        column = self._rng.choice(columns)
        where = f" WHERE {self._queries.condition(other, 'b', 1)}" if self._rng.random() < 0.6 else ""
        join = self._rng.choice(("JOIN", "JOIN", "LEFT JOIN"))
        tables = f"{table.name} a {join} {other.name} b ON a.{a.name} = b.{b.name}"
        return Step(f"UPDATE {tables} SET a.{column.name} = {self._value(column, 0)}{where}")

    # --- DELETE ------------------------------------------------------------------------------------------------

    def _delete(self, table: Table) -> Step:
        rng = self._rng
        order = table.total_order
        if self.concurrent:
            return Step(f"DELETE FROM {table.name} WHERE {self._queries.key_condition(table, True)}", ordered=True)
        sql = f"DELETE FROM {table.name} WHERE {self._queries.condition(table)}"
        if order is None or rng.random() < 0.4:
            return Step(sql + self._returning(table))
        return Step(f"{sql} ORDER BY {order} LIMIT {rng.randint(1, 6)}{self._returning(table)}", ordered=True)

    def _delete_join(self, table: Table) -> Step:
        other = self._rng.choice(list(self._schema.tables.values()))
        pairs = [(a, b) for a in table.columns for b in other.columns if comparable(a, b)]
        if other is table or not pairs:
            return self._delete(table)
        a, b = self._rng.choice(pairs)
        target = self._rng.choice(("a", "b", "a, b"))
        where = f" WHERE {self._queries.condition(table, 'a', 1)}"
        return Step(f"DELETE {target} FROM {table.name} a JOIN {other.name} b ON a.{a.name} = b.{b.name}{where}")
