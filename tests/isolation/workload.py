"""Clients that append to lists and read them, and write down what they did. One thread and one connection each.

The lists are rows of one table: `v` the values with commas between them, `n` how many, `grp` four neighbouring keys together.
Values are sometimes filled up with dots, so that a list does not fit into its page. Keys in use move on with the number of
appends: rows are inserted all the time.
"""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from strata_cli.server import Server

from .history import Append, End, History, Level, Mode, Read, Savepoint, Transaction
from .session import ENGINES, Excuse, Failed, Gone, Result, Session, excuse_nothing

DATABASE = "isolation"
TABLE = "lists"
GROUP_KEYS = 4
APPENDS_PER_KEY = 24
SUFFIX = {Mode.plain: "", Mode.share: " LOCK IN SHARE MODE", Mode.update: " FOR UPDATE"}


@dataclass
class Shared:
    """What the clients of one history have in common."""

    servers: Sequence[Server]  # the same tables on all of them
    rng_seed: str
    levels: Sequence[Level]
    keys: int  # in use at a time
    long_share: float = 0.02  # of the values
    snapshot_isolation: bool = False
    excuses: Excuse = excuse_nothing
    engines: Sequence[str] = ENGINES
    appends: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def base(self) -> int:
        """The lowest key in use; a race here only moves it a little."""
        return self.appends // APPENDS_PER_KEY // GROUP_KEYS * GROUP_KEYS


class Client(threading.Thread):
    def __init__(self, shared: Shared, number: int) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self._shared = shared
        self._number = number
        self._rng = random.Random(f"{shared.rng_seed} client {number}")
        self._level = shared.levels[number % len(shared.levels)]
        self._next_value = number + 1
        server = server_of(shared.servers, number, len(shared.levels))
        self._session = Session(server, DATABASE, self._level, shared.snapshot_isolation, shared.excuses, shared.engines)
        self._transaction = Transaction(number, self._level, 0.0)
        self.transactions: list[Transaction] = []
        self.problems: list[str] = []

    def run(self) -> None:
        try:
            while not self._shared.stopping.is_set() and not self.problems:
                if not self._session.connected and not self._session.connect():
                    self._shared.stopping.wait(0.05)
                    continue
                self._one_transaction()
        except Exception as error:  # Whatever it is, it is a finding.
            self.problems.append(f"client {self._number}: {type(error).__name__}: {error}")
        finally:
            self._session.disconnect()

    def _execute(self, sql: str) -> Result:
        result = self._session.execute(sql)
        assert result is not None  # No error is expected.
        return result

    # --- transactions ---

    def _one_transaction(self) -> None:
        self._transaction = Transaction(self._number, self._level, time.monotonic())
        try:
            if self._rng.random() < 0.15:
                self._single_statement()
            else:
                self._several_statements()
        except Failed:
            self._transaction.end = End.aborted
            self._roll_back_what_is_left()
        except Gone:
            self._session.disconnect()
        self._transaction.ended = time.monotonic()
        self.transactions.append(self._transaction)

    def _roll_back_what_is_left(self) -> None:
        try:
            self._execute("ROLLBACK")
        except Gone:
            self._session.disconnect()

    def _single_statement(self) -> None:
        self._transaction.single = True
        self._transaction.end = End.unknown
        self._read() if self._rng.random() < 0.5 else self._append()
        self._transaction.end = End.committed

    def _several_statements(self) -> None:
        if self._level == Level.RR and self._rng.random() < 0.1:
            self._transaction.snapshot_at = time.monotonic()
            self._execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        else:
            self._execute("BEGIN")
        # Not before the first statement: ROLLBACK TO a savepoint from before the engine took part ends the engine's transaction.
        savepoints = 0
        for _ in range(self._rng.randint(1, 6)):
            if self._rng.random() < 0.2:
                self._shared.stopping.wait(self._rng.random() * 0.004)
            choice = self._rng.random()
            if choice < 0.07 and self._transaction.operations:
                savepoints += 1
                self._savepoint(savepoints, False)
            elif choice < 0.12 and savepoints:
                savepoints = self._rng.randint(1, savepoints)  # later ones are gone
                self._savepoint(savepoints, True)
            elif choice < 0.62:
                self._read()
            else:
                self._append()
        if self._rng.random() < 0.12:
            self._execute("ROLLBACK")
            return
        self._transaction.end = End.unknown
        self._execute("COMMIT")
        self._transaction.end = End.committed

    def _savepoint(self, number: int, undo: bool) -> None:
        self._execute(f"{'ROLLBACK TO ' if undo else ''}SAVEPOINT s{number}")
        self._transaction.operations.append(Savepoint(number, undo))

    # --- statements ---

    def _some_keys(self, most: int) -> list[int]:
        base = self._shared.base()
        count = self._rng.randint(1, most)
        return sorted({base + self._rng.randrange(self._shared.keys) for _ in range(count)})

    def _where(self) -> tuple[str, str, list[int]]:
        """Index hint, condition, and the keys that fulfil it whether they are there or not."""
        choice = self._rng.random()
        keys = self._some_keys(3)
        if choice < 0.45:
            return "", f"id IN ({','.join(map(str, keys))})", keys
        if choice < 0.65:
            first, last = keys[0], keys[0] + self._rng.randint(0, 5)
            return "", f"id BETWEEN {first} AND {last}", list(range(first, last + 1))
        group = keys[0] // GROUP_KEYS
        first = group * GROUP_KEYS
        return "FORCE INDEX (grp_n)", f"grp = {group}", list(range(first, first + GROUP_KEYS))

    def _read(self) -> None:
        mode = self._rng.choices((Mode.plain, Mode.share, Mode.update), (70, 12, 18))[0]
        hint, condition, keys = self._where()
        lengths_only = bool(hint) and self._rng.random() < 0.5
        order = self._rng.choice(("", " ORDER BY grp DESC, n DESC" if hint else " ORDER BY id DESC"))
        read = Read(keys, mode, time.monotonic(), moves=bool(hint))
        read.how = f"{hint} {condition}{order}".strip()
        rows, _ = self._execute(
            f"SELECT id, n{'' if lengths_only else ', v'} FROM {TABLE} {hint} WHERE {condition}{order}{SUFFIX[mode]}"
        )
        dirty = self._level == Level.RU and mode == Mode.plain  # an entry may move ahead of the scan
        if len({row[0] for row in rows}) < len(rows) and not dirty:
            self.problems.append(f"client {self._number}: a row came twice: {condition} {[row[0] for row in rows]}")
        if lengths_only:
            read.lengths = {row[0]: row[1] for row in rows}
        else:
            read.lists = {row[0]: parse(row[2]) for row in rows}
            torn = [row[0] for row in rows if row[1] != len(read.lists[row[0]])]
            if torn and not dirty:
                self.problems.append(f"client {self._number}: n does not agree with v in rows {torn}")
        self._transaction.operations.append(read)

    def _append(self) -> None:
        value = self._next_value
        self._next_value += 1000
        text = str(value) + "." * (self._rng.randint(1, 6000) if self._rng.random() < self._shared.long_share else 0)
        change = f"v = CONCAT(v, ',{text}'), n = n + 1"
        insert = self._rng.random() < 0.6
        if insert:
            keys = self._some_keys(1)
            sql = f"INSERT INTO {TABLE} VALUES ({keys[0]}, {keys[0] // GROUP_KEYS}, 1, '{text}') ON DUPLICATE KEY UPDATE {change}"
        else:
            hint, condition, keys = self._where()
            sql = f"UPDATE {TABLE} {hint} SET {change} WHERE {condition}"
        append = Append(keys, value, time.monotonic(), -1)
        self._transaction.operations.append(append)
        _, affected = self._execute(sql)
        append.hit = 1 if insert else affected
        self._shared.appends += append.hit


def server_of(servers: Sequence[Server], number: int, levels: int) -> Server:
    """Every level on every server, if there are clients enough."""
    return servers[(number // levels + number % levels) % len(servers)]


def parse(text: str) -> list[int]:
    return [int(part.rstrip(".")) for part in text.split(",")]


def create_table(server: Server, engine: str) -> None:
    for sql in (
        f"CREATE DATABASE IF NOT EXISTS {DATABASE}",
        f"DROP TABLE IF EXISTS {DATABASE}.{TABLE}",
        f"CREATE TABLE {DATABASE}.{TABLE} (id INT PRIMARY KEY, grp INT NOT NULL, n INT NOT NULL, v LONGTEXT NOT NULL,"
        f" KEY grp_n (grp, n)) ENGINE={engine} CHARSET=latin1",
    ):
        server.query(sql)


def read_final(servers: Sequence[Server], history: History) -> None:
    """When every client has ended: the lists, the same on all servers."""
    history.final = _read_lists(servers[0], history)
    for number, server in enumerate(servers[1:], 2):
        lists = _read_lists(server, history)
        if differs := sorted(key for key in history.final.keys() | lists if history.final.get(key) != lists.get(key)):
            history.problems.append(f"server {number} has other lists than server 1 has, of the keys {differs}")


def _read_lists(server: Server, history: History) -> dict[int, list[int]]:
    """Both indexes and CHECK TABLE must agree."""
    rows = server.query(f"SELECT id, n, v FROM {TABLE} FORCE INDEX (PRIMARY)", database=DATABASE)
    history.problems += [f"n of key {row[0]} is {row[1]}, its list is {row[2]}" for row in rows if row[1] != len(parse(row[2]))]
    entries = server.query(f"SELECT id, n, grp FROM {TABLE} FORCE INDEX (grp_n) WHERE grp >= 0", database=DATABASE)
    expected = {(row[0], row[1], row[0] // GROUP_KEYS) for row in rows}
    if set(entries) != expected or len(entries) != len(expected):
        history.problems.append(f"the index grp_n differs from the table in {sorted(set(entries) ^ expected)}")
    checked = server.query(f"CHECK TABLE {TABLE} EXTENDED", database=DATABASE)
    if [row[3] for row in checked] != ["OK"]:
        history.problems.append(f"CHECK TABLE: {checked}")
    return {row[0]: parse(row[2]) for row in rows}
