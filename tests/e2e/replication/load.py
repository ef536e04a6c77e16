"""What the clients of the primary do: transactions that conflict a lot when a replica applies them side by side."""

import random
import threading
from collections.abc import Callable

import pymysql
from strata_cli.server import Server

DATABASE = "replicated"
CLIENTS = 4
HOT_ROWS = 3
ROWS = 60
TABLES = {
    "hot": "id INT PRIMARY KEY, n INT NOT NULL",
    "keyed": "id INT PRIMARY KEY, u INT, s VARCHAR(40), UNIQUE (u), KEY (s)",
    "bare": "a INT, b VARCHAR(20)",  # No key: the replica looks for the row.
    "counted": "id INT AUTO_INCREMENT PRIMARY KEY, big TEXT",
}
RECONNECT_S = 0.1


def create(primary: Server) -> None:
    primary.query(f"CREATE DATABASE {DATABASE}")
    for name, columns in TABLES.items():
        primary.query(f"CREATE TABLE {name} ({columns})", database=DATABASE)
    hot = ", ".join(f"({number}, 0)" for number in range(HOT_ROWS))
    primary.query(f"INSERT INTO hot VALUES {hot}", database=DATABASE, autocommit=True)


def hot(rng: random.Random) -> list[str]:
    return [f"UPDATE hot SET n = n + 1 WHERE id = {number}" for number in rng.sample(range(HOT_ROWS), rng.randint(1, 2))]


def keyed(rng: random.Random) -> list[str]:
    key, other = rng.randrange(ROWS), rng.randrange(ROWS)
    return [
        rng.choice(
            (
                f"INSERT INTO keyed VALUES ({key}, {other}, 's{other}')",
                f"DELETE FROM keyed WHERE id = {key}",
                f"UPDATE keyed SET s = CONCAT('x', {other}) WHERE id BETWEEN {key} AND {key + 5}",
                f"UPDATE keyed SET u = {other} WHERE u = {key}",
                f"REPLACE INTO keyed VALUES ({key}, {other}, 'r')",
                f"INSERT INTO keyed VALUES ({key}, {other}, 'd') ON DUPLICATE KEY UPDATE s = CONCAT('d', {other})",
            )
        )
    ]


def bare(rng: random.Random) -> list[str]:
    a = rng.randrange(8)
    if rng.random() < 0.55:
        return [f"INSERT INTO bare VALUES ({a}, 'b{rng.randrange(3)}')"]
    return [rng.choice((f"DELETE FROM bare WHERE a = {a} LIMIT 1", f"UPDATE bare SET b = 'u' WHERE a = {a} LIMIT 1"))]


def counted(rng: random.Random) -> list[str]:
    if rng.random() < 0.2:
        return ["DELETE FROM counted ORDER BY id LIMIT 5"]
    return [f"INSERT INTO counted (big) VALUES (REPEAT('c', {rng.choice((10, 300, 20_000))}))"]


MAKERS: tuple[Callable[[random.Random], list[str]], ...] = (hot, hot, keyed, keyed, bare, counted)


class Clients:
    """They go on through every kind of error; what they have been told does not matter here, only that both servers agree."""

    def __init__(self, primary: Server, seed: int) -> None:
        self._primary = primary
        self._stopping = threading.Event()
        self.transactions = [0] * CLIENTS
        self._threads = [
            threading.Thread(target=self._run, args=(number, random.Random(f"{seed}/{number}"))) for number in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int, rng: random.Random) -> None:
        while not self._stopping.is_set():
            try:
                with self._primary.connect(database=DATABASE, connect_timeout=5) as connection, connection.cursor() as cursor:
                    while not self._stopping.is_set():
                        self._transaction(cursor, rng)
                        self.transactions[number] += 1
            except (pymysql.MySQLError, OSError):
                self._stopping.wait(RECONNECT_S)

    @staticmethod
    def _transaction(cursor: "pymysql.cursors.Cursor", rng: random.Random) -> None:
        statements = [statement for _ in range(rng.randint(1, 3)) for statement in rng.choice(MAKERS)(rng)]
        try:
            cursor.execute("BEGIN")
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("ROLLBACK" if rng.random() < 0.05 else "COMMIT")
        except (pymysql.err.IntegrityError, pymysql.err.OperationalError) as error:
            if error.args[0] not in (1062, 1205, 1213):  # a duplicate, a wait, a deadlock
                raise
            cursor.execute("ROLLBACK")
