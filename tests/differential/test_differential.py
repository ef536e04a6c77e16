"""The runner itself: planted differences are found, excused ones are not, failing cases shrink to what matters."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from strata_cli import paths

from .compare import Difference, compare
from .excused import RULES_FILE, RULES_MOST, Excuses
from .generator import Generator
from .minimise import Minimiser, split_rows
from .pair import Pair
from .plans import hangs_on_the_plan, variants
from .report import read_case, write_case
from .run import Failure, replay, run_case
from .several import LeaseLost, SeveralConnections
from .step import Step
from .target import Target
from .transactions import IN_TRANSACTION, Transactions
from .wire import Answer, _length, decode_row

SELECT = Step("SELECT a FROM t")
UPDATE = Step("UPDATE t SET a = 1")
NO_CONDITION = {"plan": lambda _: False, "another-stopped-by-lock": lambda _: False, "gaps-may-matter": lambda _: True}
ORDERED = Step("SELECT a FROM t ORDER BY a", ordered=True)
COLUMN = b"\x03def\x06diff_s\x01t\x01t\x01a\x01a\x0c?\x00\x0b\x00\x00\x00\x03\x01\x10\x00\x00\x00"


def rows(*values: bytes) -> Answer:
    return Answer(columns=[COLUMN], rows=list(values))


def kinds(step: Step, strata: Answer, innodb: Answer) -> list[str]:
    return [difference.kind for difference in compare(step, strata, innodb)]


# --- comparing ---------------------------------------------------------------------------------------------------


def test_rows_are_a_set_without_an_order_and_a_list_with_one() -> None:
    ours, theirs = rows(b"\x011", b"\x012"), rows(b"\x012", b"\x011")
    assert kinds(SELECT, ours, theirs) == []
    assert kinds(ORDERED, ours, theirs) == ["order"]


def test_only_doubts_of_innodb_about_itself_are_passed_over() -> None:
    check = Step("CHECK TABLE t EXTENDED")
    fine, doubt = b"\x0bdiff_s.t OK", b"\x40InnoDB: Clustered index record not found for index `k`"
    assert kinds(check, rows(fine), rows(doubt, fine)) == []
    assert kinds(check, rows(doubt, fine), rows(fine)) == ["rows"]


def test_a_row_more_or_another_is_found() -> None:
    assert kinds(SELECT, rows(b"\x011"), rows()) == ["rows"]
    assert kinds(SELECT, rows(b"\x011", b"\x011"), rows(b"\x011")) == ["rows"]
    assert kinds(SELECT, rows(b"\xfb"), rows(b"\x00")) == ["rows"]


def test_schema_and_engine_names_are_the_same_thing() -> None:
    ours = Answer(error=1050, sqlstate="42S01", message="Table 'diff_s.t' of STRATA")
    theirs = Answer(error=1050, sqlstate="42S01", message="Table 'diff_i.t' of InnoDB")
    assert kinds(ORDERED, ours, theirs) == []
    assert kinds(SELECT, rows(), replace(rows(), columns=[COLUMN.replace(b"diff_s", b"diff_i")])) == []


def test_counts_errors_and_metadata_are_compared() -> None:
    assert kinds(SELECT, Answer(affected=1), Answer()) == ["affected"]
    assert kinds(SELECT, Answer(insert_id=5), Answer(insert_id=6)) == ["insert_id"]
    assert kinds(SELECT, Answer(status=1), Answer()) == ["status"]
    assert kinds(SELECT, Answer(error=1062, sqlstate="23000"), Answer()) == ["error"]
    unsigned = COLUMN[:-5] + b"\x21\x10" + COLUMN[-3:]
    assert kinds(SELECT, rows(), replace(rows(), columns=[unsigned])) == ["columns"]


def test_warnings_differ_by_text_and_by_row_only_with_an_order() -> None:
    ours = Answer(warning_count=1, warnings=[("Warning", "1265", "Data truncated for column 'a' at row 1")])
    theirs = Answer(warning_count=1, warnings=[("Warning", "1265", "Data truncated for column 'a' at row 2")])
    assert kinds(Step("UPDATE t SET a = 1"), ours, theirs) == []
    assert kinds(Step("UPDATE t SET a = 1 ORDER BY b", ordered=True), ours, theirs) == ["warnings"]
    assert kinds(SELECT, ours, Answer()) == ["warnings"]


# --- excuses -----------------------------------------------------------------------------------------------------


def test_the_rules_are_few_and_have_reasons() -> None:
    rules = Excuses().rules
    assert 0 < len(rules) <= RULES_MOST
    assert all(len(rule.reason) > 40 for rule in rules)


def test_only_what_a_rule_names_is_excused() -> None:
    excuses = Excuses(RULES_FILE)
    locked = Difference("error", "ok", "1205 (HY000) Lock wait timeout exceeded")
    assert excuses.sort(UPDATE, [locked], NO_CONDITION) == ([], True)
    assert excuses.sort(Step("ALTER TABLE t ADD b INT"), [locked], NO_CONDITION) == ([locked], False)
    other_way = Difference("error", "1205 (HY000)", "ok")
    assert excuses.sort(UPDATE, [other_way], NO_CONDITION) == ([other_way], False)
    assert excuses.sort(UPDATE, [other_way], {**NO_CONDITION, "another-stopped-by-lock": lambda _: True}) == ([], True)
    wrong = Difference("rows", "1 rows", "2 rows")
    assert excuses.sort(SELECT, [wrong], NO_CONDITION) == ([wrong], False)


def test_a_lock_conflict_counts_while_its_transaction_is_open() -> None:
    transactions = Transactions()
    conflict, began = Answer(error=1205), Answer(status=IN_TRANSACTION)
    ours, others = replace(UPDATE, session=1), replace(UPDATE, session=2)
    transactions.learn(ours, conflict, [])  # by itself: nothing is kept locked
    assert not transactions.another_was_stopped(others)
    transactions.learn(ours, began, [])
    transactions.learn(ours, conflict, [Difference("error", "ok", "1205")])  # one side only: rolled back
    assert not transactions.another_was_stopped(others)
    transactions.learn(ours, conflict, [])
    assert transactions.another_was_stopped(others)
    assert not transactions.another_was_stopped(ours)
    transactions.learn(ours, Answer(), [])
    assert not transactions.another_was_stopped(others)
    assert not transactions.is_open(1)


def test_a_duplicate_that_is_locked_on_one_side_only_is_not_excused() -> None:
    began = Answer(status=IN_TRANSACTION)
    met = replace(began, warning_count=1, warnings=[("Warning", "1062", "Duplicate entry '1' for key 'PRIMARY'")])
    secondary = replace(met, warnings=[("Warning", "1062", "Duplicate entry '1' for key 'u'")])
    insert = Step("INSERT IGNORE INTO t VALUES (1)", session=1)
    whole, part = Step("DELETE FROM t", session=2), Step("DELETE FROM t WHERE a > 3", session=2)
    transactions = Transactions()
    transactions.learn(Step("BEGIN", session=1), began, [])
    transactions.learn(insert, met, [])
    assert not transactions.gaps_may_matter(whole)
    assert not transactions.gaps_may_matter(Step("UPDATE t SET a = a + 1", session=2))
    assert transactions.gaps_may_matter(part)
    assert transactions.gaps_may_matter(Step("UPDATE t SET a = 1 WHERE b = 2", session=2))
    transactions.learn(insert, secondary, [])
    assert transactions.gaps_may_matter(whole)
    transactions.ended(1)
    for other in (UPDATE, Step("INSERT INTO t SELECT * FROM u"), Step("INSERT INTO t VALUES (1) ON DUPLICATE KEY UPDATE a = 2")):
        transactions.learn(Step("BEGIN", session=1), began, [])
        assert not transactions.gaps_may_matter(whole)
        transactions.learn(replace(other, session=1), began, [])
        assert transactions.gaps_may_matter(whole)
        transactions.ended(1)


def test_warnings_are_excused_by_their_codes() -> None:
    excuses = Excuses()
    ours = Answer(warning_count=1, warnings=[("Warning", "1916", "Got overflow when converting '1e9' to INT")])
    more = replace(ours, warning_count=2, warnings=[*ours.warnings, ("Warning", "1265", "Data truncated")])
    join = Step("SELECT * FROM a JOIN b ON a.x = b.y")
    assert excuses.sort(join, compare(join, ours, Answer()), NO_CONDITION) == ([], False)
    assert excuses.sort(SELECT, compare(SELECT, ours, Answer()), NO_CONDITION)[0]
    assert excuses.sort(join, compare(join, more, Answer()), NO_CONDITION)[0]


def test_too_many_rules_are_refused(tmp_path: Path) -> None:
    rule = '[[rule]]\nname = "n"\nreason = "r"\nkinds = ["rows"]\nstatement = "."\naction = "continue"\n'
    (tmp_path / "rules.toml").write_text(rule * (RULES_MOST + 1))
    with pytest.raises(ValueError, match="no comparison"):
        Excuses(tmp_path / "rules.toml")


# --- shrinking ---------------------------------------------------------------------------------------------------


def test_a_case_shrinks_to_the_statements_it_needs() -> None:
    steps = [Step(f"SELECT {n}") for n in range(200)]
    needed = {steps[n].sql for n in (3, 77, 150, 199)}

    def fails(candidate: list[Step]) -> bool:
        return needed <= {step.sql for step in candidate}

    minimiser = Minimiser(fails)
    assert [step.sql for step in minimiser.minimise(steps)] == [f"SELECT {n}" for n in (3, 77, 150, 199)]
    assert minimiser.tries < 150


def test_rows_of_an_insert_are_dropped_too() -> None:
    steps = [
        Step("INSERT INTO t (a, b) VALUES (1, 'x, (y'), (2, 'it''s)'), (3, CONCAT('a', 'b')) ON DUPLICATE KEY UPDATE a = 1"),
        SELECT,
    ]
    smaller = Minimiser(lambda s: any("(3, CONCAT" in step.sql for step in s)).minimise(steps)
    assert smaller[0].sql == "INSERT INTO t (a, b) VALUES (3, CONCAT('a', 'b')) ON DUPLICATE KEY UPDATE a = 1"


def test_values_are_taken_apart_at_brackets_outside_strings() -> None:
    split = split_rows("INSERT INTO t (a) VALUES ('(\\')'), (2) RETURNING a")
    assert split == ("INSERT INTO t (a) VALUES ", ["('(\\')')", "(2)"], " RETURNING a")
    assert split_rows("UPDATE t SET a = 1") is None


# --- generating --------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_statements() -> None:
    def statements(seed: int) -> list[str]:
        generator = Generator(seed, 200)
        done: list[str] = []
        while (step := generator.next()) is not None:
            done.append(step.sql)
            generator.learn(step, Answer())
        return done

    assert statements(7) == statements(7)
    assert statements(7) != statements(8)


def test_a_case_is_written_and_read_back(tmp_path: Path) -> None:
    steps = [
        Step("CREATE TABLE t (a INT)", ordered=True),
        Step("BEGIN", 1),
        Step("SELECT 'ü'", 1),
        Step("SELECT 2", 0, True, server=2),
    ]
    write_case(tmp_path / "case.sql", Failure(steps, [Difference("rows", "a", "b")]), "title")
    assert read_case(tmp_path / "case.sql") == steps


def test_packets_are_read_by_their_lengths() -> None:
    assert _length(b"\xfc\x00\x01", 0) == (256, 3)
    assert decode_row(b"\x01a\xfb\x00") == ("a", None, "")


# --- several servers ----------------------------------------------------------------------------------------------


class OneOfSeveral:
    """A server that notes what it is asked, and has a transaction open from BEGIN to COMMIT."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.says = Answer()

    def send(self, sql: str) -> None:
        self.asked.append(sql)
        if sql in ("BEGIN", "COMMIT"):
            self.says = Answer(status=IN_TRANSACTION * (sql == "BEGIN"))

    def receive(self) -> Answer:
        return self.says

    def query(self, sql: str) -> Answer:
        self.send(sql)
        return self.receive()

    def close(self) -> None:
        pass


def asked_of_three(*statements: tuple[int, str]) -> list[list[str]]:
    servers = [OneOfSeveral() for _ in range(3)]
    session = SeveralConnections(servers)
    for place, sql in statements:
        session.go_to(place)
        session.query(sql)
    return [server.asked for server in servers]


def test_statements_hop_from_server_to_server_and_transactions_stay() -> None:
    assert asked_of_three((0, "SELECT 1"), (2, "BEGIN"), (1, "SELECT 2"), (0, "COMMIT"), (1, "SELECT 3")) == [
        ["SELECT 1"],
        ["SELECT 3"],
        ["BEGIN", "SELECT 2", "COMMIT"],
    ]


def test_what_a_session_sets_it_sets_on_all_servers_and_a_level_where_it_counts() -> None:
    level = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
    mode = "SET SESSION sql_mode=''"
    assert asked_of_three((0, mode), (1, level), (2, "BEGIN"), (0, "COMMIT")) == [
        [mode],
        [mode, level, "BEGIN", "COMMIT"],
        [mode],
    ]


def test_a_server_without_a_lease_ends_the_case() -> None:
    server = OneOfSeveral()
    server.says = Answer(error=1297, message="STRATA: this server has no lease from the memory node at the moment")
    with pytest.raises(LeaseLost):
        SeveralConnections([server]).query("SELECT 1")


def test_with_several_servers_no_numbers_are_generated() -> None:
    for seed in range(30):
        generator = Generator(seed, 60, engine_numbers=False)
        while (step := generator.next()) is not None:
            assert " AUTO_INCREMENT" not in step.sql
            generator.learn(step, Answer())
            assert all(table.primary for table in generator._schema.tables.values())


# --- with a server -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Target]:
    target = Target(paths.BUILD / "differential" / "test", "release", ("InnoDB", "InnoDB"))
    target.start()
    yield target
    target.stop()


def test_an_engine_agrees_with_itself(server: Target) -> None:
    excuses = Excuses()
    for seed in (1, 2, 5):
        result = run_case(server.pair, excuses, seed, 120)
        assert result.failure is None, [result.failure.steps[-1].sql, *map(str, result.failure.differences)]
        assert result.statements > 100


def test_an_engine_agrees_with_itself_about_tables_that_refer_to_each_other(server: Target) -> None:
    excuses = Excuses()
    codes: set[int] = set()
    for seed in (1, 2, 3):
        result = run_case(server.pair, excuses, seed, 250, families=True)
        assert result.failure is None, [result.failure.steps[-1].sql, *map(str, result.failure.differences)]
        codes |= result.error_codes.keys()
    assert {1451, 1452} <= codes  # A parent that is in use, a parent that is not there.


class Sabotage(Pair):
    """One side silently loses an update."""

    def run(self, step: Step) -> tuple[Answer, list[Difference]]:
        if step.sql.startswith("UPDATE victim"):
            self._session_of(step)._sides[0].query(step.sql.replace("SET a = a + 1", "SET a = a + 2"))
            self._session_of(step)._sides[1].query(step.sql)
            return Answer(), []
        return super().run(step)


def test_a_planted_difference_is_found_and_minimised(server: Target) -> None:
    def make_pair() -> Pair:
        usual = server.pair()
        usual.close()
        return Sabotage(usual._socket_path, ("InnoDB", "InnoDB"))

    noise = [Step(f"SELECT {n}") for n in range(30)]
    steps = [
        *noise[:10],
        Step("CREATE TABLE victim (a INT PRIMARY KEY)"),
        *noise[10:20],
        Step("INSERT INTO victim (a) VALUES (1), (10), (20)", ordered=True),
        Step("UPDATE victim SET a = a + 1 ORDER BY a DESC"),
        *noise[20:],
        Step("SELECT * FROM victim"),
        Step("SELECT 99"),
    ]
    excuses = Excuses()
    found = replay(make_pair, excuses, steps)
    assert found is not None
    assert [difference.kind for difference in found.differences] == ["rows"]
    signature = found.signature

    def fails(candidate: list[Step]) -> bool:
        again = replay(make_pair, excuses, candidate)
        return again is not None and again.signature == signature and len(again.steps) == len(candidate)

    smallest = Minimiser(fails).minimise(found.steps)
    assert [step.verb for step in smallest] == ["CREATE", "INSERT", "UPDATE", "SELECT"]


# --- by plan -----------------------------------------------------------------------------------------------------


def test_variants_scan_all_and_force_each_index() -> None:
    sql = "SELECT COUNT(*) FROM t1 a LEFT JOIN t2 b ON a.c = b.c WHERE a.c IN (SELECT c FROM t3 WHERE d = 1)"
    found = variants(sql, {"t1": ["PRIMARY"], "t2": [], "t3": ["k"]})
    plain = [variant.split(" FOR ", 1)[1] for variant in found]
    assert plain[0] == (
        "SELECT COUNT(*) FROM t1 a USE INDEX () LEFT JOIN t2 b USE INDEX () ON a.c = b.c"
        " WHERE a.c IN (SELECT c FROM t3 USE INDEX () WHERE d = 1)"
    )
    assert plain[2] == plain[0].replace("t3 USE INDEX ()", "t3 FORCE INDEX (k)")
    assert len(found) == 6
    for way in ("materialization=on,in_to_exists=off", "materialization=off,in_to_exists=on"):
        assert f"SET STATEMENT optimizer_switch='{way}' FOR {plain[1]}" in found
    assert len(variants("SELECT a.c FROM t1 a", {"t1": ["PRIMARY"]})) == 2


class OtherPlan(Pair):
    """One side takes another plan for a query without hints."""

    def ask(self, step: Step) -> tuple[Answer, Answer]:
        strata, innodb = super().ask(step)
        if step.sql == BY_PLAN.sql:
            return super().ask(Step(step.sql.replace("t2 b", "t2 b USE INDEX ()")))[0], innodb
        return strata, innodb


BY_PLAN = Step("SELECT STRAIGHT_JOIN a.x FROM t1 a JOIN t2 b ON a.x = b.y")


def test_an_answer_that_hangs_on_the_plan_is_told_from_a_wrong_one(server: Target) -> None:
    pair = OtherPlan(server._server.socket, ("InnoDB", "InnoDB"))
    for sql in (
        "CREATE TABLE t1 (x BIT(5))",
        "CREATE TABLE t2 (y BIT(2), KEY k (y))",
        "INSERT INTO t1 VALUES (b'1010')",
        "INSERT INTO t2 SELECT b'11' FROM seq_1_to_50",
        "INSERT INTO t2 SELECT b'0' FROM seq_1_to_900",
        "ANALYZE TABLE t1, t2",
    ):
        pair.run(Step(sql))
    assert hangs_on_the_plan(pair, BY_PLAN)
    assert not hangs_on_the_plan(pair, Step("SELECT x FROM t1"))
    pair.close()


def test_cases_with_long_keys_have_keys_as_long_as_innodb_takes_them_and_hashes() -> None:
    longest = hashed = 0
    for seed in range(40):
        generator = Generator(seed, 100, long_keys=True)
        while (step := generator.next()) is not None:
            generator.learn(step, Answer())
            hashed += " USING HASH" in step.sql
        for table in generator._schema.tables.values():
            for index in table.indexes:
                if not index.hashed and index.whole:
                    longest = max(longest, sum(table.column(part.column).type.key_bytes for part in index.parts))
    assert hashed > 20
    assert longest >= 3000
