"""Statistics of tables that several servers write: each plans with the same numbers, whoever has loaded, analyzed, or was away;
and what goes wrong with them stops nobody.
"""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from fusion_cluster import DEADLINE_S, Several, several_in
from strata_cli import paths
from strata_cli.server import Server
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "fusion-statistics"
PAGE_BYTES = 16384
SOON_S = 15.0  # A second or two on an idle machine.
Rows = list[tuple[Any, ...]]

MAKE = (
    "CREATE TABLE shop.t (id INT PRIMARY KEY AUTO_INCREMENT, a INT, b INT, c VARCHAR(50), KEY (a), KEY ab (a, b)) ENGINE=STRATA"
)
LOAD = "INSERT INTO shop.t (a, b, c) SELECT seq % 100, seq % 1000, REPEAT('x', 20) FROM shop.seq_1_to_{rows}"
QUERIES = (
    "SELECT c FROM shop.t",
    "SELECT * FROM shop.t WHERE a = 5 AND b = 7",
    "SELECT COUNT(*) FROM shop.t x JOIN shop.t y USING (a) WHERE x.id < 20",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Several]:
    with several_in(FOLDER, faults=True, shares_accounts=True) as made:
        run(made.add(), "CREATE DATABASE shop")
        for _ in range(2):
            made.add()
        for server in made.servers:
            has_database(server)
        yield made


@pytest.fixture
def servers(cluster: Several) -> Iterator[list[Server]]:
    run(cluster.servers[0], "DROP TABLE IF EXISTS shop.t, shop.other", MAKE)
    yield cluster.servers
    for server in cluster.servers:
        cluster.points_file(server).unlink(missing_ok=True)


def run(server: Server, *statements: str) -> Rows:
    rows: Rows = []
    with closing(server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            rows = list(cursor.fetchall())
    return rows


def arm(cluster: Several, server: Server, spec: str) -> None:
    file = cluster.points_file(server)
    made = file.with_suffix(".new")
    made.write_text(spec + "\n")
    made.rename(file)


def plans(server: Server) -> list[Rows]:
    return [run(server, "EXPLAIN " + query) for query in QUERIES]


def told(server: Server, table: str = "t") -> tuple[Rows, Rows, Rows]:
    """What a server tells of a table: rows, values of each index, as the optimiser has them; and pages of its indexes."""
    of_table = f"WHERE table_schema = 'shop' AND table_name = '{table}'"
    sizes = run(server, f"SELECT table_rows, index_length FROM information_schema.tables {of_table}")
    values = run(
        server, f"SELECT index_name, seq_in_index, cardinality FROM information_schema.statistics {of_table} ORDER BY 1, 2"
    )
    shown = [(row[2], row[3], row[6]) for row in run(server, f"SHOW INDEX FROM shop.{table}")]
    return sizes, values, shown


def has_database(server: Server) -> None:
    assert wait_until(lambda: run(server, "SHOW DATABASES LIKE 'shop'") != [], DEADLINE_S)


def has_read(servers: list[Server], before: list[int]) -> bool:
    """Each has taken something over since; they look when they are asked."""
    for server in servers:
        plans(server)
    return all(status(server, "statistics_read") > one for server, one in zip(servers, before, strict=True))


def bytes_of(server: Server) -> int:
    of_table = "WHERE table_schema = 'shop' AND table_name = 't'"
    return int(run(server, f"SELECT data_length FROM information_schema.tables {of_table}")[0][0])


def rows_of(server: Server, table: str = "t") -> int:
    return int(told(server, table)[0][0][0])


def status(server: Server, name: str) -> int:
    return int(run(server, f"SHOW GLOBAL STATUS LIKE 'Strata_{name}'")[0][1])


def agree(servers: list[Server], rows: int, table: str = "t") -> None:
    """All tell the same, and about the truth."""
    began = time.monotonic()

    def same() -> bool:
        all_told = [told(server, table) for server in servers]
        return all(one == all_told[0] for one in all_told) and abs(int(all_told[0][0][0][0]) - rows) <= rows * 0.3 + 1

    assert wait_until(same, SOON_S, every_s=0.1), "\n".join(str(told(server, table)) for server in servers)
    if table == "t":
        assert wait_until(lambda: all(plans(server) == plans(servers[0]) for server in servers), SOON_S, every_s=0.1), [
            plans(server) for server in servers
        ]
        # A server counts pages that it has set aside for rows to come as free, others as used.
        sizes = [bytes_of(server) for server in servers]
        assert max(sizes) - min(sizes) <= 64 * PAGE_BYTES, sizes
    print(f"after {time.monotonic() - began:.2f} s: {told(servers[0], table)}")


def test_rows_loaded_on_one_server_are_known_to_all(servers: list[Server]) -> None:
    for server in servers:
        assert rows_of(server) == 0
    run(servers[0], LOAD.format(rows=20000))
    agree(servers, 20000)
    assert plans(servers[2])[1][0][5] == "ab"  # With what it knew before it would take the other index.
    run(servers[1], LOAD.format(rows=20000))
    agree(servers, 40000)
    run(servers[2], "DELETE FROM shop.t WHERE id % 4 <> 0")
    agree(servers, 10000)
    # A few rows, a few seconds.
    before = rows_of(servers[0])
    run(servers[1], "INSERT INTO shop.t (a) VALUES (1), (2), (3)")
    agree(servers, before + 3)
    assert rows_of(servers[0]) == before + 3


def test_analyze_on_one_server_is_known_to_all(servers: list[Server]) -> None:
    run(servers[0], LOAD.format(rows=20000))
    agree(servers, 20000)
    read = [status(server, "statistics_read") for server in servers]
    for server in servers:
        run(server, "ANALYZE TABLE shop.t")
        agree(servers, 20000)
    assert wait_until(lambda: has_read(servers, read), SOON_S)
    assert [status(server, "statistics_errors") for server in servers] == [0, 0, 0]


def test_what_all_do_at_once_adds_up(servers: list[Server]) -> None:
    """Loads, deletes, samples and looks on all servers: nothing is counted twice, or never, for long."""

    def work(number: int) -> None:
        for turn in range(12):
            run(servers[number], LOAD.format(rows=1000))
            run(servers[number], f"DELETE FROM shop.t WHERE id % 7 = {turn % 7} LIMIT 300")
            told(servers[number])
            if turn % 4 == number:
                run(servers[number], "ANALYZE TABLE shop.t")

    with ThreadPoolExecutor(len(servers)) as pool:
        for done in [pool.submit(work, number) for number in range(len(servers))]:
            done.result()
    agree(servers, int(run(servers[0], "SELECT COUNT(*) FROM shop.t")[0][0]))


def test_ddl_takes_its_statistics_along_or_begins_anew(servers: list[Server]) -> None:
    run(servers[0], LOAD.format(rows=20000))
    agree(servers, 20000)
    run(servers[1], "ALTER TABLE shop.t ADD KEY cb (c, b)")
    agree(servers, 20000)
    assert {row[0] for row in told(servers[2])[2]} == {"PRIMARY", "a", "ab", "cb"}
    run(servers[2], "ALTER TABLE shop.t DROP KEY a, ADD COLUMN d BIGINT DEFAULT 7, ALGORITHM=COPY")
    agree(servers, 20000)
    run(servers[0], "RENAME TABLE shop.t TO shop.other")
    agree(servers, 20000, "other")
    run(servers[1], "RENAME TABLE shop.other TO shop.t", "TRUNCATE TABLE shop.t")
    agree(servers, 0)
    run(servers[2], LOAD.format(rows=3000))
    agree(servers, 3000)
    run(servers[0], "DROP TABLE shop.t", MAKE)
    agree(servers, 0)


def test_a_restarted_server_and_a_new_one_know_them(cluster: Several, servers: list[Server]) -> None:
    run(servers[0], LOAD.format(rows=20000))
    agree(servers, 20000)
    run(servers[1], "ANALYZE TABLE shop.t")
    agree(servers, 20000)
    before = told(servers[1])
    servers[2].kill()
    cluster.start(servers[2])
    assert told(servers[2]) == before
    servers[0].stop()
    cluster.start(servers[0])
    assert told(servers[0]) == before
    added = cluster.add()
    try:
        has_database(added)
        assert told(added) == before
        assert plans(added) == plans(servers[1])
        agree(cluster.servers, 20000)
    finally:
        cluster.servers.remove(added)
        added.stop()


def test_statistics_of_tables_that_are_gone_are_collected(cluster: Several, servers: list[Server]) -> None:
    run(servers[1], LOAD.format(rows=2000))
    agree(servers, 2000)
    servers[2].stop()

    def collected(of: list[Server]) -> int:
        return sum(status(server, "statistics_collected") for server in of)

    before = collected(servers[:2])
    run(servers[0], "CREATE TABLE shop.other LIKE shop.t", "ANALYZE TABLE shop.other", "DROP TABLE shop.other")
    cluster.start(servers[2])  # Some seconds after its start it looks for them, if nobody else has.
    assert wait_until(lambda: collected(servers) > before, DEADLINE_S)
    agree(servers, 2000)


def test_statistics_that_cannot_be_written_stop_nobody(cluster: Several, servers: list[Server]) -> None:
    run(servers[0], LOAD.format(rows=2000))
    agree(servers, 2000)
    errors = status(servers[0], "statistics_errors")
    arm(cluster, servers[0], "statistics_before_commit:1:fail")
    run(servers[0], LOAD.format(rows=20000))
    run(servers[0], "ANALYZE TABLE shop.t")
    assert run(servers[0], "SELECT COUNT(*) FROM shop.t") == [(22000,)]
    assert wait_until(lambda: status(servers[0], "statistics_errors") > errors, SOON_S)
    assert abs(rows_of(servers[0]) - 22000) < 22000 * 0.3
    # Others may, whoever has loaded.
    run(servers[1], "ANALYZE TABLE shop.t")
    agree(servers[1:], 22000)
    run(servers[2], "ALTER TABLE shop.t ADD KEY cb (c, b)")  # Nothing blocks DDL.
    cluster.points_file(servers[0]).unlink()
    agree(servers, 22000)


def test_a_server_killed_while_it_writes_statistics_stops_nobody(cluster: Several, servers: list[Server]) -> None:
    run(servers[1], LOAD.format(rows=2000))
    agree(servers, 2000)
    arm(cluster, servers[0], "statistics_before_commit:1:crash")
    with contextlib.suppress(Exception):  # It may be killed before it answers.
        run(servers[0], LOAD.format(rows=20000))
    assert wait_until(lambda: servers[0].pid() is None, SOON_S)
    began = time.monotonic()
    for server in servers[1:]:
        assert len(plans(server)) == len(QUERIES)
        run(server, "ANALYZE TABLE shop.t")
    run(servers[1], "CREATE TABLE shop.other LIKE shop.t", "DROP TABLE shop.other")
    print(f"others went on after {time.monotonic() - began:.2f} s")
    cluster.points_file(servers[0]).unlink()
    cluster.start(servers[0])
    rows = int(run(servers[0], "SELECT COUNT(*) FROM shop.t")[0][0])
    run(servers[2], "ANALYZE TABLE shop.t")
    agree(servers, rows)
    run(servers[0], "DROP TABLE shop.t", MAKE)


# --- what ANALYZE TABLE ... PERSISTENT has collected, which the server itself keeps ---


COLLECTED = ("table_stats", "column_stats", "index_stats")


def collected(server: Server) -> dict[str, Rows]:
    """Of tables of `shop`, by table of `mysql`."""
    return {name: run(server, f"SELECT * FROM mysql.{name} WHERE db_name = 'shop' ORDER BY 1, 2, 3") for name in COLLECTED}


def of_tables(server: Server) -> set[str]:
    return {row[1] for rows in collected(server).values() for row in rows}


def believed(server: Server, table: str = "t") -> int:
    """Rows that the optimiser expects of a table."""
    return int(run(server, f"EXPLAIN EXTENDED SELECT c FROM shop.{table}")[0][8])


def test_what_analyze_persistent_collects_is_everybodys(servers: list[Server]) -> None:
    run(servers[0], LOAD.format(rows=2000))
    for server in servers:
        believed(server)  # It has the definition in use.
    run(servers[1], "ANALYZE TABLE shop.t PERSISTENT FOR ALL")
    known = collected(servers[1])
    assert [row[2] for row in known["table_stats"]] == [2000]
    assert all(known.values())
    for server in servers:
        assert collected(server) == known
        assert wait_until(lambda server=server: believed(server) == 2000, SOON_S)  # type: ignore[misc]
    run(servers[0], "INSERT INTO shop.t (a) SELECT seq FROM shop.seq_1_to_500", "ANALYZE TABLE shop.t PERSISTENT FOR ALL")
    for server in servers:
        assert wait_until(lambda server=server: believed(server) == 2500, SOON_S)  # type: ignore[misc]


def test_ddl_anywhere_takes_what_was_collected_along(servers: list[Server]) -> None:
    run(servers[0], LOAD.format(rows=1000))
    run(servers[1], "ANALYZE TABLE shop.t PERSISTENT FOR ALL")
    run(servers[2], "RENAME TABLE shop.t TO shop.other")
    assert of_tables(servers[0]) == {"other"}
    assert believed(servers[1], "other") == 1000
    run(servers[0], "ALTER TABLE shop.other DROP COLUMN c, CHANGE b e INT")
    assert {row[2] for row in collected(servers[1])["column_stats"]} == {"id", "a", "e"}
    run(servers[1], "RENAME TABLE shop.other TO shop.t")
    run(servers[0], "DROP TABLE shop.t", "CREATE TABLE shop.t (id INT PRIMARY KEY, c VARCHAR(9), a INT) ENGINE=STRATA")
    for server in servers:
        assert of_tables(server) == set()
        assert run(server, "SELECT * FROM shop.t WHERE a > 3 AND c = 'x'", "SHOW WARNINGS") == []
        assert believed(server) <= 10


def test_collecting_and_ddl_on_all_servers_at_once(servers: list[Server]) -> None:
    def work(number: int) -> None:
        name = f"shop.own_{number}"
        with closing(servers[number].connect(autocommit=True)) as connection, connection.cursor() as cursor:
            for turn in range(6):
                cursor.execute(f"CREATE TABLE {name} LIKE shop.t")
                cursor.execute(f"INSERT INTO {name} (a, b) SELECT seq, seq FROM shop.seq_1_to_{100 * turn + 100}")
                cursor.execute(f"ANALYZE TABLE {name} PERSISTENT FOR ALL")
                assert [row[3] for row in cursor.fetchall()][-1] == "OK"
                cursor.execute(f"ALTER TABLE {name} DROP COLUMN c, RENAME TO {name}_b")
                cursor.execute("ANALYZE TABLE shop.t PERSISTENT FOR ALL")
                assert [row[3] for row in cursor.fetchall()][-1] == "OK"
                cursor.execute(f"DROP TABLE {name}_b")

    run(servers[0], LOAD.format(rows=500))
    with ThreadPoolExecutor(len(servers)) as pool:
        for done in [pool.submit(work, number) for number in range(len(servers))]:
            done.result()
    for server in servers:
        assert of_tables(server) == {"t"}
        assert [row[2] for row in collected(server)["table_stats"]] == [500]


def test_a_server_killed_while_it_collects_leaves_nothing_that_blocks(cluster: Several, servers: list[Server]) -> None:
    run(servers[0], LOAD.format(rows=5000))
    with ThreadPoolExecutor(1) as pool:
        collecting = pool.submit(run, servers[2], *["ANALYZE TABLE shop.t PERSISTENT FOR ALL"] * 50)
        wait_until(lambda: of_tables(servers[0]) == {"t"}, SOON_S)
        servers[2].kill()
        with contextlib.suppress(Exception):
            collecting.result()
    run(servers[1], "ANALYZE TABLE shop.t PERSISTENT FOR ALL")
    assert [row[2] for row in collected(servers[0])["table_stats"]] == [5000]
    run(servers[0], "DROP TABLE shop.t", MAKE)
    assert of_tables(servers[1]) == set()
    cluster.start(servers[2])
    assert of_tables(servers[2]) == set()
