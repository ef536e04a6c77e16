"""Inserts, updates and deletes of rows with large values and unique and other indexes.

Each worker owns its rows and remembers their committed state, so the state after recovery is known exactly: the
committed one, or, when the last COMMIT was not answered, that one or the next.
"""

import random
import zlib
from dataclasses import dataclass

from .session import DUPLICATE_KEY, Refused, Session
from .worker import StateWorker

OPERATIONS_PER_TXN_MAX = 5
ROWS_MAX = 150
PAYLOAD_BYTES = (None, 0, 10, 700, 3_000, 9_000, 20_000, 120_000)

TABLES = {"items": ["name_key", "k_key", "worker_key", "label_key"]}


@dataclass(frozen=True)
class Item:
    k: int
    name: str
    label: str | None
    version: int
    payload_bytes: int | None

    def payload(self, item_id: int) -> bytes | None:
        """Recomputed from the row's identity, so it need not be remembered."""
        if self.payload_bytes is None:
            return None
        return random.Random(item_id * 1_000_003 + self.version).randbytes(self.payload_bytes)

    def fingerprint(self, item_id: int) -> int | None:
        payload = self.payload(item_id)
        return None if payload is None else zlib.crc32(payload)


State = dict[int, Item]


def create(session: Session, engine: str) -> None:
    session.execute(
        "CREATE TABLE items (id BIGINT PRIMARY KEY, worker INT NOT NULL, k INT NOT NULL, name VARCHAR(60) NOT NULL,"
        " label VARCHAR(100), version INT NOT NULL, payload LONGBLOB, UNIQUE KEY name_key (name), KEY k_key (k),"
        f" KEY worker_key (worker, k), KEY label_key (label(10))) ENGINE={engine} CHARACTER SET utf8mb4"
    )
    session.commit()


class ItemsWorker(StateWorker[Item]):
    rollback_chance = 0.1

    def change(self, session: Session, work: State) -> None:
        for _ in range(self.rng.randint(1, OPERATIONS_PER_TXN_MAX)):
            self._operation(session, work)

    def _operation(self, session: Session, work: State) -> None:
        chance = self.rng.random()
        if not work or (chance < 0.45 and len(work) < ROWS_MAX):
            self._insert(session, work)
        elif chance < 0.75:
            self._update(session, work)
        elif chance < 0.95:
            item_id = self.rng.choice(list(work))
            session.execute("DELETE FROM items WHERE id = %s", (item_id,))
            del work[item_id]
        else:
            self._duplicate(session, work)

    def _some_item(self, item_id: int, version: int, name: str) -> Item:
        label = self.rng.choice([None, "", "label " * self.rng.randint(1, 16)])
        label = label.rstrip() if label else label
        return Item(self.rng.randint(-1000, 1000), name, label, version, self.rng.choice(PAYLOAD_BYTES))

    def _insert(self, session: Session, work: State) -> None:
        item_id, self.next_id = self.next_id, self.next_id + 1
        item = self._some_item(item_id, 1, f"n{self.number}-{item_id}")
        values = (item_id, self.number, item.k, item.name, item.label, item.version, item.payload(item_id))
        session.execute("INSERT INTO items VALUES (%s, %s, %s, %s, %s, %s, %s)", values)
        work[item_id] = item

    def _update(self, session: Session, work: State) -> None:
        item_id = self.rng.choice(list(work))
        old = work[item_id]
        name = f"u{self.number}-{item_id}-{old.version}" if self.rng.random() < 0.3 else old.name
        item = self._some_item(item_id, old.version + 1, name)
        session.execute(
            "UPDATE items SET k = %s, name = %s, label = %s, version = %s, payload = %s WHERE id = %s",
            (item.k, item.name, item.label, item.version, item.payload(item_id), item_id),
        )
        work[item_id] = item

    def _duplicate(self, session: Session, work: State) -> None:
        """A statement that must fail and leave its transaction as it was."""
        item_id, self.next_id = self.next_id, self.next_id + 1
        taken = self.rng.choice(list(work.values())).name
        try:
            session.execute("INSERT INTO items VALUES (%s, %s, 0, %s, NULL, 1, NULL)", (item_id, self.number, taken))
        except Refused as error:
            if error.code != DUPLICATE_KEY:
                raise
        else:
            raise AssertionError(f"a second row with the unique name {taken} was accepted")


def verify(session: Session, workers: list[ItemsWorker]) -> list[str]:
    """Also settles each worker's state to what is there, so that another round can follow."""
    problems: list[str] = []
    rows = session.execute("SELECT id, worker, k, name, label, version, LENGTH(payload), CRC32(payload) FROM items")
    found: dict[int, State] = {}
    for item_id, worker, k, name, label, version, length, crc in rows:
        item = Item(k, name, label, version, length)
        found.setdefault(worker, {})[item_id] = item
        if crc != item.fingerprint(item_id):
            problems.append(f"items: the payload of row {item_id} (version {version}, {length} bytes) is damaged")
    for worker in workers:
        actual = found.pop(worker.number, {})
        if actual != worker.committed and actual != worker.candidate:
            problems.append(_difference(worker, actual))
        worker.committed, worker.candidate = actual, None
    if found:
        problems.append(f"items: rows of unknown workers {sorted(found)}")
    return problems[:10]


def _difference(worker: ItemsWorker, actual: State) -> str:
    wanted = worker.committed
    lost = sorted(wanted.keys() - actual.keys())
    risen = sorted(actual.keys() - wanted.keys())
    changed = [(n, wanted[n], actual[n]) for n in sorted(wanted.keys() & actual.keys()) if wanted[n] != actual[n]]
    unknown = "an unanswered COMMIT besides" if worker.candidate is not None else "no transaction in doubt"
    return (
        f"items of worker {worker.number} are neither the committed state nor the next ({unknown}): lost {lost[:5]},"
        f" too many {risen[:5]}, different {changed[:3]}"
    )
