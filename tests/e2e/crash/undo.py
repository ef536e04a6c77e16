"""Transactions that are taken back in every way there is: ROLLBACK, ROLLBACK TO SAVEPOINT, a statement that meets a duplicate in
its last row, a client that leaves in the middle. Whatever is committed in the end is exactly what was not taken back."""

import random
from collections.abc import Callable

from .clients import ONLY_ROLLBACK
from .ledger import Ledger, missing_and_wrong
from .session import DUPLICATE_KEY, Connector, Excused, Refused, ServerGone, Session
from .worker import TXNS_PER_WORKER, Worker

TABLES = {"undo_rows": ["token_key", "filler_key"], "undo_counters": ["n_key"]}
COUNTERS = 12
ROWS_MAX = 40
ROWS_MANY = 1_500  # More than a page or two to take back.
STATEMENTS_MAX = 4
TAKEN = "taken"


def create(session: Session, engine: str) -> None:
    session.execute(
        "CREATE TABLE undo_rows (txn BIGINT NOT NULL, stmt INT NOT NULL, n INT NOT NULL, token VARCHAR(60) NOT NULL,"
        " filler VARCHAR(200) NOT NULL, PRIMARY KEY (txn, stmt, n), UNIQUE KEY token_key (token), KEY filler_key (filler))"
        f" ENGINE={engine}"
    )
    session.execute(f"CREATE TABLE undo_counters (id INT PRIMARY KEY, n BIGINT NOT NULL, KEY n_key (n)) ENGINE={engine}")
    session.execute(f"INSERT INTO undo_rows VALUES (0, 1, 1, '{TAKEN}', 'kept')")
    session.execute("INSERT INTO undo_counters VALUES " + ", ".join(f"({n}, 0)" for n in range(COUNTERS)))
    session.commit()


class Left(ServerGone):
    """The client has left."""


class NotTakenBack(Excused):
    """What a savepoint was to take back is still there: the transaction must not be committed."""


class UndoWorker(Worker):
    """`begun` of its ledger says which statements a transaction must consist of, with their numbers of rows."""

    def __init__(self, server: Connector, database: str, number: int, rng: random.Random, ledger: Ledger) -> None:
        super().__init__(server, database, number, rng)
        self.stays = True
        self._ledger = ledger
        self._next = 1 + max((t for t in ledger.begun if t // TXNS_PER_WORKER == number), default=number * TXNS_PER_WORKER)
        self._txn = 0
        self._kept: list[list[int]] = []

    def step(self, session: Session) -> None:
        self._txn, self._next = self._next, self._next + 1
        self._kept = []
        self._ledger.begin(self._txn, [])
        try:
            self._count(session)
            for statement in range(1, 1 + self.rng.randint(1, STATEMENTS_MAX)):
                self._statement(session, statement)
            chance = self.rng.random()
            if chance < 0.25:
                self._leave(session)
        except ServerGone:
            self._ledger.abort(self._txn)
            raise
        if chance < 0.45:
            self._ledger.abort(self._txn)
            session.rollback()
            return
        self._ledger.begin(self._txn, self._kept)
        try:
            session.commit()
        except Refused:
            self._ledger.abort(self._txn)
            raise
        self._ledger.ack(self._txn)

    def abandon(self, session: Session) -> None:
        self._ledger.abort(self._txn)
        super().abandon(session)

    def _leave(self, session: Session) -> None:
        session.close()
        raise Left("left in the middle of a transaction")

    def _count(self, session: Session) -> None:
        """Its row is locked until the transaction has ended; others wait for it."""
        counter = self.rng.randrange(COUNTERS)
        session.execute("UPDATE undo_counters SET n = n + 1 WHERE id = %s", (counter,))
        session.execute(f"INSERT INTO undo_rows VALUES ({self._txn}, 0, {counter}, '{self._txn}-0', 'kept')")
        self._kept.append([0, 1])

    def _statement(self, session: Session, statement: int) -> None:
        kinds: list[Callable[[Session, int, int], bool]] = [self._insert, self._insert, self._duplicate, self._savepoint]
        rows = ROWS_MANY if self.rng.random() < 0.03 else self.rng.randint(1, ROWS_MAX)
        try:
            if self.rng.choice(kinds)(session, statement, rows):
                self._kept.append([statement, rows])
        except Excused as error:
            chance = self.rng.random()
            if chance < 0.4 or error.code == ONLY_ROLLBACK or isinstance(error, NotTakenBack):
                raise  # It is rolled back, or was.
            if chance < 0.6:
                self._leave(session)
            # Or it goes on: the statement has failed, and what came before it has not.

    def _insert_sql(self, statement: int, rows: int, token: str = "") -> str:
        own = f"CONCAT('{self._txn}-{statement}-', seq)"
        last = f"IF(seq = {rows}, '{token}', {own})" if token else own
        filler = "RPAD('kept', 4 + seq % 150, 'x')"
        return f"INSERT INTO undo_rows SELECT {self._txn}, {statement}, seq, {last}, {filler} FROM seq_1_to_{rows}"

    def _insert(self, session: Session, statement: int, rows: int) -> bool:
        session.execute(self._insert_sql(statement, rows))
        return True

    def _duplicate(self, session: Session, statement: int, rows: int) -> bool:
        try:
            session.execute(self._insert_sql(statement, rows, TAKEN))
        except Refused as error:
            if error.code != DUPLICATE_KEY:
                raise
            return False
        raise AssertionError(f"a second row with the unique token {TAKEN} was accepted")

    def _savepoint(self, session: Session, statement: int, rows: int) -> bool:
        session.execute("SAVEPOINT s")
        session.execute(self._insert_sql(statement, rows))
        try:
            session.execute("UPDATE undo_rows SET filler = CONCAT('undone', filler) WHERE txn = %s", (self._txn,))
            if self.rng.random() < 0.5:
                session.execute("DELETE FROM undo_rows WHERE txn = %s AND n > 1", (self._txn,))
            session.execute("ROLLBACK TO SAVEPOINT s")
        except Excused as error:
            raise NotTakenBack(error.code, str(error), "") from error
        return False


def verify(session: Session, ledger: Ledger) -> list[str]:
    problems: list[str] = []
    found: dict[int, list[list[int]]] = {}
    sums = "COUNT(*), SUM(filler LIKE 'kept%%')"
    query = f"SELECT txn, stmt, {sums} FROM undo_rows WHERE txn > 0 GROUP BY txn, stmt ORDER BY txn, stmt"
    for txn, statement, rows, right in session.execute(query, ()):
        found.setdefault(txn, []).append([statement, rows])
        if right != rows:
            problems.append(f"undo_rows: what a savepoint took back is there: transaction {txn}, statement {statement}")
    problems += missing_and_wrong(ledger, set(found), "undo_rows")
    for txn, statements in found.items():
        if statements != ledger.begun.get(txn, statements):
            problems.append(f"undo_rows: transaction {txn} is {statements}, not {ledger.begun[txn]} (statement, rows)")
    counted: dict[int, int] = dict(session.execute("SELECT n, COUNT(*) FROM undo_rows WHERE stmt = 0 GROUP BY n"))
    counters: dict[int, int] = dict(session.execute("SELECT id, n FROM undo_counters"))
    if wrong := [(n, counters.get(n), counted.get(n, 0)) for n in range(COUNTERS) if counters.get(n) != counted.get(n, 0)]:
        problems.append(f"undo_counters: half a transaction (counter, is, should be): {wrong[:4]}")
    return problems[:10]
