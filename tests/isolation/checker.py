"""Checks a history against what its transactions' isolation levels promise.

All promises are one: a certain graph has no cycle, also when real time is added to it. Its nodes are the committed
transactions, and the snapshots that plain reads were made of; its edges are what the engine orders in time (README.md, IS5). A
cycle is reported under Adya's name. Cycles of the whole dependency graph that no level forbids are counted: a history without any
has not tried hard enough.
"""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from .cycles import Edge, Graph, name_of
from .history import Append, End, History, Level, Mode, Read, Transaction
from .versions import Problem, Seen, Versions, describe, infer

CYCLES_SHOWN_MOST = 5
ANTI_EDGES_COUNTED_MOST = 400
ABSENT = " (absent row)"  # a locking read did not find it, and nothing but SERIALIZABLE keeps it absent


@dataclass
class Report:
    problems: list[Problem] = field(default_factory=list)
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    reads: int = 0  # versions placed
    appends: int = 0
    edges: int = 0
    permitted: Counter[str] = field(default_factory=Counter)  # cycles nobody has promised to prevent, a sample

    @property
    def ok(self) -> bool:
        return not self.problems


def check(history: History, count_permitted: bool = True) -> Report:
    versions = infer(history)
    report = Report([Problem("client", text) for text in history.problems] + versions.problems)
    report.committed = sum(versions.committed)
    report.unknown = sum(transaction.end == End.unknown for transaction in history.transactions)
    report.aborted = len(history.transactions) - report.committed
    report.reads = len(versions.seen)
    report.appends = sum(len(values) for values in history.final.values())
    builder = _Builder(versions)
    try:
        promised = Graph(builder.promised())
    except KeyError:  # values without a writer: said above
        return report
    report.edges = sum(len(targets) for targets in promised.out.values())
    for component in promised.components()[:CYCLES_SHOWN_MOST]:
        cycle = promised.shortest_cycle(component)
        report.problems.append(Problem(name_of(cycle), builder.explain(cycle)))
    if report.ok:
        timed = Graph(itertools.chain(builder.promised(), builder.real_time()))
        for component in timed.components()[:CYCLES_SHOWN_MOST]:
            cycle = timed.timed_cycle(component)
            report.problems.append(Problem(name_of(cycle), builder.explain(cycle)))
    if count_permitted and report.ok:
        report.permitted = _count(Graph(builder.dependencies()))
    return report


def _count(graph: Graph) -> Counter[str]:
    """Per anti-dependency in a cycle, the plainest cycle through it."""
    counts: Counter[str] = Counter()
    left = ANTI_EDGES_COUNTED_MOST
    for component in graph.components():
        for node in sorted(component):
            for target, edge in graph.out[node].items():
                if edge.kind != "rw" or target not in component or left == 0:
                    continue
                left -= 1
                back = graph.shortest_path(target, node, component, ("ww", "wr"))
                back = back or graph.shortest_path(target, node, component, ("ww", "wr", "rw"))
                if back is not None:
                    name = name_of([edge, *back])
                    counts[name if name.startswith("G2") or not edge.absent else name + ABSENT] += 1
    return counts


class _Builder:
    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._history = versions.history
        self._snapshots: dict[tuple[int, int], int] = {}  # (transaction, 0 or id of the read): node
        self._owners: list[int] = []  # of snapshot nodes, in order

    # --- edges ---

    def dependencies(self) -> Iterator[Edge]:
        """Everything between committed transactions."""
        yield from self._write_edges()
        for seen in self._versions.seen:
            if self._versions.committed[seen.transaction]:
                yield from self._before(seen, seen.transaction)
                yield from self._after(seen, seen.transaction)

    def promised(self) -> Iterator[Edge]:
        yield from self._write_edges()
        for seen in self._versions.seen:
            if not self._versions.committed[seen.transaction]:
                # What rolled back has promises, too: its snapshot was one.
                if (snapshot := self._snapshot_of(seen)) is not None:
                    yield from self._before(seen, snapshot)
                    yield from self._after(seen, snapshot)
                continue
            yield from self._before(seen, seen.transaction)
            if self._is_protected(seen):
                yield from self._after(seen, seen.transaction)
            if (snapshot := self._snapshot_of(seen)) is not None:
                yield from self._before(seen, snapshot)
                yield from self._after(seen, snapshot)
                yield Edge(snapshot, seen.transaction, "order")
        if self._history.snapshot_isolation:
            yield from self._overwritten()

    def _write_edges(self) -> Iterator[Edge]:
        for key, values in self._versions.order.items():
            for place in range(1, len(values)):
                before, after = self._versions.writer_at(key, place - 1), self._versions.writer_at(key, place)
                yield Edge(before, after, "ww", key, values[place])

    def _before(self, seen: Seen, node: int) -> Iterator[Edge]:
        """The writer of the version was there before its reader."""
        if seen.length > 0:
            place = seen.length - 1
            writer = self._versions.writer_at(seen.key, place)
            if writer != seen.transaction:
                yield Edge(writer, node, "wr", seen.key, self._versions.order[seen.key][place])

    def _after(self, seen: Seen, node: int) -> Iterator[Edge]:
        """Who wrote the next version came after the reader."""
        order = self._versions.order.get(seen.key, [])
        if seen.length < len(order):
            writer = self._versions.writer_at(seen.key, seen.length)
            if writer != seen.transaction:
                yield Edge(node, writer, "rw", seen.key, order[seen.length], absent=seen.length == 0)

    def _is_protected(self, seen: Seen) -> bool:
        """Nobody could change what was read before the reader ended."""
        transaction = self._history.transactions[seen.transaction]
        if transaction.level == Level.SER:
            return not (transaction.single and seen.read.mode == Mode.plain)
        # No locks on what is not there; ROLLBACK TO SAVEPOINT gives locks back.
        return seen.read.mode != Mode.plain and seen.length > 0 and not seen.undone

    def _snapshot_of(self, seen: Seen) -> int | None:
        """The node of the snapshot a plain read was made of. A row the transaction has changed is shown as changed."""
        transaction = self._history.transactions[seen.transaction]
        if seen.read.mode != Mode.plain or seen.own or transaction.level == Level.RU:
            return None
        if transaction.level == Level.SER and not transaction.single:
            return None
        return self._snapshot_node(seen.transaction, 0 if transaction.level == Level.RR else id(seen.read))

    def _snapshot_node(self, number: int, which: int) -> int:
        node = self._snapshots.get((number, which))
        if node is None:
            node = self._snapshots[number, which] = len(self._history.transactions) + len(self._owners)
            self._owners.append(number)
        return node

    def _overwritten(self) -> Iterator[Edge]:
        """With snapshot isolation whose version is overwritten must be in the snapshot."""
        for (number, which), node in list(self._snapshots.items()):
            transaction = self._history.transactions[number]
            if which == 0 and self._versions.committed[number] and transaction.level == Level.RR:
                for key, value in self._appended_after_snapshot(transaction):
                    place = self._versions.order[key].index(value)
                    if place > 0 and (writer := self._versions.writer_at(key, place - 1)) != number:
                        yield Edge(writer, node, "ww", key, value)

    def _appended_after_snapshot(self, transaction: Transaction) -> Iterator[tuple[int, int]]:
        taken = transaction.snapshot_at is not None
        for operation in transaction.operations:
            if isinstance(operation, Append) and taken:
                for key in operation.keys:
                    if operation.value in self._versions.order.get(key, ()):
                        yield key, operation.value
            elif isinstance(operation, Read) and operation.mode == Mode.plain:
                taken = True

    # --- real time ---

    def real_time(self) -> Iterator[Edge]:
        """After promised(). Who was over before somebody else began was decided before. The edges go by way of points in time,
        negative numbers, or there would be one for nearly every pair."""
        spans = sorted(self._spans(), key=lambda span: span[0])
        starts = [start for start, _, _ in spans]
        for place, (_, end, node) in enumerate(spans):
            point = -1 - place
            yield Edge(point, node, "time")
            if place > 0:
                yield Edge(point + 1, point, "time")
            if (later := bisect_right(starts, end)) < len(spans):
                yield Edge(node, -1 - later, "time")

    def _spans(self) -> Iterator[tuple[float, float, int]]:
        """Of every node: from when to when it was decided. A commit comes after the last statement; one without an answer may
        come at any time."""
        for number, transaction in enumerate(self._history.transactions):
            if self._versions.committed[number] and (sent := _sent(transaction)):
                end = transaction.ended if transaction.end == End.committed else inf
                yield min(sent[-1], end), end, number
        for (number, which), node in self._snapshots.items():
            transaction = self._history.transactions[number]
            sent = _sent(transaction)
            if which == 0:
                yield _snapshot_span(transaction, node)
            else:
                place = next(i for i, op in enumerate(_timed(transaction)) if id(op) == which)
                yield sent[place], [*sent, transaction.ended][place + 1], node

    # --- words ---

    def explain(self, cycle: list[Edge]) -> str:
        lines = []
        for edge in cycle:
            if edge.kind == "time":
                lines += self._in_time(edge)
                continue
            source, target = self._name(edge.source), self._name(edge.target)
            key, value = edge.key, edge.value
            lines.append(
                {
                    "ww": f"{source} wrote key {key} before {target}, which appended {value}",
                    "wr": f"{source} appended {value} to key {key}, which {target} has seen",
                    "rw": f"{source} did not see key {key} with {value}, which {target} appended",
                    "order": f"{source} was before the end of {target}",
                }[edge.kind]
            )
        numbers = sorted({self._transaction(node) for edge in cycle for node in (edge.source, edge.target) if node >= 0})
        lines += [self._story(number) for number in numbers]
        return "\n    ".join(["a cycle", *lines])

    def _in_time(self, edge: Edge) -> list[str]:
        if edge.source >= 0:
            return [f"{self._name(edge.source)} was over"]
        return [f"before {self._name(edge.target)} began"] if edge.target >= 0 else []

    def _transaction(self, node: int) -> int:
        known = len(self._history.transactions)
        return node if node < known else self._owners[node - known]

    def _name(self, node: int) -> str:
        return f"T{node}" if node < len(self._history.transactions) else f"the snapshot of T{self._transaction(node)}"

    def _story(self, number: int) -> str:
        transaction = self._history.transactions[number]
        steps = []
        for operation in transaction.operations:
            if isinstance(operation, Append):
                steps.append(f"append {operation.value} to {operation.keys} ({operation.hit} hit)")
            elif isinstance(operation, Read):
                shown = operation.lists if operation.lists is not None else operation.lengths
                tails = {k: v if isinstance(v, int) else f"{len(v)}:{v[-2:]}" for k, v in (shown or {}).items()}
                steps.append(f"{operation.mode} read {operation.how} {tails}")
            else:
                steps.append(f"{'rollback to' if operation.undo else 'savepoint'} {operation.number}")
        return f"{describe(self._history, number)}: " + "; ".join(steps)


def _timed(transaction: Transaction) -> list[Append | Read]:
    return [operation for operation in transaction.operations if isinstance(operation, Append | Read)]


def _sent(transaction: Transaction) -> list[float]:
    return [operation.sent for operation in _timed(transaction)]


def _snapshot_span(transaction: Transaction, node: int) -> tuple[float, float, int]:
    """Of REPEATABLE READ's one snapshot: it is there once the first plain read is answered, or the statement that took it."""
    later = [*_sent(transaction), transaction.ended]
    if transaction.snapshot_at is not None:
        return transaction.snapshot_at, later[0], node
    operations = _timed(transaction)
    place = next(i for i, op in enumerate(operations) if isinstance(op, Read) and op.mode == Mode.plain)
    return later[place], later[place + 1], node
