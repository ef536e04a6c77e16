"""The stress of several servers: its catalogue is well-formed, and what is planted is found."""

import random
from collections import Counter
from pathlib import Path

import pymysql
import pytest
from stress import agree, catalogue, logs, schema
from stress.errors import ANY, CONNECTION_LOST, NAMES
from stress.journal import SAME_TOLD, Journal
from stress.money import Ledger
from stress.sessions import Session, Shared, names_of


def test_every_kind_can_be_drawn_and_its_errors_have_names() -> None:
    rng = random.Random(1)
    assert len(catalogue.KINDS) > 300
    for kind in catalogue.KINDS:
        for statement in kind.statements(rng, 7, "/tmp/rows.csv"):
            assert statement == statement.strip() and statement, kind.text
            assert " -- " not in statement and ";;" not in statement, kind.text
        assert kind.errors <= NAMES.keys(), (kind.text, sorted(kind.errors - NAMES.keys()))
        assert not kind.errors & CONNECTION_LOST, kind.text
    assert NAMES.keys() >= ANY
    twice = [text for text, count in Counter(kind.text for kind in catalogue.KINDS).items() if count > 1]
    assert twice == []


def test_every_group_is_drawn_and_shares_are_of_groups() -> None:
    rng = random.Random(2)
    assert {catalogue.draw(rng).group for _ in range(2000)} == set(catalogue.GROUPS)
    assert catalogue.SHARES.keys() <= catalogue.GROUPS.keys()


def test_rows_that_are_counted_are_changed_by_no_statement_of_the_catalogue() -> None:
    for kind in catalogue.KINDS:
        for statement in kind.text.split(catalogue.BETWEEN):
            changes = statement.split()[0] in ("INSERT", "UPDATE", "DELETE", "REPLACE", "TRUNCATE", "DROP", "LOAD")
            assert not (changes and "bank." in statement), statement


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.log")


def judge(journal: Journal, code: int, text: str = "text", excused: bool = False) -> list[str]:
    shared = Shared([], 1, journal, lambda _, __: excused)
    shared.judge("client", None, "SELECT 1", pymysql.err.OperationalError(code, text), ANY | {1146})
    return journal.problems


def test_an_error_that_is_not_listed_is_a_problem_unless_a_fault_excuses_it(journal: Journal) -> None:
    assert judge(journal, 1146) == [] and judge(journal, 1213) == []
    assert judge(journal, 1296, excused=True) == []
    assert "1296" in judge(journal, 1296)[0]
    assert "2013" in judge(journal, 2013)[1]  # nobody has killed it: it crashed


def test_an_error_that_another_was_said_in_place_of_may_be_excused(journal: Journal) -> None:
    session = Session.__new__(Session)
    session.hidden = [(1296, "fenced")]
    shared = Shared([], 1, journal, lambda code, _: code == 1296)
    shared.judge("client", session, "SELECT 1", pymysql.err.OperationalError(1356, "a view"), ANY)
    assert journal.problems == []
    session.hidden = []
    shared.judge("client", session, "SELECT 1", pymysql.err.OperationalError(1356, "a view"), ANY)
    assert "1356" in journal.problems[0]


def test_the_same_problem_is_told_a_few_times_and_counted_always(journal: Journal) -> None:
    for number in range(10):
        journal.answered("client", f"SELECT {number}", 0, "", 0.0)
        journal.wrong("too long", f"statement {number}", "client")
    assert len(journal.problems) == SAME_TOLD
    assert journal.totals() == {"too long": 10}
    assert "SELECT 0" in journal.problems[0]


def test_lost_and_invented_transfers_are_found() -> None:
    ledger = Ledger(acknowledged={1, 2, 3}, unknown={4})
    assert ledger.problems({1, 2, 3}) == ledger.problems({1, 2, 3, 4}) == []
    assert "lost: [2]" in ledger.problems({1, 3})[0]
    assert "nobody committed: [5]" in ledger.problems({1, 2, 3, 5})[0]


def test_servers_that_differ_are_found() -> None:
    same = {"tables": "s | t\ns | u", "SHOW CREATE TABLE s.t": "a"}
    assert agree.differences({"one": same, "two": dict(same)}) == []
    other = {"tables": "s | t", "SHOW CREATE TABLE s.t": "a", "SHOW GRANTS": "x"}
    found = agree.differences({"one": same, "two": other})
    assert [text.splitlines()[0] for text in found] == ["SHOW GRANTS", "tables"]
    assert "one: s | u" in found[1]


BAD_LINES = (
    "mariadbd: 2026-11-27 [ERROR] mariadbd got signal 11 ;",
    "[ERROR] STRATA: this should not have happened",
    "Assertion failed",
)
FENCED = "[ERROR] STRATA: log stream 2 was taken over by compute-3: this node answers nothing any more; stop it"


def test_lines_of_logs_need_an_explanation() -> None:
    assert len(logs.bad_lines("one", BAD_LINES, kills=True)) == len(BAD_LINES)
    assert logs.bad_lines("one", ["[Note] ready", "[ERROR] Event Scheduler: [root@%][s.e1] Deadlock found"], kills=False) == []
    taken = "[ERROR] Event Scheduler: [root@localhost][s.e1] Duplicate entry '17' for key 'PRIMARY'"
    assert logs.bad_lines("one", [taken], kills=False) == [], "another client has given that number to a row in the same moment"
    assert logs.bad_lines("one", [taken.replace("PRIMARY", "u")], kills=False) != []
    assert logs.bad_lines("one", [FENCED], kills=True) == [] != logs.bad_lines("one", [FENCED], kills=False)


def test_names_of_prepared_transactions() -> None:
    assert names_of([(1, 6, 0, "left-1"), (1, 6, 0, "'left-2'")]) == ["left-1", "left-2"]


def test_the_tables_are_made_in_databases_of_their_own() -> None:
    assert {statement.split()[2].split(".")[0] for statement in (*schema.WILD, *schema.BANK) if "CREATE" in statement} == {
        "s",
        "bank",
    }
