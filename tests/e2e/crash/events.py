"""Inserts into two tables in one transaction: one with AUTO_INCREMENT and indexes, one without any primary key."""

import random

from .ledger import Ledger, missing_and_wrong
from .session import Connector, Refused, ServerGone, Session
from .worker import TXNS_PER_WORKER, Worker

ROWS_PER_TXN_MAX = 6

TABLES = {
    "events": ["txn_key", "kind_key"],
    "notes": ["note_key"],
}


def create(session: Session, engine: str) -> None:
    session.execute(
        "CREATE TABLE events (seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, txn BIGINT NOT NULL, part INT NOT NULL,"
        " kind INT NOT NULL, body VARCHAR(500), UNIQUE KEY txn_key (txn, part), KEY kind_key (kind))"
        f" ENGINE={engine}"
    )
    session.execute(
        f"CREATE TABLE notes (txn BIGINT NOT NULL, part INT NOT NULL, body TEXT, KEY note_key (txn, part)) ENGINE={engine}"
    )
    session.commit()


class EventsWorker(Worker):
    def __init__(self, server: Connector, database: str, number: int, rng: random.Random, ledger: Ledger) -> None:
        super().__init__(server, database, number, rng)
        self._ledger = ledger
        self._next = 1 + max((t for t in ledger.begun if t // TXNS_PER_WORKER == number), default=number * TXNS_PER_WORKER)
        self._txn = 0

    def step(self, session: Session) -> None:
        parts = self.rng.randint(1, ROWS_PER_TXN_MAX)
        self._txn, self._next = self._next, self._next + 1
        self._ledger.begin(self._txn, [parts])
        try:
            self._insert(session, parts)
        except ServerGone:
            self._ledger.abort(self._txn)
            raise
        try:
            session.commit()
        except Refused:
            self._ledger.abort(self._txn)
            raise
        self._ledger.ack(self._txn)

    def _insert(self, session: Session, parts: int) -> None:
        body = "e" * self.rng.randint(0, 400)
        rows = ", ".join(f"({self._txn}, {p}, {self.rng.randint(0, 20)}, '{body}')" for p in range(parts))
        session.execute(f"INSERT INTO events (txn, part, kind, body) VALUES {rows}")
        if self.rng.random() < 0.1:  # A part that a savepoint takes back.
            session.execute("SAVEPOINT s")
            session.execute("UPDATE events SET kind = 999 WHERE txn = %s", (self._txn,))
            session.execute("INSERT INTO notes VALUES (%s, 999, 'undone')", (self._txn,))
            session.execute("ROLLBACK TO SAVEPOINT s")
        for part in range(parts):
            session.execute("INSERT INTO notes VALUES (%s, %s, %s)", (self._txn, part, body))

    def abandon(self, session: Session) -> None:
        self._ledger.abort(self._txn)
        super().abandon(session)


def verify(session: Session, ledger: Ledger) -> list[str]:
    problems: list[str] = []
    counts = {}
    for table in ("events", "notes"):
        rows = session.execute(f"SELECT txn, COUNT(*), COUNT(DISTINCT part), MAX(part) FROM {table} GROUP BY txn")
        counts[table] = {row[0]: row[1] for row in rows}
        problems += missing_and_wrong(ledger, set(counts[table]), table)
        for txn, count, distinct, highest in rows:
            parts = ledger.begun.get(txn, [count])[0]
            if (count, distinct, highest) != (parts, parts, parts - 1):
                problems.append(f"{table}: half a transaction: {txn} has {count} of {parts} rows")
    if counts["events"] != counts["notes"]:
        only = set(counts["events"].items()) ^ set(counts["notes"].items())
        problems.append(f"events and notes disagree: {sorted(only)[:5]}")
    if session.execute("SELECT COUNT(*) FROM events WHERE kind = 999")[0][0]:
        problems.append("events: a change taken back by a savepoint is there")
    return problems[:10]
