"""Two-phase commit by the client: what was prepared survives a crash until it is told to commit or to roll back."""

import random
from collections.abc import Sequence

from .ledger import Ledger, missing_and_wrong
from .session import Connector, Excused, Refused, ServerGone, Session
from .worker import TXNS_PER_WORKER, Worker

TABLES = {"xa_rows": ["part_key"]}
ROWS_PER_TXN_MAX = 4
# This version of the server writes XA PREPARE and XA COMMIT to the binary log before it tells the engine, and does not compare
# both when it recovers: whatever the engine does, what was in doubt may be in one only.
NOT_LOGGED = "SET SESSION sql_log_bin = 0"


def create(session: Session, engine: str) -> None:
    session.execute(
        "CREATE TABLE xa_rows (txn BIGINT NOT NULL, part INT NOT NULL, PRIMARY KEY (txn, part), KEY part_key (part))"
        f" ENGINE={engine}"
    )
    session.commit()


class XaWorker(Worker):
    """`kept`: transactions whose XA PREPARE was acknowledged and whose rollback was not asked for: prepared, or committed."""

    def __init__(
        self, server: Connector, database: str, number: int, rng: random.Random, ledger: Ledger, *, rollback_too: bool = True
    ) -> None:
        super().__init__(server, database, number, rng)
        self.kept: set[int] = set()
        self._commit_share = 0.8 if rollback_too else 1.0
        self._ledger = ledger
        self._next = 1 + max((t for t in ledger.begun if t // TXNS_PER_WORKER == number), default=number * TXNS_PER_WORKER)
        self._txn = 0

    def begin_session(self, session: Session) -> None:
        super().begin_session(session)
        session.execute(NOT_LOGGED)

    def step(self, session: Session) -> None:
        try:
            self._transaction(session)
        except Excused as error:  # From here on only verify() can tell what has become of it.
            raise ServerGone(str(error)) from error

    def _transaction(self, session: Session) -> None:
        parts = self.rng.randint(1, ROWS_PER_TXN_MAX)
        self._txn, self._next = self._next, self._next + 1
        self._ledger.begin(self._txn, [parts])
        try:
            session.execute(f"XA START '{self._txn}'")
            for part in range(parts):
                session.execute("INSERT INTO xa_rows VALUES (%s, %s)", (self._txn, part))
            session.execute(f"XA END '{self._txn}'")
        except (ServerGone, Excused):
            self._ledger.abort(self._txn)
            raise
        session.execute(f"XA PREPARE '{self._txn}'")
        self.kept.add(self._txn)
        if self.rng.random() < 0.3:
            self._halt.wait(self.rng.uniform(0, 0.05))  # Lets a crash find it prepared.
        commit = self.rng.random() < self._commit_share
        if not commit:
            self.kept.discard(self._txn)
        session.execute(f"XA {'COMMIT' if commit else 'ROLLBACK'} '{self._txn}'")
        (self._ledger.ack if commit else self._ledger.abort)(self._txn)

    def abandon(self, session: Session) -> None:
        self.kept.discard(self._txn)
        self._ledger.abort(self._txn)
        for statement in (f"XA END '{self._txn}'", f"XA ROLLBACK '{self._txn}'"):
            try:
                session.execute(statement)
            except Refused:
                pass  # It depends on how far it had come which of them is wanted.


def verify(session: Session, ledger: Ledger, worker: XaWorker, holders: Sequence[Session] = ()) -> list[str]:
    """Ends every recovered transaction where it is, half of them each way, and then expects what that says. `holders`: sessions
    of all servers that may have some."""
    problems: list[str] = []
    recovered = {holder: _recovered(holder) for holder in holders or (session,)}
    everywhere = set().union(*recovered.values())
    present = {row[0] for row in session.execute("SELECT txn FROM xa_rows")}
    session.rollback()
    if lost := worker.kept - everywhere - present:
        problems.append(f"xa: prepared transactions are lost: {sorted(lost)[:5]}")
    if strangers := everywhere - ledger.unknown():
        problems.append(f"xa: recovered transactions that had ended or were never prepared: {sorted(strangers)[:5]}")
    if len(everywhere) != sum(map(len, recovered.values())):
        problems.append(f"xa: several servers have the same prepared transaction: {sorted(map(sorted, recovered.values()))}")
    for holder, prepared in recovered.items():
        _end(holder, prepared, ledger)
    rows = session.execute("SELECT txn, COUNT(*), MAX(part) FROM xa_rows GROUP BY txn")
    problems += missing_and_wrong(ledger, {row[0] for row in rows}, "xa_rows")
    for txn, count, highest in rows:
        parts = ledger.begun.get(txn, [count])[0]
        if (count, highest) != (parts, parts - 1):
            problems.append(f"xa_rows: half a transaction: {txn} has {count} of {parts} rows")
    worker.kept = set()
    return problems[:10]


def _recovered(session: Session) -> set[int]:
    # The server says them as bytes or as text, as it likes.
    return {int(row[3]) for row in session.execute("XA RECOVER") if row[3].isdigit()}


def _end(session: Session, prepared: set[int], ledger: Ledger) -> None:
    session.execute(NOT_LOGGED)
    session.execute("SET autocommit = 1")  # Else a transaction of another connection cannot be ended here.
    for txn in sorted(prepared):
        commit = txn % 2 == 0
        session.execute(f"XA {'COMMIT' if commit else 'ROLLBACK'} '{txn}'")
        if txn in ledger.unknown():
            (ledger.ack if commit else ledger.abort)(txn)
    session.execute("SET autocommit = 0")
    session.execute("SET SESSION sql_log_bin = 1")
