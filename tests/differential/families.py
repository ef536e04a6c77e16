"""Cases whose tables refer to each other: parents, children, rows that go along, statements that make and change foreign keys.

A generator like `Generator`, with a smaller world: few tables with few columns of two types, whose values come from short
lists, so that most rows have relatives. Rows are visited in the order of their primary key wherever the outcome depends on it.
"""

import random
from collections.abc import Set
from dataclasses import dataclass, field, replace

from .step import Step
from .transactions import IN_TRANSACTION
from .wire import Answer

CHANCE = 0.15  # of the cases
TABLES_MOST = 5
KEYS_MOST = 3  # foreign keys of a table
VERIFY_EVERY = 45
CREATE_TRIES = 20
NAMES = ("f1", "f2", "f3", "f4", "f5", "f6")
ACTIONS = ("", "", " RESTRICT", " NO ACTION", " CASCADE", " CASCADE", " CASCADE", " SET NULL", " SET NULL")
ISOLATION = ("READ COMMITTED", "REPEATABLE READ", "REPEATABLE READ", "SERIALIZABLE")
SQL_MODES = ("STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION", "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION", "")


@dataclass(frozen=True)
class Domain:
    """A type and the values that are used; no two of them are equal under the collation."""

    sql: str
    values: tuple[str, ...]

    @property
    def plain(self) -> bool:
        """Numbers and text. Of other types InnoDB takes some for others that are stored in as many bytes."""
        return "INT" in self.sql or "CHARACTER SET" in self.sql


DOMAINS = (
    Domain("INT", ("1", "2", "3", "4", "5", "6", "7", "-1")),
    Domain("BIGINT UNSIGNED", ("0", "1", "2", "255", "4294967296", "18446744073709551615")),
    Domain("SMALLINT", ("-32768", "-1", "0", "1", "2", "32767")),
    Domain("VARCHAR(20) CHARACTER SET utf8mb4", ("''", "'ann'", "'bob'", "'bobby'", "'zoë'", "'日本'")),
    Domain("CHAR(6) CHARACTER SET latin1", ("'a'", "'ab'", "'abc'", "'x'", "'y z'", "'z'")),
    Domain("VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", ("'a'", "'A'", "'b'", "'bb'", "'bbb'", "'c'")),
    Domain("VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_swedish_ci", ("'eva'", "'ida'", "'leo'", "'leon'", "'max'")),
    Domain("VARBINARY(12)", ("x''", "x'00'", "x'0000'", "x'01'", "x'ff'", "x'ff00'")),
    Domain("DATE", ("'2001-01-01'", "'2001-01-02'", "'2024-02-29'", "'1970-01-01'", "'9999-12-31'")),
    Domain("DATETIME(3)", ("'2001-01-01 00:00:00'", "'2001-01-01 00:00:00.001'", "'2024-02-29 23:59:59.999'", "'1000-01-01'")),
    Domain("DECIMAL(8,2)", ("0", "0.01", "-0.01", "1", "123456.78", "-999999.99")),
)


@dataclass(frozen=True)
class ForeignKey:
    columns: tuple[str, ...]
    parent: str
    parent_columns: tuple[str, ...]
    actions: str
    name: str = ""  # empty: the engine makes one

    def sql(self) -> str:
        named = f"CONSTRAINT {self.name} " if self.name else ""
        return (
            f"{named}FOREIGN KEY ({', '.join(self.columns)}) REFERENCES {self.parent}"
            f" ({', '.join(self.parent_columns)}){self.actions}"
        )


@dataclass
class Member:
    name: str
    columns: dict[str, Domain]  # the first is the primary key
    nullable: set[str]
    indexes: list[tuple[str, ...]]
    keys: list[ForeignKey] = field(default_factory=list)
    unnamed: int = 0  # foreign keys that have had no name, so far

    def create_sql(self) -> str:
        first = next(iter(self.columns))
        parts = [f"{c} {d.sql} {'NULL' if c in self.nullable else 'NOT NULL'}" for c, d in self.columns.items()]
        parts += ["n INT NOT NULL DEFAULT 0", f"PRIMARY KEY ({first})"]
        parts += [f"KEY {''.join(columns)} ({', '.join(columns)})" for columns in self.indexes]
        parts += [key.sql() for key in self.keys]
        return f"CREATE TABLE {self.name} ({', '.join(parts)})"

    @property
    def id(self) -> str:
        return next(iter(self.columns))

    def name_keys(self) -> None:
        """As both engines do."""
        for place, key in enumerate(self.keys):
            if not key.name:
                self.unnamed += 1
                self.keys[place] = replace(key, name=f"{self.name}_ibfk_{self.unnamed}")


class Families:
    def __init__(self, seed: int, steps: int) -> None:
        self._rng = rng = random.Random(f"family {seed}")
        self._domains = rng.sample(DOMAINS, 2)
        self._tables: dict[str, Member] = {}
        self._open = False  # in a transaction
        self._checks = True
        self._savepoints: list[str] = []
        self._queue: list[Step] = [Step(f"SET SESSION sql_mode='{rng.choice(SQL_MODES)}'")]
        self._left = steps
        self._since_verified = 0
        self._constraints = 0

    def next(self) -> Step | None:
        if not self._queue:
            if self._left <= 0 and not self._finish():
                return None
            while not self._queue:  # Not every choice has something to work on.
                self._choose()
        self._left -= 1
        return self._queue.pop(0)

    def learn(self, step: Step, answer: Answer) -> None:
        if not answer.ok:
            return
        self._open = bool(answer.status & IN_TRANSACTION)
        if not self._open:
            self._savepoints.clear()
        if step.effect is not None:
            step.effect()

    def rolled_back(self, session: int) -> None:
        assert session == 0
        self._open = False
        self._savepoints.clear()

    # --- what comes next ---------------------------------------------------------------------------------------

    def _finish(self) -> bool:
        if self._left <= -1_000_000:
            return False
        self._left = -1_000_000
        if self._open:
            self._put("COMMIT")
        self._verify()
        return bool(self._queue)

    def _choose(self) -> None:
        rng = self._rng
        self._since_verified += 1
        if len(self._tables) < 2:
            self._queue.append(self._create())
            return
        if self._since_verified > VERIFY_EVERY:
            self._since_verified = 0
            self._verify()
            return
        roll = rng.random()
        if roll < 0.10:
            self._define()
        elif roll < 0.20:
            self._transaction()
        elif roll < 0.22:
            self._set_checks(not self._checks if self._checks else True)
        elif roll < 0.52:
            self._insert()
        elif roll < 0.72:
            self._update()
        elif roll < 0.88:
            self._delete()
        else:
            self._read()

    def _put(self, sql: str, effect: object = None) -> None:
        self._queue.append(Step(sql, ordered=True, effect=effect))

    def _set_checks(self, on: bool) -> None:
        def effect() -> None:
            self._checks = on

        # Rows without a parent mostly go, or nothing could be done with their tables.
        if on and self._rng.random() < 0.7:
            for table in self._tables.values():
                self._put(f"DELETE FROM {table.name}")
        self._put(f"SET SESSION foreign_key_checks={int(on)}", effect)

    def _transaction(self) -> None:
        rng = self._rng
        if not self._open:
            if rng.random() < 0.6:
                self._put(f"SET TRANSACTION ISOLATION LEVEL {rng.choice(ISOLATION)}")
            self._put("BEGIN")
            return
        roll = rng.random()
        if roll < 0.4:
            self._put("COMMIT")
        elif roll < 0.55:
            self._put("ROLLBACK")
        elif roll < 0.8 or not self._savepoints:
            self._savepoints.append(rng.choice(("s1", "s2")))
            self._put(f"SAVEPOINT {self._savepoints[-1]}")
        else:
            self._put(f"ROLLBACK TO SAVEPOINT {rng.choice(self._savepoints)}")

    def _table(self) -> Member:
        return self._rng.choice(list(self._tables.values()))

    # --- definitions -------------------------------------------------------------------------------------------

    def _define(self) -> None:
        rng = self._rng
        table = self._table()
        makers = [self._add_key] * 5 + [self._drop_key] * 3 + [self._rename_column] * 3 + [self._rename, self._rename]
        makers += [self._truncate, self._drop, self._force, self._drop_index, self._modify, self._like]
        if len(self._tables) < TABLES_MOST and rng.random() < 0.4:
            self._queue.append(self._create())
        else:
            rng.choice(makers)(table)

    def _create(self) -> Step:
        """Sometimes nothing, where foreign keys wait for tables of other kinds."""
        steps = (self._try_to_create() for _ in range(CREATE_TRIES))
        return next((step for step in steps if step is not None), Step("DO 1"))

    def _try_to_create(self) -> Step | None:
        rng = self._rng
        one, two = self._domains
        name = rng.choice([n for n in NAMES if n not in self._tables])
        columns = {"id": one, "a": one, "b": two}
        if rng.random() < 0.3:
            columns["c"] = rng.choice((one, two))
        nullable = {c for c in columns if c != "id" and rng.random() < 0.75}
        choices = (("a",), ("b",), ("a", "b"))
        table = Member(name, columns, nullable, [c for c in choices if rng.random() < 0.6])
        for _ in range(rng.choice((0, 1, 1, 2, KEYS_MOST))):
            if (key := self._new_key(table)) is not None:
                table.keys.append(key)

        if not self._fits_its_children(table):
            return None

        def effect() -> None:
            table.name_keys()
            self._tables[name] = table

        return Step(table.create_sql(), ordered=True, effect=effect)

    def _fits_its_children(self, table: Member) -> bool:
        """Beside a parent that does not fit InnoDB forgets foreign keys until it opens the child anew."""
        indexes = [(table.id,), *table.indexes]
        for other in self._tables.values():
            for key in other.keys:
                if key.parent != table.name:
                    continue
                count = len(key.parent_columns)
                if not any(columns[:count] == key.parent_columns for columns in indexes):
                    return False
                pairs = zip(key.columns, key.parent_columns, strict=True)
                if any(other.columns[own] is not table.columns[theirs] for own, theirs in pairs):
                    return False
        return True

    def _new_key(self, table: Member) -> ForeignKey | None:
        """Usually one that fits."""
        rng = self._rng
        parents = [*self._tables.values(), table]
        parent = rng.choice(parents)
        name = ""
        if rng.random() < 0.6:
            self._constraints += 1
            name = f"fk{self._constraints}"
        actions = self._actions()
        if rng.random() < 0.06 and not self._checks:  # a parent to come
            missing = [n for n in NAMES if n not in self._tables and n != table.name]
            return ForeignKey(("a",), rng.choice(missing), ("id",), actions, name) if missing else None
        pairs: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
            ((child,), (other,))
            for child, domain in table.columns.items()
            for other, theirs in parent.columns.items()
            if (domain is theirs or (domain.plain and theirs.plain and rng.random() < 0.05))
            and (other == parent.id or (other,) in parent.indexes or rng.random() < 0.05)
        ]
        if ("a", "b") in parent.indexes:
            pairs.append((("a", "b"), ("a", "b")))
        if not pairs:
            return None
        own, others = rng.choice(pairs)
        may_be_null = any(b in parent.nullable and a not in table.nullable for a, b in zip(own, others, strict=True))
        if may_be_null and "UPDATE CASCADE" in actions:
            actions = ""  # InnoDB refuses it in strict mode
        return ForeignKey(own, parent.name, others, actions, name)

    def _actions(self) -> str:
        on_delete, on_update = self._rng.choice(ACTIONS), self._rng.choice(ACTIONS)
        return (f" ON DELETE{on_delete}" if on_delete else "") + (f" ON UPDATE{on_update}" if on_update else "")

    def _add_key(self, table: Member) -> None:
        key = self._new_key(table) if len(table.keys) < KEYS_MOST else None
        if key is None or not self._finds_its_index(table, key):
            return self._drop_key(table)

        def effect() -> None:
            table.keys.append(key)
            table.name_keys()

        self._put(f"ALTER TABLE {table.name} ADD {key.sql()}", effect)

    def _finds_its_index(self, table: Member, key: ForeignKey) -> bool:
        """InnoDB does not let a table refer to an index of its own that the same ALTER makes."""
        indexes = [(table.id,), *table.indexes]
        count = len(key.parent_columns)
        return key.parent != table.name or any(columns[:count] == key.parent_columns for columns in indexes)

    def _drop_key(self, table: Member) -> None:
        if not table.keys:
            return self._force(table)
        key = self._rng.choice(table.keys)
        self._put(f"ALTER TABLE {table.name} DROP FOREIGN KEY {key.name}", lambda: table.keys.remove(key))

    def _rename_column(self, table: Member) -> None:
        old = self._rng.choice(list(table.columns))
        new = f"{old}x" if len(old) < 4 else old[0]
        if new in table.columns:
            return

        def renamed(columns: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(new if column == old else column for column in columns)

        def effect() -> None:
            table.columns = {new if c == old else c: d for c, d in table.columns.items()}
            table.nullable = {new if c == old else c for c in table.nullable}
            table.indexes = [renamed(columns) for columns in table.indexes]
            for other in self._tables.values():
                for place, key in enumerate(other.keys):
                    own = renamed(key.columns) if other is table else key.columns
                    theirs = renamed(key.parent_columns) if key.parent == table.name else key.parent_columns
                    other.keys[place] = replace(key, columns=own, parent_columns=theirs)

        # A copy cannot do it, in either engine.
        how = "" if self._rng.random() < 0.1 else ", ALGORITHM=INPLACE"
        self._put(f"ALTER TABLE {table.name} RENAME COLUMN {old} TO {new}{how}", effect)

    def _rename(self, table: Member) -> None:
        free = [n for n in NAMES if n not in self._tables]
        if not free or not self._checks:
            return
        new = self._rng.choice(free)
        if not self._fits_its_children(replace(table, name=new)):
            return

        def effect() -> None:
            old, table.name = table.name, new
            del self._tables[old]
            self._tables[new] = table
            for other in self._tables.values():
                for place, key in enumerate(other.keys):
                    name = key.name
                    if other is table and name.startswith(f"{old}_ibfk_"):
                        name = f"{new}_ibfk_{name.removeprefix(f'{old}_ibfk_')}"
                    parent = new if key.parent == old else key.parent
                    other.keys[place] = replace(key, name=name, parent=parent)

        self._put(f"RENAME TABLE {table.name} TO {new}", effect)  # Not by ALTER: see the README.

    def _truncate(self, table: Member) -> None:
        self._put(f"TRUNCATE TABLE {table.name}")

    def _drop(self, table: Member) -> None:
        self._put(f"DROP TABLE {table.name}", lambda: self._tables.pop(table.name, None))

    def _force(self, table: Member) -> None:
        how = self._rng.choice(("FORCE", "COMMENT='again'"))
        self._put(f"ALTER TABLE {table.name} {how}")

    def _drop_index(self, table: Member) -> None:
        if not table.indexes or not self._checks:
            return
        columns = self._rng.choice(table.indexes)
        # Its name is that of its columns when it was made.
        self._put(f"ALTER TABLE {table.name} DROP INDEX {''.join(columns)}", lambda: table.indexes.remove(columns))

    def _modify(self, table: Member) -> None:
        """Refused where the column takes part in a foreign key."""
        column = self._rng.choice([c for c in table.columns if c != table.id])
        sql = f"ALTER TABLE {table.name} MODIFY {column} {table.columns[column].sql} NULL"
        self._put(sql, lambda: table.nullable.add(column))

    def _like(self, table: Member) -> None:
        """Takes no foreign keys over."""
        free = [n for n in NAMES if n not in self._tables]
        if not free or len(self._tables) >= TABLES_MOST:
            return
        name = self._rng.choice(free)
        copy = Member(name, dict(table.columns), set(table.nullable), list(table.indexes))
        if not self._fits_its_children(copy):
            return
        self._put(f"CREATE TABLE {name} LIKE {table.name}", lambda: self._tables.update({name: copy}))

    # --- rows --------------------------------------------------------------------------------------------------

    def _value(self, table: Member, column: str) -> str:
        if self._rng.random() < (0.25 if column in table.nullable else 0.01):
            return "NULL"
        values = table.columns[column].values
        return self._rng.choice(values if column == table.id else values[:4])  # the more relatives

    def _insert(self) -> None:
        rng = self._rng
        table = self._table()
        columns = list(table.columns)
        count = rng.choice((1, 1, 1, 2, 4))
        rows = ", ".join(f"({', '.join(self._value(table, c) for c in columns)}, {rng.randrange(9)})" for _ in range(count))
        into = f"INTO {table.name} ({', '.join(columns)}, n) VALUES {rows}"
        roll = rng.random()
        if roll < 0.6:
            self._put(f"INSERT {into}")
        elif roll < 0.75:
            self._put(f"INSERT IGNORE {into}")
        elif roll < 0.85:
            self._put(f"REPLACE {into}")
        else:
            column = rng.choice(columns)
            self._put(f"INSERT {into} ON DUPLICATE KEY UPDATE {column} = VALUES({column}), n = n + 1")

    def _condition(self, table: Member, but_for: Set[str] = frozenset()) -> str:
        rng = self._rng
        column = rng.choice([c for c in table.columns if c not in but_for] or [table.id])
        values = table.columns[column].values
        roll = rng.random()
        if roll < 0.5:
            return f"{column} = {rng.choice(values)}"
        if roll < 0.7:
            return f"{column} IN ({', '.join(rng.sample(values, 3))})"
        if roll < 0.8:
            return f"{column} IS NULL"
        return f"n {rng.choice(('<', '>', '='))} {rng.randrange(9)}"

    def _often_a_parent(self) -> Member:
        parents = {key.parent for table in self._tables.values() for key in table.keys} & self._tables.keys()
        return self._tables[self._rng.choice(sorted(parents))] if parents and self._rng.random() < 0.6 else self._table()

    def _update(self) -> None:
        rng = self._rng
        table = self._often_a_parent()
        columns = rng.sample(list(table.columns), rng.choice((1, 1, 2)))
        changes = ", ".join(f"{column} = {self._value(table, column)}" for column in columns)
        ignore = "IGNORE " if rng.random() < 0.12 else ""
        limit = f" LIMIT {rng.randint(1, 3)}" if rng.random() < 0.5 else ""
        self._put(
            f"UPDATE {ignore}{table.name} SET {changes}, n = {rng.randrange(9)} WHERE {self._condition(table)}"
            f" ORDER BY {table.id}{limit}"
        )

    def _delete(self) -> None:
        rng = self._rng
        table = self._often_a_parent()
        # A row that no longer fulfils the condition when its turn comes is deleted by one plan and not by another.
        follows = ("SET NULL", "UPDATE CASCADE")
        changed = {c for key in table.keys if any(action in key.actions for action in follows) for c in key.columns}
        ignore = "IGNORE " if rng.random() < 0.12 else ""
        limit = f" LIMIT {rng.randint(1, 3)}" if rng.random() < 0.5 else ""
        self._put(f"DELETE {ignore}FROM {table.name} WHERE {self._condition(table, changed)} ORDER BY {table.id}{limit}")

    # --- reading -----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        rng = self._rng
        table = self._table()
        roll = rng.random()
        if roll < 0.5:
            self._put(f"SELECT * FROM {table.name} ORDER BY {table.id}")
        elif roll < 0.6:
            self._put(f"SHOW CREATE TABLE {table.name}")
        elif roll < 0.8:
            self._queue += self._catalogue()
        elif table.keys:
            key = rng.choice(table.keys)
            on = " AND ".join(f"c.{own} = p.{other}" for own, other in zip(key.columns, key.parent_columns, strict=True))
            if key.parent in self._tables:
                order = f"c.{table.id}, p.{self._tables[key.parent].id}"
                self._put(f"SELECT c.*, p.* FROM {table.name} c LEFT JOIN {key.parent} p ON {on} ORDER BY {order}")

    def _catalogue(self) -> list[Step]:
        schema = "information_schema"
        columns = "constraint_name, table_name, column_name, ordinal_position, referenced_table_name, referenced_column_name"
        rules = "constraint_name, unique_constraint_name, match_option, update_rule, delete_rule, table_name"
        return [
            Step(
                f"SELECT {columns} FROM {schema}.key_column_usage WHERE table_schema = DATABASE()"
                " ORDER BY table_name, constraint_name, ordinal_position, column_name",
                ordered=True,
            ),
            Step(
                f"SELECT {rules} FROM {schema}.referential_constraints WHERE constraint_schema = DATABASE()"
                " ORDER BY table_name, constraint_name",
                ordered=True,
            ),
            Step(
                f"SELECT constraint_name, table_name, constraint_type FROM {schema}.table_constraints"
                " WHERE constraint_schema = DATABASE() ORDER BY table_name, constraint_type, constraint_name",
                ordered=True,
            ),
        ]

    def _verify(self) -> None:
        for table in self._tables.values():
            self._put(f"SHOW CREATE TABLE {table.name}")
            self._put(f"SELECT * FROM {table.name} ORDER BY {table.id}")
            self._put(f"CHECK TABLE {table.name} EXTENDED")
        self._queue += self._catalogue()


def is_family(seed: int) -> bool:
    return random.Random(f"kind {seed}").random() < CHANCE
