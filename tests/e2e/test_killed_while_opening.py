"""KILL QUERY while a statement opens a table with triggers ends that statement, and spoils nothing for others.

The server parses nothing for a connection that is killed, and keeps the open table: with InnoDB those who get it from the cache
are told of triggers that cannot be parsed, until somebody flushes it.
"""

import threading
import time

import pymysql
from strata_cli.server import Server

INTERRUPTED = 1317
SECONDS = 8.0
TRIGGERS = 5


def test_a_killed_statement_leaves_no_table_with_broken_triggers(server: Server) -> None:
    server.query("CREATE TABLE test.t (a INT AUTO_INCREMENT PRIMARY KEY, b INT) ENGINE=STRATA")
    for number in range(TRIGGERS):
        server.query(f"CREATE TRIGGER test.g{number} BEFORE INSERT ON test.t FOR EACH ROW SET NEW.b = NEW.b + 1")
    until = time.monotonic() + SECONDS
    wrong: list[str] = []
    done: list[int] = []
    victims: list[int] = []

    def work(statement: str, may: tuple[int, ...], is_victim: bool) -> None:
        connection = server.connect(autocommit=True)
        if is_victim:
            victims.append(int(connection.thread_id()))  # type: ignore[no-untyped-call]
        with connection.cursor() as cursor:
            while time.monotonic() < until:
                try:
                    cursor.execute(statement)
                    done.append(1)
                except pymysql.MySQLError as error:
                    if error.args[0] not in may:
                        wrong.append(str(error))

    def kill() -> None:
        connection = server.connect(autocommit=True)
        with connection.cursor() as cursor:
            while time.monotonic() < until:
                for victim in victims:
                    cursor.execute(f"KILL QUERY {victim}")
                time.sleep(0.0007)

    insert = "INSERT INTO test.t (b) VALUES (1)"
    # The server gives an INSERT's table back before it forgets the KILL, an UPDATE's afterwards.
    killed = (insert, insert, "UPDATE test.t SET b = b WHERE a = 1", "UPDATE test.t SET b = b WHERE a = 1")
    workers = [threading.Thread(target=work, args=(statement, (INTERRUPTED,), True), daemon=True) for statement in killed]
    workers += [threading.Thread(target=work, args=(insert, (), False), daemon=True)]
    workers += [threading.Thread(target=work, args=("FLUSH TABLES test.t", (), False), daemon=True)]
    workers += [threading.Thread(target=kill, daemon=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(SECONDS + 30)
    assert done and wrong == []
    assert {row for row in server.query("SELECT DISTINCT b FROM test.t")} == {(1 + TRIGGERS,)}
