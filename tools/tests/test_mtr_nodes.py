"""Copies of tests for Galera's clusters: what the list says of them, and what is changed. None of these starts a server."""

from pathlib import Path

import pytest
from strata_cli import mtr, mtr_nodes
from strata_cli.mtr_nodes import Listed, adapted, changed, copy, cut, listed, parse
from strata_cli.shell import StrataError


def test_a_line_names_a_test_and_what_its_copy_does() -> None:
    assert parse("galera.fk\n") == Listed("galera", "fk")
    assert parse("galera.mysql-wsrep#110") == Listed("galera", "mysql-wsrep#110")
    assert parse("galera.view waits") == Listed("galera", "view", waits=True)
    assert parse("galera.roles long waits") == Listed("galera", "roles", waits=True, long=True)
    assert parse("galera.enum until UPDATE t1 SET f1 = 'four'") == Listed("galera", "enum", "UPDATE t1 SET f1 = 'four'")
    assert parse("# galera.fk") is None and parse("  ") is None
    assert Listed("galera_sr", "x").name == "galera_sr.x" and Listed("galera_sr", "x").copy == "galera_sr_strata.x"
    with pytest.raises(StrataError):
        parse("galera.view whatever")


def test_every_listed_test_is_there_once() -> None:
    names = [one.name for one in listed()]
    assert len(names) > 100 and len(set(names)) == len(names) and names == sorted(names)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("CREATE TABLE t (a INT) ENGINE=InnoDB;", "CREATE TABLE t (a INT) ENGINE=STRATA;"),
        ("SET GLOBAL wsrep_slave_threads = 2;", "SET @wsrep_slave_threads = 2;"),
        ("SET SESSION wsrep_trx_fragment_unit=rows;", "SET @wsrep_trx_fragment_unit='rows';"),
        ("SET @@global.wsrep_mode = DEFAULT;", "SET @wsrep_mode = 'DEFAULT';"),
        ("SELECT * FROM INFORMATION_SCHEMA.INNODB_SYS_TABLES;", "SELECT * FROM mtr.innodb_sys_tables;"),
        ("--source suite/galera/include/a.inc", "--source suite/galera_strata/include/a.inc"),
        ("--source ../galera/include/a.inc", "--source ../galera_strata/include/a.inc"),
        ("--source include/galera_cluster.inc", "--source include/galera_cluster.inc"),
        ("SET GLOBAL max_allowed_packet = DEFAULT;", "SET GLOBAL max_allowed_packet = DEFAULT;"),
    ],
)
def test_what_only_galera_and_innodb_have_is_said_otherwise(text: str, wanted: str) -> None:
    assert changed(text) == wanted


def test_a_copy_ends_before_the_statement_or_there_is_none() -> None:
    assert cut("a;\nUPDATE t\n  SET a = 1;\nb;\n", "SET a") == "a;\nUPDATE t\n"
    with pytest.raises(StrataError, match="no line has: SET b"):
        cut("a;\n", "SET b")


def test_only_a_test_waits_where_its_connection_changes() -> None:
    text = "--connection node_1\nSELECT 1;\n  --connection_no\nconnection node_2;\n"
    waiting = Listed("galera", "x", waits=True)
    assert adapted(waiting, text, is_test=True).count("--real_sleep") == 2
    assert adapted(waiting, text, is_test=False) == text
    assert adapted(Listed("galera", "x"), text, is_test=True) == text


def test_a_suite_is_copied_with_our_includes_and_without_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mtr, "TREE", tmp_path)
    suite = tmp_path / "mysql-test" / "suite" / "galera"
    for folder in ("t", "r", "include"):
        (suite / folder).mkdir(parents=True)
    (suite / "suite.pm").write_text("Galera's")
    (suite / "t" / "x.test").write_text("CREATE TABLE t (a INT) ENGINE=InnoDB;\nDROP TABLE t;\nSET wsrep_on = OFF;\n")
    (suite / "t" / "x.cnf").write_text("[mysqld]\n")
    (suite / "r" / "x.result").write_bytes(b"CREATE TABLE t (a INT) ENGINE=InnoDB;\n\xe4\nDROP TABLE t;\n")
    copy([Listed("galera", "x", "DROP TABLE t")])
    target = tmp_path / "mysql-test" / "suite" / "galera_strata"
    assert (target / "t" / "x.test").read_text() == "CREATE TABLE t (a INT) ENGINE=STRATA;\n"
    assert (target / "r" / "x.result").read_bytes() == b"CREATE TABLE t (a INT) ENGINE=STRATA;\n\xe4\n"
    assert not (target / "t" / "x.cnf").exists()
    assert (target / "suite.pm").read_text() == (mtr_nodes.OWN / "suite.pm").read_text()
    assert (target / "include" / "galera_cluster.inc").exists()
    with pytest.raises(StrataError, match="galera_sr"):
        copy([Listed("galera_sr", "x")])
