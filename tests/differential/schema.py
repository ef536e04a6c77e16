"""What the generator knows of the tables: enough to write statements that usually make sense."""

import copy
from dataclasses import dataclass, field

from .types import Type


@dataclass
class Column:
    name: str
    type: Type
    nullable: bool = True
    default: str | None = None  # SQL text
    generated: str | None = None  # "expression) VIRTUAL" and so on; the server computes it
    auto: bool = False
    check: str | None = None
    on_update: bool = False

    def sql(self) -> str:
        parts = [self.name, self.type.sql]
        if self.generated is not None:
            return " ".join([*parts, "AS (" + self.generated])
        parts.append("NULL" if self.nullable else "NOT NULL")
        if self.auto:
            parts.append("AUTO_INCREMENT")
        elif self.default is not None:
            parts.append(f"DEFAULT {self.default}")
        if self.on_update:
            parts.append("ON UPDATE CURRENT_TIMESTAMP" + self.type.sql[len("TIMESTAMP") :])
        if self.check:
            parts.append(f"CHECK ({self.check})")
        return " ".join(parts)

    @property
    def writable(self) -> bool:
        return self.generated is None


@dataclass
class Part:
    column: str
    prefix: int = 0
    descending: bool = False

    def sql(self) -> str:
        return self.column + (f"({self.prefix})" if self.prefix else "") + (" DESC" if self.descending else "")


@dataclass
class Index:
    name: str
    parts: list[Part]
    unique: bool = False
    primary: bool = False
    hashed: bool = False  # UNIQUE ... USING HASH, of columns of any length

    def sql(self) -> str:
        parts = ", ".join(part.sql() for part in self.parts)
        if self.primary:
            return f"PRIMARY KEY ({parts})"
        return f"{'UNIQUE ' if self.unique else ''}KEY {self.name} ({parts}){' USING HASH' if self.hashed else ''}"

    @property
    def whole(self) -> bool:
        return not any(part.prefix for part in self.parts)


@dataclass
class Table:
    name: str
    columns: list[Column] = field(default_factory=list)
    indexes: list[Index] = field(default_factory=list)
    options: str = ""

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def create_sql(self) -> str:
        body = [column.sql() for column in self.columns] + [index.sql() for index in self.indexes]
        return f"CREATE TABLE {self.name} ({', '.join(body)}){self.options}"

    @property
    def primary(self) -> Index | None:
        return next((index for index in self.indexes if index.primary), None)

    @property
    def has_long_values(self) -> bool:
        return any(word in column.type.sql for column in self.columns for word in ("TEXT", "BLOB", "JSON"))

    @property
    def has_virtual(self) -> bool:
        return any((column.generated or "").endswith("VIRTUAL") for column in self.columns)

    @property
    def total_order(self) -> str | None:
        """An ORDER BY list that leaves no ties, if the table has one."""
        return ", ".join(part.column for part in self.primary.parts) if self.primary else None

    @property
    def writable(self) -> list[Column]:
        return [column for column in self.columns if column.writable]

    @property
    def auto(self) -> Column | None:
        return next((column for column in self.columns if column.auto), None)

    def indexed(self, column: Column) -> bool:
        return any(part.column == column.name for index in self.indexes for part in index.parts)

    def in_unique(self, column: Column) -> bool:
        """Whether a change of the column may run into a duplicate; generated columns may depend on it."""
        names = {column.name} | {c.name for c in self.columns if c.generated and column.name in c.generated}
        return any(part.column in names for index in self.indexes if index.unique or index.primary for part in index.parts)

    def clone(self) -> "Table":
        return copy.deepcopy(self)


@dataclass
class Schema:
    tables: dict[str, Table] = field(default_factory=dict)
    counter: int = 0

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"
