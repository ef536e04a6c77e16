"""CREATE, ALTER, DROP, TRUNCATE, RENAME. A step's effect brings the model up to date once the statement has succeeded."""

import random
from collections.abc import Callable

from .queries import literal
from .schema import Column, Index, Part, Schema, Table
from .step import Step
from .types import LONG_KEY_BYTES, Type, key_type, long_key_type, medium_blob, plain_int, random_type

KEY_BYTES_MOST = 700
PART_BYTES_MOST = 400
COLUMNS_MOST = 12
INDEXES_MOST = 6
TABLES_MOST = 5
WIDE_CHANCE = 0.08


class Definitions:
    def __init__(self, rng: random.Random, schema: Schema) -> None:
        self._rng = rng
        self._schema = schema
        self.virtual_columns = True
        self.long_keys = False  # as long as InnoDB takes them, and several UNIQUE keys, some of them hashes
        self.long_primary_keys = True
        self.engine_numbers = True  # AUTO_INCREMENT, and tables without a primary key, whose rows are numbered unseen

    def _replacing(self, table: Table, old_name: str | None = None) -> Callable[[], None]:
        """The effect of a statement after which `table` is as given (it was `old_name` before)."""
        tables = self._schema.tables

        def effect() -> None:
            if old_name and old_name != table.name:
                tables.pop(old_name, None)
            tables[table.name] = table

        return effect

    # --- columns and indexes -----------------------------------------------------------------------------------

    def _new_column(self, table: Table, chosen: Type | None = None) -> Column:
        rng = self._rng
        if chosen is None and self.long_keys and rng.random() < 0.4:
            chosen = long_key_type(rng)
        column = Column(self._schema.fresh("c"), chosen or random_type(rng), nullable=rng.random() < 0.7)
        if rng.random() < 0.35 and column.type.family not in ("geometry",):
            column.default = literal(rng, column)
            if column.default.startswith("REPEAT") or "(" in column.default:
                column.default = f"({column.default})"
        if column.type.family == "timestamp" and rng.random() < 0.5:
            column.default = "CURRENT_TIMESTAMP" + column.type.sql[len("TIMESTAMP") :]
            column.on_update = rng.random() < 0.5
        if column.type.family in ("int", "unsigned") and rng.random() < 0.06:
            column.check = f"{column.name} < 120"
        return column

    def _generated_column(self, table: Table) -> Column | None:
        rng = self._rng
        sources = [
            c for c in table.columns if c.writable and not c.auto and c.type.family in ("int", "unsigned", "text", "datetime")
        ]
        if not sources:
            return None
        source = rng.choice(sources)
        stored = rng.choice(("VIRTUAL", "PERSISTENT")) if self.virtual_columns else "PERSISTENT"
        if source.type.family in ("int", "unsigned"):
            kind, expression = plain_int(), f"{source.name} MOD {rng.randint(2, 9)}"
        elif source.type.family == "datetime":
            kind, expression = plain_int(), f"YEAR({source.name})"
        else:
            good = tuple(v for v in source.type.good if v.startswith("'") and len(v) < 8) or ("''",)
            charset, collation = source.type.sql.split(" CHARACTER SET ")[1].split(" COLLATE ")
            width = source.type.bytes_per_character
            if stored == "VIRTUAL":  # Otherwise InnoDB's entries may hold old values: see the README.
                collation = f"{charset}_bin"
            kind = Type(
                f"VARCHAR(10) CHARACTER SET {charset} COLLATE {collation}",
                "text",
                good,
                (),
                stored != "VIRTUAL" and source.type.exact,
                10 * width,
                10,
                width,
                collation,
            )
            expression = rng.choice((f"LEFT({source.name}, 3)", f"LEFT(UPPER({source.name}), 10)"))
        return Column(self._schema.fresh("g"), kind, generated=f"{expression}) {stored}")

    def _part(self, column: Column, primary: bool) -> Part | None:
        rng = self._rng
        kind = column.type
        if not kind.indexable:
            return None
        prefix = 0
        most = LONG_KEY_BYTES if self.long_keys else PART_BYTES_MOST
        if kind.whole and (not kind.key_bytes or kind.key_bytes > most):
            return None
        shorter = (
            rng.random() < 0.2 and kind.characters > 2 and not kind.whole and not (column.generated or "").endswith("VIRTUAL")
        )
        if kind.characters and (not kind.key_bytes or kind.key_bytes > most or shorter):
            prefix = rng.randint(1, max(1, min(20, kind.characters - 1)))
        if not prefix and not kind.key_bytes:
            return None
        return Part(column.name, prefix, not primary and rng.random() < 0.15)

    def _new_index(self, table: Table, primary: bool = False) -> Index | None:
        rng = self._rng
        candidates = [c for c in table.columns if not (primary and (c.generated or c.nullable))]
        if primary and not self.long_primary_keys:
            candidates = [c for c in candidates if c.type.key_bytes <= PART_BYTES_MOST]
        rng.shuffle(candidates)
        wanted = rng.choice((1, 1, 1, 2, 2, 3))
        parts: list[Part] = []
        size = 0
        for column in candidates[:6]:
            part = self._part(column, primary)
            if part is None or len(parts) == wanted:
                continue
            size += (part.prefix * column.type.bytes_per_character if part.prefix else column.type.key_bytes) + 3
            if size > (LONG_KEY_BYTES if self.long_keys else KEY_BYTES_MOST):
                break
            parts.append(part)
        if not parts:
            return None
        if primary:
            return Index("PRIMARY", parts, unique=True, primary=True)
        return Index(self._schema.fresh("k"), parts, unique=rng.random() < (0.5 if self.long_keys else 0.25))

    def _hashed_index(self, table: Table) -> Index | None:
        """A UNIQUE key that the server makes of a hash: it may be longer than any other."""
        rng = self._rng
        candidates = [
            c for c in table.columns if c.type.family in ("int", "unsigned", "text", "binary") and not c.generated and not c.auto
        ]
        if not candidates:
            return None
        chosen = rng.sample(candidates, min(len(candidates), rng.choice((1, 1, 2))))
        return Index(self._schema.fresh("k"), [Part(c.name) for c in chosen], unique=True, hashed=True)

    # --- CREATE ------------------------------------------------------------------------------------------------

    def create_table(self) -> Step:
        rng = self._rng
        table = Table(self._schema.fresh("t"))
        self._add_key(table)
        for _ in range(rng.choice((1, 2, 3, 3, 4, 5, 6))):
            table.columns.append(self._new_column(table))
        for _ in range(rng.randint(6, 16) if rng.random() < WIDE_CHANCE else 0):
            table.columns.append(self._new_column(table, medium_blob(rng)))
        if rng.random() < 0.3 and (generated := self._generated_column(table)):
            table.columns.append(generated)
        for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
            if index := self._new_index(table):
                table.indexes.append(index)
        if self.long_keys and rng.random() < 0.5 and (hashed := self._hashed_index(table)):
            table.indexes.append(hashed)
        return Step(table.create_sql(), ordered=True, effect=self._replacing(table))

    def _add_key(self, table: Table) -> None:
        """A primary key for nine tables of ten: of one column, of two, or AUTO_INCREMENT."""
        rng = self._rng
        roll = rng.random()
        if roll < 0.1 and self.engine_numbers:
            return
        if roll < 0.35 and self.engine_numbers:
            name = rng.choice(("INT", "BIGINT", "SMALLINT UNSIGNED", "BIGINT UNSIGNED"))
            kind = Type(name, "int", tuple(str(n) for n in (*range(1, 30), 100, 1000)), ("-1", "'x'", "1.5"), sums=True)
            table.columns.append(Column(self._schema.fresh("c"), kind, nullable=False, auto=True))
            table.options = rng.choice(("", "", " AUTO_INCREMENT=5"))
        else:
            for _ in range(1 if roll < 0.75 else 2):
                long = self.long_keys and self.long_primary_keys and rng.random() < 0.4
                chosen = long_key_type(rng) if long else key_type(rng)
                if sum(c.type.key_bytes for c in table.columns) + chosen.key_bytes > LONG_KEY_BYTES:
                    chosen = plain_int()
                table.columns.append(Column(self._schema.fresh("c"), chosen, nullable=False))
        table.indexes.append(Index("PRIMARY", [Part(c.name) for c in table.columns], unique=True, primary=True))

    def _create_like(self) -> Step:
        source = self._rng.choice(list(self._schema.tables.values()))
        table = source.clone()
        table.name = self._schema.fresh("t")
        return Step(f"CREATE TABLE {table.name} LIKE {source.name}", ordered=True, effect=self._replacing(table))

    def _create_select(self) -> Step:
        sources = [t for t in self._schema.tables.values() if t.total_order]
        if not sources:
            return self.create_table()
        source = self._rng.choice(sources)
        name = self._schema.fresh("t")
        columns = [Column(c.name, c.type, c.nullable) for c in source.columns]
        primary = source.primary
        assert primary is not None
        table = Table(name, columns, [primary] if primary.whole else [])
        keys = f" ({primary.sql()})" if table.indexes else ""
        return Step(
            f"CREATE TABLE {name}{keys} SELECT * FROM {source.name} ORDER BY {source.total_order}",
            ordered=True,
            effect=self._replacing(table),
        )

    # --- everything else ---------------------------------------------------------------------------------------

    def define(self) -> Step:
        rng = self._rng
        tables = self._schema.tables
        if len(tables) < 2 or (len(tables) < TABLES_MOST and rng.random() < 0.15):
            return (
                rng.choice((self.create_table, self.create_table, self._create_like, self._create_select))()
                if tables
                else self.create_table()
            )
        table = rng.choice(list(tables.values()))
        makers = (
            [self._add_column] * 4
            + [self._drop_column] * 3
            + [self._change_column] * 4
            + [self._add_index] * 5
            + [self._drop_index] * 3
        )
        makers += [
            self._rename_column,
            self._rename_table,
            self._truncate,
            self._truncate,
            self._drop_table,
            self._primary,
            self._auto_start,
            self._several,
        ]
        makers += [self._rebuild, self._optimize, self._check_constraint]
        return rng.choice(makers)(table)

    def _alter(self, table: Table, changes: str, after: Table) -> Step:
        return Step(f"ALTER TABLE {table.name} {changes}", ordered=True, effect=self._replacing(after, table.name))

    def _add_column(self, table: Table) -> Step:
        if len(table.columns) >= COLUMNS_MOST:
            return self._drop_column(table)
        after = table.clone()
        column = self._new_column(table)
        if self._rng.random() < 0.2:
            column = self._generated_column(table) or column
        place, at = "", len(after.columns)
        roll = self._rng.random()
        if roll < 0.15:
            place, at = " FIRST", 0
        elif roll < 0.4:
            at = self._rng.randint(1, len(after.columns))
            place = f" AFTER {after.columns[at - 1].name}"
        after.columns.insert(at, column)
        return self._alter(table, f"ADD COLUMN {column.sql()}{place}", after)

    def _drop_column(self, table: Table) -> Step:
        rng = self._rng
        after = table.clone()
        used = " ".join(c.generated or "" for c in table.columns)
        free = [c for c in after.columns if c.name not in used.replace("(", " ").replace(",", " ").replace(")", " ").split()]
        keys = {part.column for index in table.indexes if index.unique for part in index.parts}
        free = [c for c in free if c.name not in keys]
        if not free or len(after.columns) < 3:
            return self._add_column(table) if len(table.columns) < COLUMNS_MOST else self._truncate(table)
        column = rng.choice(free)
        after.columns.remove(column)
        for index in list(after.indexes):
            index.parts = [part for part in index.parts if part.column != column.name]
            if not index.parts:
                after.indexes.remove(index)
        return self._alter(table, f"DROP COLUMN {column.name}", after)

    def _change_column(self, table: Table) -> Step:
        """Another type, or NULL to NOT NULL; values that do not fit are errors or warnings."""
        rng = self._rng
        after = table.clone()
        used = " ".join(c.generated or "" for c in table.columns)
        choices = [c for c in after.columns if c.writable and not c.auto and c.name not in used]
        if not choices:
            return self._add_column(table)
        column = rng.choice(choices)
        indexed = table.indexed(column)
        if rng.random() < 0.7:
            chosen = random_type(rng)
            if indexed and (not chosen.key_bytes or chosen.key_bytes > 400 or column.type.characters):
                chosen = column.type
            column.type = chosen
            column.default = column.check = None
            column.on_update = False
        if not any(index.primary and part.column == column.name for index in table.indexes for part in index.parts):
            column.nullable = rng.random() < 0.8
        return self._alter(table, f"MODIFY {column.sql()}", after)

    def _add_index(self, table: Table) -> Step:
        index = self._new_index(table) if len(table.indexes) < INDEXES_MOST else None
        if index and self.long_keys and self._rng.random() < 0.3:
            index = self._hashed_index(table) or index
        if index is None:
            return self._drop_index(table)
        after = table.clone()
        after.indexes.append(index)
        if not index.hashed and self._rng.random() < 0.3:
            parts = ", ".join(part.sql() for part in index.parts)
            sql = f"CREATE {'UNIQUE ' if index.unique else ''}INDEX {index.name} ON {table.name} ({parts})"
            return Step(sql, ordered=True, effect=self._replacing(after))
        return self._alter(table, f"ADD {index.sql()}", after)

    def _drop_index(self, table: Table) -> Step:
        candidates = [index for index in table.indexes if not index.primary]
        if not candidates:
            return self._add_column(table) if len(table.columns) < COLUMNS_MOST else self._truncate(table)
        index = self._rng.choice(candidates)
        after = table.clone()
        after.indexes = [i for i in after.indexes if i.name != index.name]
        return self._alter(table, f"DROP KEY {index.name}", after)

    def _rename_column(self, table: Table) -> Step:
        used = " ".join(c.generated or "" for c in table.columns) + " ".join(c.check or "" for c in table.columns)
        free = [c for c in table.columns if c.name not in used]
        if not free:
            return self._truncate(table)
        old = self._rng.choice(free).name
        new = self._schema.fresh("c")
        after = table.clone()
        after.column(old).name = new
        for part in (part for index in after.indexes for part in index.parts if part.column == old):
            part.column = new
        return self._alter(table, f"RENAME COLUMN {old} TO {new}", after)

    def _rename_table(self, table: Table) -> Step:
        after = table.clone()
        after.name = self._schema.fresh("t")
        sql = self._rng.choice((f"RENAME TABLE {table.name} TO {after.name}", f"ALTER TABLE {table.name} RENAME TO {after.name}"))
        return Step(sql, ordered=True, effect=self._replacing(after, table.name))

    def _truncate(self, table: Table) -> Step:
        return Step(f"TRUNCATE TABLE {table.name}", ordered=True)

    def _drop_table(self, table: Table) -> Step:
        return Step(f"DROP TABLE {table.name}", ordered=True, effect=lambda: self._schema.tables.pop(table.name, None))

    def _primary(self, table: Table) -> Step:
        if table.auto:
            return self._auto_start(table)
        after = table.clone()
        drop = "DROP PRIMARY KEY" if table.primary else ""
        after.indexes = [i for i in after.indexes if not i.primary]
        index = self._new_index(after, primary=True)
        if index is None:
            return self._alter(table, drop, after) if drop and self.engine_numbers else self._add_index(table)
        after.indexes.insert(0, index)
        return self._alter(table, f"{drop}{', ' if drop else ''}ADD {index.sql()}", after)

    def _auto_start(self, table: Table) -> Step:
        if not table.auto:
            return self._rebuild(table)
        return self._alter(table, f"AUTO_INCREMENT={self._rng.choice((1, 20, 50, 2000))}", table.clone())

    def _several(self, table: Table) -> Step:
        """Several changes in one ALTER."""
        first = self._add_column(table)
        if " ADD COLUMN " not in first.sql:
            return first
        index = self._new_index(table)
        if index is None:
            return first
        name = first.sql.split(" ADD COLUMN ")[1].split()[0]
        effect = first.effect

        def both() -> None:
            effect()
            self._schema.tables[table.name].indexes.append(index)

        assert name
        return Step(f"{first.sql}, ADD {index.sql()}", ordered=True, effect=both)

    def _rebuild(self, table: Table) -> Step:
        return self._alter(table, self._rng.choice(("FORCE", "COMMENT='again'")), table.clone())

    def _optimize(self, table: Table) -> Step:
        return Step(f"ANALYZE TABLE {table.name}", ordered=True)

    def _check_constraint(self, table: Table) -> Step:
        numbers = [c for c in table.columns if c.type.family in ("int", "unsigned") and c.writable and not c.auto]
        if not numbers:
            return self._add_column(table) if len(table.columns) < COLUMNS_MOST else self._truncate(table)
        column = self._rng.choice(numbers)
        after = table.clone()
        return self._alter(table, f"ADD CONSTRAINT {self._schema.fresh('chk')} CHECK ({column.name} <> 11)", after)
