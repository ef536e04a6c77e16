"""Transactions of thousands of rows: a crash in the middle leaves splits, unlinked pages and much to roll back, which goes on
while the checks and the next round's work run."""

from dataclasses import dataclass

from .session import Session
from .worker import StateWorker

TABLES = {"bulk": ["version_key", "text_key"]}
BATCHES_MAX = 4
ROWS_MAX = 6_000
STATEMENTS_MAX = 3


@dataclass(frozen=True)
class Batch:
    rows: int  # n = 1..rows
    version: int


State = dict[int, Batch]


def create(session: Session, engine: str) -> None:
    session.execute(
        "CREATE TABLE bulk (batch BIGINT NOT NULL, n INT NOT NULL, version INT NOT NULL, text VARCHAR(400) NOT NULL,"
        f" PRIMARY KEY (batch, n), KEY version_key (version, n), KEY text_key (text)) ENGINE={engine}"
    )
    session.commit()


class BulkWorker(StateWorker[Batch]):
    rollback_chance = 0.25
    rows_max = ROWS_MAX

    def change(self, session: Session, work: State) -> None:
        for _ in range(self.rng.randint(1, STATEMENTS_MAX)):
            self._statement(session, work)

    def _statement(self, session: Session, work: State) -> None:
        chance = self.rng.random()
        if not work or (chance < 0.4 and len(work) < BATCHES_MAX):
            batch, self.next_id = self.next_id, self.next_id + 1
            rows = self.rng.randint(100, self.rows_max)
            text = "REPEAT(MD5(seq), 1 + seq % 6)"
            session.execute(f"INSERT INTO bulk SELECT {batch}, seq, 1, {text} FROM seq_1_to_{rows}")
            work[batch] = Batch(rows, 1)
            return
        batch = self.rng.choice(sorted(work))
        old = work[batch]
        if chance < 0.7:
            session.execute("UPDATE bulk SET version = version + 1, text = CONCAT(text, 'x') WHERE batch = %s", (batch,))
            work[batch] = Batch(old.rows, old.version + 1)
        else:
            session.execute("DELETE FROM bulk WHERE batch = %s", (batch,))
            del work[batch]


def verify(session: Session, worker: BulkWorker) -> list[str]:
    """Also settles the worker's state to what is there."""
    problems: list[str] = []
    actual: State = {}
    sums = "COUNT(*), MAX(n), MIN(version), MAX(version), SUM(LENGTH(text) = 32 * (1 + n % 6) + version - 1)"
    for batch, rows, highest, oldest, newest, right in session.execute(f"SELECT batch, {sums} FROM bulk GROUP BY batch"):
        actual[batch] = Batch(rows, newest)
        if (highest, oldest, right) != (rows, newest, rows):
            problems.append(
                f"bulk: half a statement: batch {batch}: {rows} rows to {highest}, versions {oldest} to {newest}, {right} right"
            )
    if actual != worker.committed and actual != worker.candidate:
        unknown = "an unanswered COMMIT besides" if worker.candidate is not None else "no transaction in doubt"
        problems.append(f"bulk: is {actual}, was committed {worker.committed} ({unknown})")
    worker.committed, worker.candidate = actual, None
    return problems[:10]
