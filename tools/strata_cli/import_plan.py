"""What `./strata import` does with which table: tables that foreign keys tie together change their engine together.

A table of InnoDB that takes part in a foreign key cannot change its engine, and no foreign key leads from one engine to another.
So the foreign keys of such a family are dropped, its tables converted, parents first, and each gets its foreign keys back in the
same ALTER. Pure: the catalogue in, statements out.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

Name = tuple[str, str]  # schema, table


@dataclass(frozen=True)
class ForeignKey:
    child: Name
    name: str
    columns: tuple[str, ...]
    parent: Name
    parent_columns: tuple[str, ...]
    on_delete: str = "RESTRICT"
    on_update: str = "RESTRICT"

    def definition(self) -> str:
        return (
            f"CONSTRAINT {quoted(self.name)} FOREIGN KEY ({_list(self.columns)}) REFERENCES {full(self.parent)}"
            f" ({_list(self.parent_columns)}) ON DELETE {self.on_delete} ON UPDATE {self.on_update}"
        )

    def orphans(self) -> str:
        """Counts rows of the child without a parent."""
        on = " AND ".join(f"c.{quoted(a)} = p.{quoted(b)}" for a, b in zip(self.columns, self.parent_columns, strict=True))
        given = " AND ".join(f"c.{quoted(a)} IS NOT NULL" for a in self.columns)
        return (
            f"SELECT COUNT(*) FROM {full(self.child)} c LEFT JOIN {full(self.parent)} p ON {on}"
            f" WHERE {given} AND p.{quoted(self.parent_columns[0])} IS NULL"
        )


@dataclass(frozen=True)
class Table:
    name: Name
    size: int = 0  # Bytes, as information_schema says.
    obstacle: str = ""  # Why it has to stay what it is.


@dataclass
class Family:
    """Tables that change their engine together, parents before children, and the foreign keys between them."""

    tables: list[Table]
    keys: list[ForeignKey] = field(default_factory=list)

    def label(self) -> str:
        first = ".".join(self.tables[0].name)
        return first if len(self.tables) == 1 else f"{first} and {len(self.tables) - 1} more"

    def size(self) -> int:
        return sum(table.size for table in self.tables)

    def obstacles(self) -> dict[Name, str]:
        """Why which tables stay: one that has to keeps its relatives."""
        own = {table.name: table.obstacle for table in self.tables if table.obstacle}
        if not own:
            return {}
        culprit = ".".join(next(iter(own)))
        return {table.name: own.get(table.name, f"foreign keys tie it to {culprit}, which stays") for table in self.tables}

    def keys_of(self, table: Name) -> list[ForeignKey]:
        return [key for key in self.keys if key.child == table]

    def comes_too_early(self, table: Name) -> bool:
        """Rows come before their parents: a foreign key leads to the table itself, or to one that comes behind it (a circle)."""
        behind = {other.name for other in self.tables[self._place(table) :]}
        return any(key.parent in behind for key in self.keys_of(table))

    def _place(self, name: Name) -> int:
        return next(at for at, table in enumerate(self.tables) if table.name == name)


def families(tables: Iterable[Table], keys: Iterable[ForeignKey]) -> list[Family]:
    """By the names of their first tables. Foreign keys from and to tables that are not given are left out."""
    by_name = {table.name: table for table in tables}
    inner = [key for key in keys if key.child in by_name and key.parent in by_name]
    root = {name: name for name in by_name}

    def find(name: Name) -> Name:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for key in inner:
        root[find(key.child)] = find(key.parent)
    members: dict[Name, list[Name]] = {}
    for name in sorted(by_name):
        members.setdefault(find(name), []).append(name)
    found = []
    for names in members.values():
        own = [key for key in inner if key.child in names]
        found.append(Family([by_name[name] for name in _parents_first(names, own)], own))
    return sorted(found, key=lambda family: min(table.name for table in family.tables))


def _parents_first(names: Collection[Name], keys: Collection[ForeignKey]) -> list[Name]:
    """In a circle the first by name goes before its parent."""
    left, order = sorted(names), []
    while left:
        free = [name for name in left if not any(k.child == name and k.parent in left and k.parent != name for k in keys)]
        taken = free or left[:1]
        order += taken
        left = [name for name in left if name not in taken]
    return order


def convert(table: Name, engine: str, keys: Collection[ForeignKey]) -> str:
    return ", ".join([f"ALTER TABLE {full(table)} ENGINE={engine}", *(f"ADD {key.definition()}" for key in keys)])


def add_keys(table: Name, keys: Collection[ForeignKey]) -> str:
    return f"ALTER TABLE {full(table)} " + ", ".join(f"ADD {key.definition()}" for key in keys)


def drop_keys(table: Name, keys: Collection[ForeignKey]) -> str:
    return f"ALTER TABLE {full(table)} " + ", ".join(f"DROP FOREIGN KEY {quoted(key.name)}" for key in keys)


def to_json(family: Family) -> dict[str, Any]:
    return {"tables": [asdict(table) for table in family.tables], "keys": [asdict(key) for key in family.keys]}


def from_json(found: dict[str, Any]) -> Family:
    tables = [Table(tuple(one["name"]), one["size"], one["obstacle"]) for one in found["tables"]]
    keys = [ForeignKey(**_with_tuples(one)) for one in found["keys"]]
    return Family(tables, keys)


def _with_tuples(found: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def full(name: Name) -> str:
    return f"{quoted(name[0])}.{quoted(name[1])}"


def _list(columns: Iterable[str]) -> str:
    return ", ".join(map(quoted, columns))
