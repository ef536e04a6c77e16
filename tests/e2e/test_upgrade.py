"""Databases that earlier versions have made (tests/upgrade): they open, have what they had, and can be worked with."""

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
from strata_cli import paths, restore_cmd
from strata_cli.cluster import FIRST_COMPUTE, Cluster
from strata_cli.server import Server, Settings, choose_port
from upgrade.contents import OF_CLUSTER, PREPARED, ROWS, SCHEMA, SMALL, facts

FOLDERS = paths.ROOT / "tests" / "upgrade" / "folders"
ARCHIVES = sorted(path for path in FOLDERS.glob("*.tar.xz") if path.name.endswith(("-clean.tar.xz", "-killed.tar.xz")))
OF_CLUSTERS = sorted(set(FOLDERS.glob("*.tar.xz")) - set(ARCHIVES))
PLACE = paths.BUILD / "e2e" / "upgrade-cluster"


def test_there_are_some() -> None:
    assert ARCHIVES and OF_CLUSTERS
    for archive in (*ARCHIVES, *OF_CLUSTERS):
        assert archive.stat().st_size < 1_000_000, "archives are kept for good"


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def unpacked(request: pytest.FixtureRequest) -> Iterator[tuple[Server, str]]:
    archive: Path = request.param
    name = archive.name.removesuffix(".tar.xz")
    server = Server(paths.BUILD / "e2e" / f"upgrade-{name}")
    server.wipe()
    server.create()
    with tarfile.open(archive) as packed:
        packed.extractall(server.datadir, filter="data")
    try:
        server.start(Settings(port=choose_port(None, 23560), options=SMALL))
        assert server.has_strata(), server.log_tail()
        yield server, name
    finally:
        server.kill()
        shutil.rmtree(server.data, ignore_errors=True)


@pytest.fixture(params=OF_CLUSTERS, ids=lambda path: path.name.removesuffix(".tar.xz"))
def restored(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, str]]:
    """Of a backup of a cluster."""
    archive: Path = request.param
    shutil.rmtree(PLACE, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(PLACE / "backup", filter="data")
    restore_cmd.restore(PLACE / "backup", PLACE / "data", as_json=True)
    cluster = Cluster(PLACE / "data")
    cluster.compute_options = OF_CLUSTER
    try:
        yield cluster, archive.name.removesuffix(".tar.xz")
    finally:
        cluster.kill()
        cluster.wipe()
        shutil.rmtree(PLACE, ignore_errors=True)


def run(server: Server, *statements: str) -> None:
    for sql in statements:
        server.query(sql, database=SCHEMA, autocommit=True)


def expect_sound(server: Server, tables: list[str]) -> None:
    for table in set(tables) - {"counter"}:  # sequences have no CHECK TABLE
        assert server.query(f"CHECK TABLE {table} EXTENDED", database=SCHEMA)[-1][3] == "OK", table


def test_a_cluster_is_restored_with_all_that_was_in_it(restored: tuple[Cluster, str]) -> None:
    cluster, name = restored
    cluster.start(cluster.settings().profile)
    server = cluster.computes[FIRST_COMPUTE]
    expected = json.loads((FOLDERS / f"{name}.json").read_text())
    assert facts(server) == expected
    expect_sound(server, list(expected))
    run(
        server,
        "UPDATE texts SET v = 'again' WHERE id = 1",
        "ALTER TABLE times ADD INDEX added (t)",
        "DELETE FROM large WHERE id = 5",
    )
    after = facts(server)
    assert cluster.stop()
    cluster.start(cluster.settings().profile)
    assert facts(server) == after
    expect_sound(server, list(after))


def test_it_opens_with_all_that_was_in_it(unpacked: tuple[Server, str]) -> None:
    server, name = unpacked
    expected = json.loads((FOLDERS / f"{name}.json").read_text())
    killed = name.endswith("-killed")
    prepared = [row[3] for row in server.query("XA RECOVER")]
    assert prepared == ([PREPARED.encode()] if killed else [])
    if killed:
        found = facts(server)
        touched = {"branches", "large"}  # by the prepared transaction, whose rows are nobody's yet
        assert {table for table in expected if found[table] != expected[table]} <= touched
        run(server, f"XA COMMIT '{PREPARED}'")
        assert server.query("SELECT COUNT(*), SUM(a) FROM branches", database=SCHEMA) == [(20, 20)]
        assert server.query("SELECT LENGTH(body) FROM large WHERE id = 900", database=SCHEMA) == [(100_000,)]
        run(server, "UPDATE branches SET a = 0", "DELETE FROM large WHERE id = 900")
    assert facts(server) == expected
    expect_sound(server, list(expected))

    run(
        server,
        "INSERT INTO numbers (t) VALUES (1)",
        "UPDATE texts SET v = 'again' WHERE id = 1",
        "DELETE FROM large WHERE id = 5",
        "ALTER TABLE times ADD INDEX added (t)",
        "ALTER TABLE computed ADD COLUMN further INT DEFAULT 5",
        "ALTER TABLE no_key FORCE",
        # A parent that may be older than foreign keys.
        "CREATE TABLE young (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES renamed (id)) ENGINE=STRATA",
        "INSERT INTO young VALUES (1, 7)",
    )
    for refused in ("INSERT INTO young VALUES (2, 70000)", "DELETE FROM renamed WHERE id = 7"):
        with pytest.raises(pymysql.err.IntegrityError):
            run(server, refused)
    assert server.query("SELECT MAX(id) FROM numbers", database=SCHEMA)[0][0] > ROWS
    assert server.query("SELECT NEXT VALUE FOR counter", database=SCHEMA)[0][0] > 100
    after = facts(server)
    assert server.stop()
    server.start(server.settings())
    assert facts(server) == after
    expect_sound(server, list(after))
