"""Histories of transactions that ran one after the other, and what can be done to such a history so that it is wrong.

The oracle of the checker: a serial history is right at every level; after a mutation it must be found wrong.
"""

import random
from collections.abc import Callable
from copy import deepcopy

from .history import Append, End, History, Level, Mode, Read, Savepoint, Transaction

State = dict[int, list[int]]


class Generator:
    def __init__(self, seed: int, transactions: int = 60, keys: int = 5) -> None:
        self._rng = random.Random(f"serial {seed}")
        self._count = transactions
        self._keys = keys
        self._clock = 0.0
        self._value = 0
        self._state: State = {}

    def history(self) -> History:
        history = History()
        for _ in range(self._count):
            history.transactions.append(self._transaction())
        history.final = self._state
        return history

    def _now(self) -> float:
        self._clock += 1
        return self._clock

    def _transaction(self) -> Transaction:
        rng = self._rng
        transaction = Transaction(rng.randrange(4), rng.choice(list(Level)), self._now())
        state = deepcopy(self._state)
        savepoints: list[State] = []
        for _ in range(rng.randint(1, 6)):
            choice = rng.random()
            if choice < 0.1:
                savepoints.append(deepcopy(state))
                transaction.operations.append(Savepoint(len(savepoints)))
            elif choice < 0.2 and savepoints:
                number = rng.randint(1, len(savepoints))
                del savepoints[number:]
                state = deepcopy(savepoints[-1])
                transaction.operations.append(Savepoint(number, undo=True))
            elif choice < 0.6:
                transaction.operations.append(self._append(state))
            else:
                transaction.operations.append(self._read(state))
        transaction.end = rng.choice((End.committed, End.committed, End.committed, End.unknown, End.aborted))
        transaction.ended = self._now()
        if transaction.end == End.committed or (transaction.end == End.unknown and rng.random() < 0.5):
            self._state = state
        return transaction

    def _some_keys(self) -> list[int]:
        return sorted(self._rng.sample(range(self._keys), self._rng.randint(1, 3)))

    def _append(self, state: State) -> Append:
        self._value += 1
        keys = self._some_keys()
        if len(keys) == 1:
            hit = keys
            state.setdefault(keys[0], [])
        else:
            hit = [key for key in keys if key in state]
        for key in hit:
            state[key].append(self._value)
        return Append(keys, self._value, self._now(), len(hit))

    def _read(self, state: State) -> Read:
        keys = self._some_keys()
        read = Read(keys, self._rng.choice(list(Mode)), self._now())
        shown = {key: list(state[key]) for key in keys if key in state}
        if self._rng.random() < 0.3:
            read.lengths = {key: len(values) for key, values in shown.items()}
        else:
            read.lists = shown
        return read


# --- mutations: each makes the history wrong in place, or says that it found nothing to do ---

Mutation = Callable[[History, random.Random], bool]


def _reads(history: History) -> list[tuple[Transaction, Read, int]]:
    """Reads of lists that the checker must judge, one entry per key shown."""
    return [
        (transaction, operation, key)
        for transaction in history.transactions
        if transaction.level != Level.RU
        for operation in transaction.operations
        if isinstance(operation, Read) and operation.lists
        for key in operation.lists
    ]


def _own(transaction: Transaction) -> set[int]:
    return {operation.value for operation in transaction.operations if isinstance(operation, Append)}


def _sure(transaction: Transaction) -> set[int]:
    """Own values that a client knows to be where it put them."""
    appends = [operation for operation in transaction.operations if isinstance(operation, Append)]
    return {append.value for append in appends if append.hit == len(append.keys)}


def lose_an_append(history: History, rng: random.Random) -> bool:
    definite = {
        operation.value
        for transaction in history.transactions
        if transaction.end == End.committed
        for operation in transaction.operations
        if isinstance(operation, Append)
    }
    candidates = [(key, value) for key, values in history.final.items() for value in values if value in definite]
    if not candidates:
        return False
    key, value = rng.choice(candidates)
    history.final[key].remove(value)
    return True


def double_an_append(history: History, rng: random.Random) -> bool:
    if not history.final:
        return False
    key = rng.choice(sorted(history.final))
    history.final[key].append(rng.choice(history.final[key]))
    return True


def keep_an_aborted_append(history: History, rng: random.Random) -> bool:
    aborted = [
        (key, operation.value)
        for transaction in history.transactions
        if transaction.end == End.aborted
        for operation in transaction.operations
        if isinstance(operation, Append)
        for key in operation.keys
    ]
    if not aborted:
        return False
    key, value = rng.choice(aborted)
    history.final.setdefault(key, []).append(value)
    return True


def show_an_aborted_append(history: History, rng: random.Random) -> bool:
    aborted = [
        (key, operation.value)
        for transaction in history.transactions
        if transaction.end == End.aborted
        for operation in transaction.operations
        if isinstance(operation, Append)
        for key in operation.keys
    ]
    reads = [(t, r, k, v) for t, r, k in _reads(history) for key, v in aborted if key == k and v not in _own(t)]
    if not reads:
        return False
    _, read, key, value = rng.choice(reads)
    assert read.lists is not None
    read.lists[key].insert(0, value)
    return True


def swap_two(history: History, rng: random.Random) -> bool:
    reads = [(t, r, k) for t, r, k in _reads(history) if r.lists is not None and len(r.lists[k]) > 1]
    if not reads:
        return False
    _, read, key = rng.choice(reads)
    assert read.lists is not None
    values = read.lists[key]
    place = rng.randrange(len(values) - 1)
    values[place], values[place + 1] = values[place + 1], values[place]
    return True


def hide_the_last(history: History, rng: random.Random) -> bool:
    """Stale, or blind for its own append."""
    known = {v for t in history.transactions if t.end == End.committed for v in _own(t)}
    reads = [(t, r, k) for t, r, k in _reads(history) if r.lists and r.lists[k][-1] in known | _sure(t)]
    if not reads:
        return False
    _, read, key = rng.choice(reads)
    assert read.lists is not None
    read.lists[key].pop()
    return True


def invent_a_value(history: History, rng: random.Random) -> bool:
    reads = _reads(history)
    if not reads:
        return False
    _, read, key = rng.choice(reads)
    assert read.lists is not None
    read.lists[key].insert(rng.randint(0, len(read.lists[key])), 1_000_000)
    return True


def count_one_too_few(history: History, rng: random.Random) -> bool:
    known = {v for t in history.transactions if t.end == End.committed for v in _own(t)}
    reads = [
        (operation, key)
        for transaction in history.transactions
        if transaction.level != Level.RU
        and transaction.end == End.committed
        and not any(isinstance(operation, Append) for operation in transaction.operations)
        for operation in transaction.operations
        if isinstance(operation, Read) and operation.lengths
        for key, length in operation.lengths.items()
        if length > 1 and length <= len(history.final[key]) and history.final[key][length - 1] in known
    ]
    if not reads:
        return False
    read, key = rng.choice(reads)
    assert read.lengths is not None
    read.lengths[key] -= 1
    return True


MUTATIONS: tuple[Mutation, ...] = (
    lose_an_append,
    double_an_append,
    keep_an_aborted_append,
    show_an_aborted_append,
    swap_two,
    hide_the_last,
    invent_a_value,
    count_one_too_few,
)
