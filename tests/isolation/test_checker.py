"""The checker itself: planted anomalies are found at the levels that forbid them, serial histories are right."""

import random
from copy import deepcopy
from pathlib import Path

import pytest

from .checker import ABSENT, check
from .cycles import Edge, Graph
from .history import Append, End, History, Level, Mode, Operation, Read, Savepoint, Transaction, load, save
from .serial import MUTATIONS, Generator, Mutation

ENDED = 100.0  # everything overlaps with everything


def read(mode: Mode = Mode.plain, sent: float = 1, **lists: list[int]) -> Read:
    """read(k1=[5]): keys are given as k1, k2 ...; an empty list is a row that was not found."""
    shown = {int(key[1:]): values for key, values in lists.items()}
    return Read(sorted(shown), mode, sent, lists={key: values for key, values in shown.items() if values})


def lengths(**counts: int) -> Read:
    shown = {int(key[1:]): count for key, count in counts.items()}
    return Read(sorted(shown), Mode.plain, 1, lengths={key: count for key, count in shown.items() if count})


def append(key: int, value: int, sent: float = 1) -> Append:
    return Append([key], value, sent, 1)


def ran(*operations: Operation, level: Level = Level.SER, end: End = End.committed, ended: float = ENDED) -> Transaction:
    return Transaction(0, level, 0, end=end, ended=ended, operations=list(operations))


def at(level: Level, *transactions: Transaction) -> list[Transaction]:
    for transaction in transactions:
        transaction.level = level
    return list(transactions)


def kinds(transactions: list[Transaction], final: dict[int, list[int]], snapshot_isolation: bool = False) -> set[str]:
    return {problem.kind for problem in check(History(transactions, final, snapshot_isolation)).problems}


def permitted(transactions: list[Transaction], final: dict[int, list[int]]) -> set[str]:
    report = check(History(list(transactions), final))
    assert report.ok, report.problems
    return set(report.permitted)


ALL = list(Level)
COMMITTED = [Level.RC, Level.RR, Level.SER]


# --- cycles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ALL)
def test_dirty_writes_are_wrong_everywhere(level: Level) -> None:
    crossed = at(level, ran(append(1, 1), append(2, 2)), ran(append(1, 3), append(2, 4)))
    assert kinds(crossed, {1: [1, 3], 2: [4, 2]}) == {"G0 dirty write"}
    torn = at(level, ran(append(1, 1), append(1, 2)), ran(append(1, 3)))
    assert "G0 dirty write" in kinds(torn, {1: [1, 3, 2]})


@pytest.mark.parametrize("level", COMMITTED)
def test_circular_information_flow(level: Level) -> None:
    flow = at(level, ran(append(1, 1), read(k2=[2])), ran(append(2, 2), read(k1=[1])))
    assert kinds(flow, {1: [1], 2: [2]}) == {"G1c circular information flow"}


def test_read_uncommitted_may_see_anything_without_a_lock() -> None:
    flow = at(Level.RU, ran(append(1, 1), read(k2=[2])), ran(append(2, 2), read(k1=[1])))
    assert kinds(flow, {1: [1], 2: [2]}) == set()
    locked = at(Level.RU, ran(append(1, 1), read(Mode.share, k2=[2])), ran(append(2, 2), read(Mode.share, k1=[1])))
    assert kinds(locked, {1: [1], 2: [2]}) == {"G1c circular information flow"}


def lost_update(level: Level, mode: Mode) -> list[Transaction]:
    return at(level, ran(read(mode, k1=[9]), append(1, 1)), ran(read(mode, k1=[9]), append(1, 2)), ran(append(1, 9), ended=0))


@pytest.mark.parametrize("level", [Level.RC, Level.RR])
def test_a_lost_update_is_permitted_after_a_plain_read(level: Level) -> None:
    assert permitted(lost_update(level, Mode.plain), {1: [9, 1, 2]}) == {"P4 lost update"}


@pytest.mark.parametrize("level", ALL)
@pytest.mark.parametrize("mode", [Mode.share, Mode.update])
def test_a_lost_update_is_wrong_after_a_locking_read(level: Level, mode: Mode) -> None:
    assert kinds(lost_update(level, mode), {1: [9, 1, 2]}) == {"P4 lost update"}


def test_a_lost_update_is_wrong_with_snapshots_or_serializable() -> None:
    final = {1: [9, 1, 2]}
    assert kinds(lost_update(Level.SER, Mode.plain), final) == {"P4 lost update"}
    assert kinds(lost_update(Level.RR, Mode.plain), final, snapshot_isolation=True) == {"P4 lost update"}


def test_a_savepoint_gives_locks_back_below_serializable() -> None:
    def story() -> list[Transaction]:
        undone = ran(Savepoint(1), read(Mode.update, k1=[9]), Savepoint(1, undo=True), append(1, 1))
        return [ran(append(1, 9), ended=0), undone, ran(append(1, 2))]

    assert kinds(at(Level.RR, *story()), {1: [9, 2, 1]}) == set()
    assert kinds(at(Level.SER, *story()), {1: [9, 2, 1]}) == {"P4 lost update"}


def skew(level: Level, *reads: Read) -> list[Transaction]:
    return at(level, ran(*reads), ran(append(1, 1), append(2, 2)))


def test_read_skew_within_one_snapshot() -> None:
    final = {1: [1], 2: [2]}
    assert permitted(skew(Level.RC, read(k1=[]), read(k2=[2])), final) == {"G-single read skew" + ABSENT}
    assert kinds(skew(Level.RC, read(k1=[], k2=[2])), final) == {"G-single read skew"}
    assert kinds(skew(Level.RR, read(k1=[]), read(k2=[2])), final) == {"G-single read skew"}
    assert kinds(skew(Level.RR, lengths(k1=0), lengths(k2=1)), final) == {"G-single read skew"}
    assert kinds(skew(Level.SER, read(k1=[]), read(k2=[2])), final) == {"G-single read skew"}
    assert permitted(skew(Level.RR, read(k1=[]), read(Mode.share, k2=[2])), final) == {"G-single read skew" + ABSENT}


def test_read_skew_of_a_transaction_that_rolled_back() -> None:
    history = skew(Level.RR, read(k1=[]), read(k2=[2]))
    history[0].end = End.aborted
    assert kinds(history, {1: [1], 2: [2]}) == {"G-single read skew"}


def test_a_row_changed_by_oneself_is_not_of_the_snapshot() -> None:
    history = at(Level.RR, ran(read(k1=[]), append(2, 3), read(k2=[2, 3])), ran(append(1, 1), append(2, 2)))
    assert permitted(history, {1: [1], 2: [2, 3]}) == {"G-single read skew" + ABSENT}


def test_a_read_that_is_not_repeatable() -> None:
    history = at(Level.RR, ran(read(k1=[]), read(k1=[1])), ran(append(1, 1)))
    assert kinds(history, {1: [1]}) == {"G-single read skew"}


def write_skew(level: Level, mode: Mode, before: list[int]) -> list[Transaction]:
    first = ran(read(mode, k1=before, k2=before), append(1, 1))
    second = ran(read(mode, k1=before, k2=before), append(2, 2))
    return at(level, first, second, ran(*(append(key, value, 0) for value in before for key in (1, 2)), ended=0))


def test_write_skew() -> None:
    final = {1: [9, 1], 2: [9, 2]}
    for level in (Level.RC, Level.RR):
        assert permitted(write_skew(level, Mode.plain, [9]), final) == {"G2 write skew"}
        assert kinds(write_skew(level, Mode.share, [9]), final) == {"G2 write skew"}
    assert kinds(write_skew(Level.SER, Mode.plain, [9]), final) == {"G2 write skew"}
    assert kinds(write_skew(Level.RR, Mode.plain, [9]), final, snapshot_isolation=True) == set()


def test_phantoms() -> None:
    final = {1: [1], 2: [2]}
    assert permitted(write_skew(Level.RR, Mode.share, []), final) == {"G2 phantom"}
    assert kinds(write_skew(Level.SER, Mode.plain, []), final) == {"G2 phantom"}


def test_a_serializable_statement_by_itself_reads_a_snapshot() -> None:
    reader = ran(read(k1=[], k2=[2]))
    reader.single = True
    assert kinds([reader, ran(append(1, 1), append(2, 2))], {1: [1], 2: [2]}) == {"G-single read skew"}


def test_levels_may_be_mixed() -> None:
    final = {1: [9, 1], 2: [9, 2]}
    history = write_skew(Level.SER, Mode.plain, [9])
    history[0].level = Level.RR
    assert permitted(history, final) == {"G2 write skew"}


def test_a_cycle_is_told_in_words() -> None:
    report = check(History(lost_update(Level.SER, Mode.plain), {1: [9, 1, 2]}))
    text = str(report.problems[0])
    assert "T0 wrote key 1 before T1, which appended 2" in text
    assert "T1 did not see key 1 with 1, which T0 appended" in text


# --- without cycles ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", COMMITTED)
def test_aborted_and_intermediate_reads(level: Level) -> None:
    aborted = at(level, ran(append(1, 1), end=End.aborted), ran(read(k1=[1])))
    assert kinds(aborted, {}) == {"G1a aborted read"}
    undone = at(level, ran(Savepoint(1), append(1, 1), Savepoint(1, undo=True)), ran(read(k1=[1])))
    assert kinds(undone, {}) == {"G1a undone read"}
    early = at(level, ran(append(1, 1), append(1, 2)), ran(read(k1=[1])))
    assert "G1b intermediate read" in kinds(early, {1: [1, 2]})


def test_what_is_left_in_the_end() -> None:
    assert kinds([ran(append(1, 1), end=End.aborted)], {1: [1]}) == {"G1a aborted write"}
    assert kinds([ran(Savepoint(1), append(1, 1), Savepoint(1, undo=True))], {1: [1]}) == {"G1a undone write"}
    assert kinds([ran(append(1, 1))], {}) == {"lost append"}
    assert kinds([ran(append(1, 1))], {1: [1, 1]}) == {"duplicate value"}
    assert kinds([ran(append(1, 1))], {1: [1, 7]}) == {"unknown value"}
    assert kinds([ran(Append([1, 2], 1, 1, 2))], {1: [1]}) == {"lost append"}


def test_unknown_outcomes_are_all_or_nothing() -> None:
    both = [ran(append(1, 1), append(2, 2), end=End.unknown)]
    assert kinds(both, {1: [1], 2: [2]}) == set()
    assert kinds(both, {}) == set()
    assert kinds(both, {1: [1]}) == {"lost append"}


def test_a_transaction_sees_itself() -> None:
    assert kinds([ran(append(1, 1), read(k1=[1]))], {1: [1]}) == set()
    assert kinds([ran(append(2, 2)), ran(Append([1, 2], 1, 1, 1), read(k2=[2]))], {2: [2, 1]}) == {"internal"}
    assert kinds([ran(append(1, 1), read(k1=[]))], {1: [1]}) == {"internal"}
    assert kinds([ran(append(1, 1), lengths(k1=0))], {1: [1]}) == {"internal"}
    undone = [ran(append(1, 1), Savepoint(1), append(1, 2), Savepoint(1, undo=True), read(k1=[1, 2]))]
    assert kinds(undone, {1: [1]}) == {"internal"}


def test_orders_must_agree() -> None:
    history = [ran(append(1, 1)), ran(append(1, 2)), ran(read(k1=[2, 1]))]
    assert kinds(history, {1: [1, 2]}) == {"incompatible order"}


def test_what_was_acknowledged_is_seen() -> None:
    writer = ran(append(1, 1), ended=5)
    assert kinds([writer, ran(read(sent=6, k1=[]))], {1: [1]}) == {"stale read"}
    assert kinds([writer, ran(read(sent=4, k1=[]))], {1: [1]}) == set()
    late = at(Level.RR, writer, ran(read(sent=4, k2=[]), read(sent=6, k1=[])))
    assert kinds(late, {1: [1]}) == set()
    assert kinds([writer, ran(append(1, 2, sent=6))], {1: [2, 1]}) == {"order against real time"}


def test_a_locking_scan_may_miss_an_entry_that_moves() -> None:
    def scan(level: Level) -> list[Transaction]:
        locked = read(Mode.update, sent=6, k1=[])
        locked.moves = True
        return at(level, ran(append(1, 1), ended=5), ran(locked))

    assert kinds(scan(Level.RR), {1: [1]}) == set()
    assert kinds(scan(Level.SER), {1: [1]}) == {"stale read"}


# --- at random -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_serial_histories_are_right(seed: int) -> None:
    history = Generator(seed).history()
    report = check(history)
    assert report.ok, [str(problem) for problem in report.problems]
    assert not report.permitted


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mutated_serial_history_is_wrong(mutation: Mutation) -> None:
    changed = 0
    for seed in range(40):
        history = Generator(seed).history()
        before = deepcopy(history)
        if mutation(history, random.Random(seed)):
            changed += 1
            assert not check(history).ok, f"seed {seed}"
            assert check(before).ok
    assert changed > 20


def test_components_and_cycles_against_brute_force() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        edges = [Edge(rng.randrange(8), rng.randrange(8), rng.choice(("ww", "wr", "rw"))) for _ in range(rng.randint(1, 16))]
        graph = Graph(edges)
        reach = {a: _reachable(graph, a) for a in range(8)}
        expected = {frozenset(b for b in reach[a] if a in reach[b]) for a in range(8) if a in reach[a]}
        components = graph.components()
        assert {frozenset(component) for component in components} == expected
        for component in components:
            cycle = graph.shortest_cycle(component)
            assert all(cycle[n].source == cycle[n - 1].target for n in range(len(cycle)))
            assert all(graph.out[edge.source][edge.target] == edge for edge in cycle)


def _reachable(graph: Graph, start: int) -> set[int]:
    found: set[int] = set()
    left = [start]
    while left:
        for target in graph.out.get(left.pop(), {}):
            if target not in found:
                found.add(target)
                left.append(target)
    return found


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    history = Generator(3).history()
    save(history, tmp_path / "h.jsonl")
    assert load(tmp_path / "h.jsonl") == history


# --- real time -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", COMMITTED)
def test_what_somebody_has_seen_is_not_missed_later(level: Level) -> None:
    """The writer's commit is acknowledged only at the end: what was acknowledged says nothing here."""

    def story(missed_at: float) -> list[Transaction]:
        return at(
            level,
            ran(append(1, 1)),
            ran(read(sent=2, k1=[1]), ended=3),
            ran(read(sent=missed_at, k1=[])),
        )

    assert kinds(story(2.5), {1: [1]}) == set()
    assert kinds(story(4), {1: [1]}) == {"order against real time"}


def test_a_commit_without_an_answer_may_come_at_any_time() -> None:
    unknown = ran(append(1, 1), end=End.unknown, ended=2)
    assert kinds([unknown, ran(read(sent=5, k1=[]))], {1: [1]}) == set()
    seen = ran(read(sent=3, k1=[1]), ended=4)
    assert kinds([unknown, seen, ran(read(sent=5, k1=[]))], {1: [1]}) == {"order against real time"}


def test_real_time_by_way_of_several_keys() -> None:
    """T0 and T1 order themselves by key 1 against the order in which they ended, as seen by a third."""
    early = ran(append(1, 1), append(2, 2), ended=2)
    late = ran(append(3, 3, sent=3), end=End.unknown)
    assert kinds([early, late], {1: [1], 2: [2], 3: [3]}) == set()
    reader = ran(read(Mode.share, sent=1, k3=[3]), append(1, 4), ended=50)
    assert kinds([early, late, reader], {1: [4, 1], 2: [2], 3: [3]}) == {"order against real time"}
