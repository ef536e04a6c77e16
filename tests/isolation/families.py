"""Histories with parents and children: what foreign keys promise at every level, and what commits promise of such rows.

Clients add, move and take away parents, children and grandchildren. Ids are never used twice, and each row says in `who` to which
parent it belongs, whatever id that one has by now. So every committed state can be judged by itself (IS9, IS10).
"""

import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from strata_cli.server import Server

from .history import End, Level
from .session import ENGINES, Excuse, Failed, Gone, Result, Session, excuse_nothing
from .workload import server_of

DATABASE = "families"
PARENTS_MOST = 12  # about so many are there at a time
# A parent that is not there, or that is in use; a key that is there already.
REFUSED = {1451, 1452, 1062}


class Kind:
    """Of a child: the table, and what happens when its parent goes."""

    cascade = "cascade_child"
    null = "null_child"
    strict = "strict_child"


KINDS = (Kind.cascade, Kind.null, Kind.strict)
GRANDCHILD = "grandchild"

ORPHANS = " UNION ALL ".join(
    f"SELECT '{table}', c.id, c.{key}, c.who, p.who FROM {table} c LEFT JOIN {parent} p ON p.id = c.{key}"
    f" WHERE c.{key} IS NOT NULL AND (p.id IS NULL OR p.who <> c.who)"
    for table, key, parent in (*((kind, "p", "parent") for kind in KINDS), (GRANDCHILD, "c", Kind.cascade))
)


@dataclass
class Born:
    table: str
    id: int
    who: int
    parent: int  # a grandchild's: the child's id


@dataclass
class Deed:
    """What one transaction has done, in the end."""

    end: End = End.aborted
    born: list[Born] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)  # who was born
    gone: list[int] = field(default_factory=list)  # who, of parents that were taken away
    touched: set[tuple[str, int]] = field(default_factory=set)  # children moved or taken away by themselves


@dataclass
class Shared:
    servers: Sequence[Server]  # the same tables on all of them
    seed: str
    levels: Sequence[Level]
    snapshot_isolation: bool = False
    excuses: Excuse = excuse_nothing
    engines: Sequence[str] = ENGINES
    stopping: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    last_id: int = 0

    def fresh(self) -> int:
        with self.lock:
            self.last_id += 1
            return self.last_id


@dataclass
class Report:
    problems: list[str] = field(default_factory=list)
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    refused: int = 0
    looks: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems


class Client(threading.Thread):
    def __init__(self, shared: Shared, number: int) -> None:
        super().__init__(name=f"family client {number}", daemon=True)
        self._shared = shared
        self._rng = random.Random(f"{shared.seed} family {number}")
        self.level = shared.levels[number % len(shared.levels)]
        server = server_of(shared.servers, number, len(shared.levels))
        self._session = Session(server, DATABASE, self.level, shared.snapshot_isolation, shared.excuses, shared.engines)
        self._deed = Deed()
        self._savepoint: Deed | None = None
        self._changed = False  # in this transaction
        self._ways = (
            (self._add_parent, 16),
            (self._add_child, 44),
            (self._take_parent, 9),
            (self._move_parent, 7),
            (self._touch_child, 10),
            (self._look, 6),
            (self._undo, 8),
        )
        self.deeds: list[Deed] = []
        self.problems: list[str] = []
        self.refused = self.looks = 0

    def run(self) -> None:
        try:
            while not self._shared.stopping.is_set() and not self.problems:
                if not self._session.connected and not self._session.connect():
                    self._shared.stopping.wait(0.05)
                    continue
                self._one_transaction()
        except Exception as error:  # Whatever it is, it is a finding.
            self.problems.append(f"{self.name}: {type(error).__name__}: {error}")
        finally:
            self._session.disconnect()

    def _one_transaction(self) -> None:
        self._deed = Deed()
        self._savepoint = None
        self._changed = False
        self.deeds.append(self._deed)
        try:
            if self._rng.random() < 0.2:
                self._look()
                return
            self._execute("BEGIN")
            for _ in range(self._rng.randint(1, 5)):
                if self._rng.random() < 0.1:
                    self._shared.stopping.wait(self._rng.random() * 0.004)
                self._rng.choices([what for what, _ in self._ways], [weight for _, weight in self._ways])[0]()
            if self._rng.random() < 0.12:
                self._execute("ROLLBACK")
                return
            self._deed.end = End.unknown
            self._execute("COMMIT")
            self._deed.end = End.committed
        except Failed:
            self._deed.end = End.aborted
            try:
                self._session.execute("ROLLBACK")
            except Gone:
                self._session.disconnect()
        except Gone:
            self._session.disconnect()

    def _execute(self, sql: str) -> Result | None:
        """None: refused, and nothing of it has happened."""
        result = self._session.execute(sql, REFUSED)
        self.refused += result is None
        return result

    def _change(self, sql: str) -> bool:
        """Whether a row was changed."""
        done = self._execute(sql)
        changed = done is not None and done[1] > 0
        self._changed |= changed
        return changed

    # --- statements ---

    def _parents(self) -> list[tuple[int, int]]:
        """Id and who, of some that were there at some time."""
        found = self._execute(f"SELECT id, who FROM parent ORDER BY id DESC LIMIT {PARENTS_MOST * 2}")
        return [(row[0], row[1]) for row in found[0]] if found else []

    def _add_parent(self) -> None:
        new = self._shared.fresh()
        if self._change(f"INSERT INTO parent VALUES ({new}, {new}, 0)"):
            self._deed.parents.append(new)

    def _add_child(self) -> None:
        if not (parents := self._parents()):
            return self._add_parent()
        parent, who = self._rng.choice(parents)
        new = self._shared.fresh()
        if self._rng.random() < 0.2:
            found = self._execute(f"SELECT id, who FROM {Kind.cascade} ORDER BY id DESC LIMIT 9")
            if not found or not found[0]:
                return
            child, who = self._rng.choice(found[0])
            if self._change(f"INSERT INTO {GRANDCHILD} VALUES ({new}, {child}, {who})"):
                self._deed.born.append(Born(GRANDCHILD, new, who, child))
            return
        table = self._rng.choices(KINDS, (4, 3, 1))[0]
        if self._change(f"INSERT INTO {table} VALUES ({new}, {parent}, {who})"):
            self._deed.born.append(Born(table, new, who, parent))

    def _take_parent(self) -> None:
        parents = self._parents()
        if len(parents) < PARENTS_MOST // 2:
            return self._add_parent()
        parent, who = self._rng.choice(parents)
        if self._change(f"DELETE FROM parent WHERE id = {parent}"):
            self._deed.gone.append(who)

    def _move_parent(self) -> None:
        """Its children follow; a strict one holds on to it."""
        if parents := self._parents():
            parent, _ = self._rng.choice(parents)
            self._change(f"UPDATE parent SET id = {self._shared.fresh()} WHERE id = {parent}")

    def _touch_child(self) -> None:
        table = self._rng.choice(KINDS)
        found = self._execute(f"SELECT id FROM {table} ORDER BY id DESC LIMIT 12")
        parents = self._parents()
        if not found or not found[0] or not parents:
            return
        child = self._rng.choice(found[0])[0]
        parent, who = self._rng.choice(parents)
        if self._rng.random() < 0.4 or table == Kind.cascade:  # whose own children say who they belong to
            sql = f"DELETE FROM {table} WHERE id = {child}"
        else:
            sql = f"UPDATE {table} SET p = {parent}, who = {who} WHERE id = {child}"
        if self._change(sql):
            self._deed.touched.add((table, child))

    def _undo(self) -> None:
        deed = self._deed
        if self._savepoint is None:
            self._execute("SAVEPOINT s")
            self._savepoint = Deed(End.aborted, list(deed.born), list(deed.parents), list(deed.gone), set(deed.touched))
            return
        self._execute("ROLLBACK TO SAVEPOINT s")
        kept, self._savepoint = self._savepoint, None
        deed.born, deed.parents, deed.gone, deed.touched = kept.born, kept.parents, kept.gone, kept.touched

    def _look(self) -> None:
        """IS9. A snapshot with changes of one's own in it is no state that ever was committed."""
        if self.level == Level.RU or (self.level == Level.RR and self._changed):
            return
        found = self._execute(ORPHANS)
        self.looks += 1
        if found and found[0]:
            shown = f"(table, id, parent's id, who, its parent's who) {found[0][:5]}"
            self.problems.append(f"{self.name}, {self.level}: orphans {shown}")


def create_tables(server: Server, engine: str) -> None:
    ids = "id BIGINT PRIMARY KEY"
    refers = "p BIGINT {}, who BIGINT NOT NULL, KEY (p), FOREIGN KEY (p) REFERENCES parent (id)"
    for sql in (
        f"DROP DATABASE IF EXISTS {DATABASE}",
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.parent ({ids}, who BIGINT NOT NULL, n INT NOT NULL) ENGINE={engine}",
        f"CREATE TABLE {DATABASE}.{Kind.cascade} ({ids}, {refers.format('NOT NULL')} ON DELETE CASCADE ON UPDATE CASCADE)"
        f" ENGINE={engine}",
        f"CREATE TABLE {DATABASE}.{Kind.null} ({ids}, {refers.format('NULL')} ON DELETE SET NULL ON UPDATE CASCADE)"
        f" ENGINE={engine}",
        f"CREATE TABLE {DATABASE}.{Kind.strict} ({ids}, {refers.format('NOT NULL')}) ENGINE={engine}",
        f"CREATE TABLE {DATABASE}.{GRANDCHILD} ({ids}, c BIGINT NOT NULL, who BIGINT NOT NULL, KEY (c),"
        f" FOREIGN KEY (c) REFERENCES {Kind.cascade} (id) ON DELETE CASCADE) ENGINE={engine}",
    ):
        server.query(sql)


def empty_tables(server: Server) -> None:
    for table in (GRANDCHILD, *KINDS, "parent"):
        server.query(f"DELETE FROM {DATABASE}.{table}", autocommit=True)


def judge(servers: Sequence[Server], clients: Sequence[Client]) -> Report:
    """When every client has ended; the tables are the same on all servers."""
    report = Report()
    deeds = [deed for client in clients for deed in client.deeds]
    for client in clients:
        report.problems += client.problems
        report.refused += client.refused
        report.looks += client.looks
    report.committed = sum(deed.end == End.committed for deed in deeds)
    report.unknown = sum(deed.end == End.unknown for deed in deeds)
    report.aborted = len(deeds) - report.committed - report.unknown
    found = [_rows_of(server) for server in servers]
    report.problems += compare(deeds, found[0])
    for number, server in enumerate(servers, 1):
        report.problems += [f"in the end: {row}" for row in server.query(ORPHANS, database=DATABASE)]
        if found[number - 1] != found[0]:
            report.problems.append(f"server {number} has other rows than server 1 has")
        for table in found[0]:
            checked = server.query(f"CHECK TABLE {table} EXTENDED", database=DATABASE)
            if [row[3] for row in checked] != ["OK"]:
                report.problems.append(f"CHECK TABLE {table}: {checked}")
    return report


def _rows_of(server: Server) -> dict[str, dict[int, tuple[int | None, int]]]:
    return {
        table: {row[0]: (row[1], row[2]) for row in server.query(f"SELECT id, {key}, who FROM {table}", database=DATABASE)}
        for table, key in (("parent", "id"), *((kind, "p") for kind in KINDS), (GRANDCHILD, "c"))
    }


def compare(deeds: Sequence[Deed], found: dict[str, dict[int, tuple[int | None, int]]]) -> list[str]:
    """IS10. `found`: per table the id, the parent's id, who."""
    here = {who: parent for parent, who in found["parent"].values()}
    problems = []
    possible = {End.committed, End.unknown}
    touched: dict[bool, set[tuple[str, int]]] = defaultdict(set)
    gone: dict[bool, set[int]] = defaultdict(set)
    for deed in deeds:
        for sure in (True, False):
            if deed.end == End.committed or (not sure and deed.end == End.unknown):
                touched[sure] |= deed.touched
                gone[sure] |= set(deed.gone)
    may_be = {("parent", who) for deed in deeds if deed.end in possible for who in deed.parents}
    may_be |= {(born.table, born.id) for deed in deeds if deed.end in possible for born in deed.born}
    for who in here:
        if ("parent", who) not in may_be:
            problems.append(f"parent {who} was never committed")
        if who in gone[True]:
            problems.append(f"parent {who} is there, and its deletion was committed")
    for table, rows in found.items():
        if table != "parent":
            problems += [f"{table} {row} was never committed" for row in rows if (table, row) not in may_be]
    for deed in deeds:
        if deed.end != End.committed:
            continue
        problems += [f"parent {who} has gone by itself" for who in deed.parents if who not in here and who not in gone[False]]
        for born in deed.born:
            above = (Kind.cascade, born.parent) if born.table == GRANDCHILD else (born.table, born.id)
            if not {(born.table, born.id), above}.isdisjoint(touched[False]):
                continue
            row = found[born.table].get(born.id)
            stays = born.who in here
            if born.table == Kind.null:
                if row is None or (row[0] is not None) != stays:
                    problems.append(f"{born} is {row}, and its parent is {'' if stays else 'not '}there")
            elif (row is not None) != stays:
                problems.append(f"{born} is {row}, and its parent is {'' if stays else 'not '}there")
            if stays and row is not None and born.table != GRANDCHILD and row[0] != here[born.who]:
                problems.append(f"{born} is {row}, and its parent has the id {here[born.who]}")
    return problems
