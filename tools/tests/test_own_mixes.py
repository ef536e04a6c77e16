"""TATP and TPC-C of our own: their mixes, by sysbench without a server, and what is said of tables that do not fit."""

import os
import re
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from strata_cli import paths
from strata_cli.bench import tatp, warehouses
from strata_cli.bench.own_mix import OwnMix, asked, tallied, whole
from strata_cli.bench.tatp import Tatp
from strata_cli.bench.warehouses import Warehouses
from strata_cli.shell import StrataError, capture

SCRIPTS = paths.ROOT / "bench" / "sysbench"
TATP = Tatp(1_000, 3, "STRATA")
TPCC = Warehouses(2, 3, 1_000, "STRATA")
EVENTS = 6_000


def run_alone(mix: OwnMix, *more: str) -> tuple[list[str], Counter[str]]:
    """The statements of one client of the second server, and what it counts."""
    if not shutil.which("sysbench"):
        pytest.skip("no sysbench")
    environment = {**os.environ, "SCRIPT": mix.script, "LUA_PATH": f"{SCRIPTS}/?.lua;;"}
    script = Path(__file__).with_name("own_mix_alone.lua")
    command = ["sysbench", script, "--threads=1", f"--events={EVENTS}", "--time=60", *mix.options(0, 3), *more, "run"]
    said = capture([str(word) for word in command], env=environment, timeout=120).stdout
    return said.splitlines(), tallied(mix, said, EVENTS)


def test_tatp_has_its_mix_on_the_subscribers_of_its_server() -> None:
    statements, counted = run_alone(TATP)
    shares = {"get_subscriber_data": 35, "get_new_destination": 10, "get_access_data": 35, "update_location": 14}
    shares |= {"update_subscriber_data": 2, "insert_call_forwarding": 2, "delete_call_forwarding": 2}
    assert set(shares) == set(TATP.transactions) and sum(shares.values()) == 100
    for name, share in shares.items():
        assert counted[name] == pytest.approx(EVENTS * share / 100, rel=0.35, abs=20), name
    ids = {int(found) for text in statements for found in re.findall(r"\bs_id = (\d+)", text) if "WHERE s_id = 7" not in text}
    numbers = {int(found) for text in statements for found in re.findall(r"sub_nbr = '(\d{15})'", text)}
    assert ids | numbers <= {7, *range(1_001, 2_001)} and len(ids) > 300, "those of the second of three"
    several = ("update_subscriber_data", "insert_call_forwarding", "delete_call_forwarding")
    assert statements.count("BEGIN") == statements.count("COMMIT") == sum(counted[name] for name in several)


def test_tatp_asks_for_anybody_where_it_is_to_share() -> None:
    statements, _ = run_alone(TATP, "--shared=100")
    ids = [int(found) for text in statements for found in re.findall(r"FROM subscriber WHERE s_id = (\d+)", text)]
    for server in range(3):
        assert sum(server * 1_000 < found <= (server + 1) * 1_000 for found in ids) > len(ids) / 5


def test_tpcc_has_its_mix_and_its_remote_shares() -> None:
    statements, counted = run_alone(TPCC)
    for name, share in {"new_order": 45, "payment": 43, "order_status": 4, "delivery": 4, "stock_level": 4}.items():
        assert counted[name] == pytest.approx(EVENTS * share / 100, rel=0.3), name
    assert counted["given_up"] == counted["new_order"] - counted["ordered"]
    assert counted["given_up"] == pytest.approx(counted["new_order"] / 100, rel=0.8)
    assert counted["remote_payments"] == pytest.approx(counted["paid"] * 0.15, rel=0.3)
    assert counted["remote_lines"] == pytest.approx(counted["lines"] / 100, rel=0.4)
    assert counted["lines"] == pytest.approx(10 * counted["ordered"], rel=0.1)
    assert statements.count("ROLLBACK") == counted["given_up"]
    homes = {int(found) for text in statements for found in re.findall(r"SET w_ytd = .* WHERE w_id = (\d+)", text)}
    stocks = {int(found) for text in statements for found in re.findall(r"UPDATE stock .* WHERE s_w_id = (\d+)", text)}
    assert homes == {3, 4} and stocks == {1, 2, 3, 4, 5, 6}, "two of its own, of six"
    items = {int(found) for text in statements for found in re.findall(r" s_i_id = (\d+)$", text)}
    customers = {int(found) for text in statements for found in re.findall(r" c_id = (\d+)$", text)}
    assert items <= set(range(1, 1_001)) and customers <= set(range(1, TPCC.customers + 1))


def test_stocks_are_taken_in_one_order() -> None:
    statements, _ = run_alone(TPCC)
    taken: list[tuple[int, int]] = []
    for text in statements:
        if text == "BEGIN":
            taken = []
        if found := re.search(r"FROM stock WHERE s_w_id = (\d+) AND s_i_id = (\d+) FOR UPDATE", text):
            taken.append((int(found[1]), int(found[2])))
            assert taken == sorted(taken), "or two would wait for each other"


def test_names_are_those_of_the_tables() -> None:
    script = (SCRIPTS / "tpcc.lua").read_text()
    assert "{" + ", ".join(f'"{syllable}"' for syllable in warehouses.SYLLABLES) + "}" in script
    assert f"local DISTRICTS = {warehouses.DISTRICTS}" in script


def test_what_threads_tell_must_be_all_of_it() -> None:
    text = "tally new_order 3\ntally payment 4\ntally cents 100\nSQL statistics:\ntally new_order 2\n"
    assert tallied(TPCC, text, 9) == {"new_order": 5, "payment": 4, "cents": 100}
    with pytest.raises(StrataError, match="the threads tell of 9 transactions, and sysbench of 12"):
        tallied(TPCC, text, 12)


class Tables:
    """What every question is answered with."""

    def __init__(self, mix: OwnMix) -> None:
        self.answers: dict[str, int] = {}
        self.others = 10
        self.mix = mix

    def __call__(self, text: str) -> list[tuple[Any, ...]]:
        return [(Decimal(self.answers.get(text, self.others)),)]


def fitting(tables: Tables, questions: dict[str, str], value: int = 0) -> None:
    tables.answers |= dict.fromkeys(questions.values(), value)


def test_tatp_says_what_is_lost_and_invented() -> None:
    tables = Tables(TATP)
    tables.answers[tatp.UNCHANGED["subscribers"]] = 3_000
    fitting(tables, tatp.FORBIDDEN)
    before = TATP.facts(tables)
    forwardings = tatp.GROWING[tatp.FORWARDED]
    tables.answers[forwardings] = 14
    assert TATP.problems(tables, before, {"inserted": 7, "deleted": 3}) == []
    assert TATP.problems(tables, before, {"inserted": 8, "deleted": 3}) == ["call forwardings: 14, and 15 wanted"]
    tables.answers[tatp.UNCHANGED["checksum of subscribers"]] = 11
    fitting(tables, tatp.FORBIDDEN, 2)
    found = TATP.problems(tables, before, {"inserted": 4})
    assert "checksum of subscribers: 11, and 10 wanted" in found and len(found) == 1 + len(tatp.FORBIDDEN)


def test_tpcc_says_which_condition_is_broken_and_what_was_lost() -> None:
    tables = Tables(TPCC)
    fitting(tables, warehouses.CONDITIONS)
    before = TPCC.facts(tables)
    assert TPCC.problems(tables, before, {}) == []
    condition = "3: new orders have no gaps"
    tables.answers[warehouses.CONDITIONS[condition]] = 2
    assert TPCC.problems(tables, before, {}) == [f"condition {condition}: not so 2 times"]
    fitting(tables, warehouses.CONDITIONS)
    found = TPCC.problems(tables, before, {"ordered": 1, "lines": 8, "quantity": 40})
    assert "orders: 10, and 11 wanted" in found and "new orders: 10, and 11 wanted" in found
    assert "order lines: 10, and 18 wanted" in found and "pieces taken from stocks: 10, and 50 wanted" in found
    numbers = sorted(text[0] for text in warehouses.CONDITIONS)
    assert numbers == ["1", "2", "2", "3", "4"]
    counted = {name for _, name in warehouses.GROWING.values()}
    script = (SCRIPTS / "tpcc.lua").read_text()
    assert [name for name in counted if f'mix.count("{name}", ' not in script] == []


def test_new_orders_a_minute_are_those_that_were_committed() -> None:
    counted = {"new_order": 45, "payment": 43, "order_status": 4, "delivery": 4, "stock_level": 4, "ordered": 44}
    assert TPCC.rate(10.0, counted) == pytest.approx(264.0)
    assert TPCC.rate(10.0, {}) == 0.0 and TATP.rate(10.0, {}) == 10.0


def test_a_sum_of_nothing_is_none_and_of_parts_an_error() -> None:
    assert (whole(None), whole(Decimal("12.00"))) == (0, 12)
    with pytest.raises(ValueError, match="no whole number"):
        whole(Decimal("12.50"))
    assert asked(lambda _: [(3,)], {"a": "?"}) == {"a": 3}


def test_tables_are_made_for_all_servers() -> None:
    asked_for: list[str] = []

    def ask(text: str) -> list[tuple[Any, ...]]:
        asked_for.append(text)
        return []

    Tatp(4_000, 3, "STRATA").load(ask)
    filled = [re.search(r"FROM (seq_\d+_to_\d+)$", text) for text in asked_for if text.startswith("INSERT INTO subscriber")]
    assert [found[1] for found in filled if found] == ["seq_1_to_5000", "seq_5001_to_10000", "seq_10001_to_12000"]
    assert sum("ENGINE=STRATA" in text for text in asked_for) == 4
    asked_for.clear()
    Warehouses(2, 3, 1_000, "STRATA").load(ask)
    assert sum("ENGINE=STRATA" in text for text in asked_for) == 9
    assert sum(text.startswith("INSERT INTO warehouse VALUES") for text in asked_for) == 6
    assert sum(text.startswith("INSERT INTO order_line") for text in asked_for) == 60
