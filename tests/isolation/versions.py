"""From a history to versions: which transaction wrote which part of each list, and which version every read has seen.

What is wrong already at this stage is said here: values nobody wrote, lost or doubled ones, values of transactions that were
rolled back, lists in another order than the final one, reads that miss a transaction's own appends or what was committed
before they began.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import inf

from .history import Append, End, History, Level, Mode, Operation, Read, Savepoint, Transaction

Value = tuple[int, int]  # key, value


@dataclass(frozen=True)
class Problem:
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Seen:
    """One key of one read: its first `length` values are by others, in the final order."""

    transaction: int
    read: Read
    key: int
    length: int
    own: bool  # the transaction had appended to the key itself
    undone: bool  # ROLLBACK TO SAVEPOINT came back to before this read


@dataclass
class Versions:
    """Transactions are numbers: places in the history."""

    history: History
    committed: list[bool] = field(default_factory=list)
    order: dict[int, list[int]] = field(default_factory=dict)  # per key the values
    writer: dict[Value, int] = field(default_factory=dict)
    append: dict[Value, Append] = field(default_factory=dict)
    undone: set[int] = field(default_factory=set)  # id() of operations a ROLLBACK TO SAVEPOINT took back
    seen: list[Seen] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def writer_at(self, key: int, place: int) -> int:
        return self.writer[key, self.order[key][place]]

    def note(self, kind: str, text: str) -> None:
        self.problems.append(Problem(kind, text))


def describe(history: History, number: int) -> str:
    transaction = history.transactions[number]
    return f"T{number} (client {transaction.client}, {transaction.level}, {transaction.end})"


def infer(history: History) -> Versions:
    versions = Versions(history, order=history.final)
    _find_undone(versions)
    _find_writers(versions)
    _check_final(versions)
    _check_appends(versions)
    if any(problem.kind in ("duplicate value", "unknown value") for problem in versions.problems):
        return versions  # there is no order to go by
    acknowledged = _acknowledged(versions)
    _check_real_time(versions, acknowledged)
    for number, transaction in enumerate(history.transactions):
        _Reader(versions, number, transaction, acknowledged).run()
    return versions


def _find_undone(versions: Versions) -> None:
    for transaction in versions.history.transactions:
        places: dict[int, int] = {}
        live: list[Operation] = []
        for operation in transaction.operations:
            if not isinstance(operation, Savepoint):
                live.append(operation)
            elif operation.undo:
                versions.undone |= {id(op) for op in live[places[operation.number] :]}
                del live[places[operation.number] :]
            else:
                places[operation.number] = len(live)


def _find_writers(versions: Versions) -> None:
    history = versions.history
    for number, transaction in enumerate(history.transactions):
        for operation in transaction.operations:
            if isinstance(operation, Append):
                for key in operation.keys:
                    if (key, operation.value) in versions.writer:
                        versions.note("bad history", f"value {operation.value} is appended twice to key {key}")
                    versions.writer[key, operation.value] = number
                    versions.append[key, operation.value] = operation
    for transaction in history.transactions:
        outcome = transaction.end == End.committed
        if transaction.end == End.unknown:  # it has happened if any of it is there
            outcome = any(
                operation.value in history.final.get(key, ())
                for operation in transaction.operations
                if isinstance(operation, Append) and id(operation) not in versions.undone
                for key in operation.keys
            )
        versions.committed.append(outcome)


def _check_final(versions: Versions) -> None:
    for key, values in versions.order.items():
        for value, count in Counter(values).items():
            if count > 1:
                versions.note("duplicate value", f"key {key} holds {value} {count} times")
            number = versions.writer.get((key, value))
            if number is None:
                versions.note("unknown value", f"key {key} holds {value}, which nobody appended")
            elif not versions.committed[number]:
                versions.note("G1a aborted write", f"key {key} holds {value} of {describe(versions.history, number)}")
            elif id(versions.append[key, value]) in versions.undone:
                versions.note("G1a undone write", f"key {key} holds {value}: T{number} rolled back to before it")


def _check_appends(versions: Versions) -> None:
    """Every committed append is there, all of it, and what one transaction appended to a key stands together, in order."""
    for number, transaction in enumerate(versions.history.transactions):
        if not versions.committed[number]:
            continue
        own: dict[int, list[int]] = defaultdict(list)
        for operation in transaction.operations:
            if not isinstance(operation, Append) or id(operation) in versions.undone:
                continue
            there = [key for key in operation.keys if operation.value in versions.order.get(key, ())]
            if operation.hit >= 0 and len(there) != operation.hit:
                text = f"T{number} appended {operation.value} to {operation.hit} of the keys {operation.keys}; it is in {there}"
                versions.note("lost append", text)
            for key in there:
                own[key].append(operation.value)
        for key, values in own.items():
            order = versions.order[key]
            first = order.index(values[0])
            if order[first : first + len(values)] != values:
                versions.note("G0 dirty write", f"key {key}: {values} of T{number} do not stand together in {order}")


def _acknowledged(versions: Versions) -> dict[int, list[float]]:
    """For every key and place: when the earliest of the appends from there on was known to be committed."""
    earliest: dict[int, list[float]] = {}
    for key, values in versions.order.items():
        times = [inf] * (len(values) + 1)
        for place in range(len(values) - 1, -1, -1):
            transaction = versions.history.transactions[versions.writer_at(key, place)]
            known = transaction.ended if transaction.end == End.committed else inf
            times[place] = min(times[place + 1], known)
        earliest[key] = times
    return earliest


def _check_real_time(versions: Versions, acknowledged: dict[int, list[float]]) -> None:
    for key, values in versions.order.items():
        for place, value in enumerate(values):
            if acknowledged[key][place + 1] < versions.append[key, value].sent:
                text = f"key {key}: {value} stands before a value whose commit was acknowledged before it was sent: {values}"
                versions.note("order against real time", text)


class _Reader:
    """Goes through one transaction and places what it has read."""

    def __init__(self, versions: Versions, number: int, transaction: Transaction, acknowledged: dict[int, list[float]]) -> None:
        self._versions = versions
        self._number = number
        self._transaction = transaction
        self._acknowledged = acknowledged
        self._live: list[Append] = []  # own appends so far
        self._places: dict[int, int] = {}
        self._tried: dict[int, set[int]] = defaultdict(set)  # key: own values, undone ones included
        self._snapshot_at = transaction.snapshot_at

    def run(self) -> None:
        for operation in self._transaction.operations:
            if isinstance(operation, Append):
                self._live.append(operation)
                for key in operation.keys:
                    self._tried[key].add(operation.value)
            elif isinstance(operation, Read):
                self._read(operation)
            elif operation.undo:
                del self._live[self._places[operation.number] :]
            else:
                self._places[operation.number] = len(self._live)

    def _read(self, read: Read) -> None:
        if read.mode == Mode.plain and self._snapshot_at is None:
            self._snapshot_at = read.sent
        shown = read.lists if read.lists is not None else read.lengths
        assert shown is not None
        if strange := shown.keys() - set(read.keys):
            self._versions.note("wrong rows", f"T{self._number} asked for keys {read.keys} and got {sorted(strange)}")
        for key in read.keys:
            if key not in shown and self._may_be_missed(read):
                continue
            length = self._foreign_list(read, key) if read.lists is not None else self._foreign_length(read, key)
            if length is not None:
                self._place(read, key, length)

    def _may_be_missed(self, read: Read) -> bool:
        """A locking scan sees what is committed when it gets there; without locks on gaps an entry may pass it by (MATRIX.md)."""
        return read.moves and read.mode != Mode.plain and self._transaction.level != Level.SER

    def _own(self, key: int) -> tuple[list[int], set[int]]:
        """The values this transaction must see of itself, and those it may see: a statement on several keys hits some of them."""
        must: list[int] = []
        may: set[int] = set()
        for append in self._live:
            if key not in append.keys:
                continue
            if self._is_final(append):
                must += [append.value] if append.value in self._versions.order.get(key, ()) else []
            elif append.hit == len(append.keys):
                must.append(append.value)
            elif append.hit != 0:
                may.add(append.value)
        return must, may

    def _is_final(self, append: Append) -> bool:
        """What is left in the end tells which keys a statement has hit."""
        return self._versions.committed[self._number] and id(append) not in self._versions.undone

    def _foreign_list(self, read: Read, key: int) -> int | None:
        assert read.lists is not None
        values = read.lists.get(key, [])
        must, may = self._own(key)
        foreign = len(values)
        while foreign > 0 and values[foreign - 1] in self._tried[key]:
            foreign -= 1
        own = values[foreign:]
        if [value for value in own if value not in may] != must:
            self._note("internal", read, key, values, f"its own appends are {must}")
            return None
        if read.mode == Mode.plain and self._transaction.level == Level.RU:
            unknown = [value for value in values if (key, value) not in self._versions.writer]
            if unknown:
                self._note("unknown value", read, key, values, f"nobody appended {unknown}")
            return None
        order = self._versions.order.get(key, [])
        if values[:foreign] != order[:foreign]:
            self._note_wrong_prefix(read, key, values[:foreign], order)
            return None
        return foreign

    def _note_wrong_prefix(self, read: Read, key: int, values: list[int], order: list[int]) -> None:
        versions = self._versions
        for value in values:
            number = versions.writer.get((key, value))
            if number is None:
                return self._note("unknown value", read, key, values, f"nobody appended {value}")
            if not versions.committed[number]:
                return self._note("G1a aborted read", read, key, values, f"{value} is of {describe(versions.history, number)}")
            if id(versions.append[key, value]) in versions.undone:
                return self._note("G1a undone read", read, key, values, f"T{number} rolled back to before {value}")
        if len(set(values)) < len(values):
            return self._note("duplicate value", read, key, values, "")
        return self._note("incompatible order", read, key, values, f"the final order is {order}")

    def _foreign_length(self, read: Read, key: int) -> int | None:
        assert read.lengths is not None
        if read.mode == Mode.plain and self._transaction.level == Level.RU:
            return None
        must, may = self._own(key)
        if may:
            return None
        length = read.lengths.get(key, 0) - len(must)
        order = self._versions.order.get(key, [])
        if length < 0 or length > len(order):
            self._note("internal", read, key, [length + len(must)], f"{len(must)} own appends, {len(order)} in the end")
            return None
        return length

    def _place(self, read: Read, key: int, length: int) -> None:
        versions = self._versions
        order = versions.order.get(key, [])
        if 0 < length < len(order):
            writer = versions.writer_at(key, length - 1)
            if writer == versions.writer_at(key, length) and writer != self._number:
                self._note("G1b intermediate read", read, key, order[:length], f"T{writer} goes on with {order[length]}")
        must, may = self._own(key)
        if key in versions.order:
            self._check_fresh(read, key, length)
        undone = id(read) in versions.undone
        versions.seen.append(Seen(self._number, read, key, length, bool(must or may), undone))

    def _check_fresh(self, read: Read, key: int, length: int) -> None:
        since = read.sent
        if read.mode == Mode.plain and self._transaction.level == Level.RR:
            assert self._snapshot_at is not None
            since = self._snapshot_at
        if self._acknowledged[key][length] < since:
            order = self._versions.order[key]
            self._note("stale read", read, key, order[:length], f"one of {order[length:]} was acknowledged before")

    def _note(self, kind: str, read: Read, key: int, values: list[int], why: str) -> None:
        who = describe(self._versions.history, self._number)
        self._versions.note(kind, f"{who}, {read.mode} read ({read.how}) of key {key} shows {values}; {why}")
