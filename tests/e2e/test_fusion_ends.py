"""A server of several ends while others change definitions that it has used: it is asked for them to its very end."""

import threading
import time
from collections.abc import Iterator

import pymysql
import pytest
from fusion_clients import Client
from fusion_cluster import DEADLINE_S, Several, two_servers_in
from strata_cli import paths

FOLDER = paths.BUILD / "e2e" / "fusion-ends"
ENDS, TABLES = 5, 6


@pytest.fixture
def cluster() -> Iterator[Several]:
    with two_servers_in(FOLDER) as made:
        yield made


def test_a_server_ends_cleanly_while_it_is_asked_for_names(cluster: Several) -> None:
    """Its threads become the server's own to give a table up, which they cannot once the server takes itself apart."""
    one, two = cluster.servers
    for number in range(TABLES):
        one.query(f"CREATE TABLE test.t{number} (a INT PRIMARY KEY) ENGINE=STRATA", autocommit=True)
    ended = threading.Event()
    done: list[int] = []

    def change(number: int) -> None:
        client = Client(one)
        while not ended.is_set():
            try:
                client.run(f"ALTER TABLE t{number} COMMENT = '{len(done)}'")
                client.run(f"CREATE DATABASE IF NOT EXISTS d{number}", f"DROP DATABASE d{number}")
                client.run(f"CREATE OR REPLACE TRIGGER g{number} BEFORE INSERT ON t{number} FOR EACH ROW SET NEW.a = 1")
                done.append(number)
            except pymysql.MySQLError:
                pass  # It has waited for the server that ends.
        client.close()

    def use(number: int) -> None:
        """Until the server goes."""
        try:
            client = Client(two)
            while True:
                client.run(f"SELECT * FROM t{number}")
        except (pymysql.MySQLError, OSError):
            pass

    changing = [threading.Thread(target=change, args=(number,), daemon=True) for number in range(TABLES)]
    for thread in changing:
        thread.start()
    for _ in range(ENDS):
        using = [threading.Thread(target=use, args=(number,), daemon=True) for number in range(TABLES)]
        for thread in using:
            thread.start()
        time.sleep(0.5)
        assert two.stop()
        for thread in using:
            thread.join(DEADLINE_S)
        assert not [line for line in two.log_lines() if "got signal" in line]
        cluster.launch(two)
        two.wait_ready()
    ended.set()
    for thread in changing:
        thread.join(DEADLINE_S)
    assert len(done) > TABLES
