"""The load: sysbench at full speed, crowds of connections that use many tables, and readers that stay a while."""

import random
import threading
from abc import ABC, abstractmethod
from contextlib import ExitStack

from strata_cli.bench.servers import database
from strata_cli.bench.sysbench import Bench, Workload
from strata_cli.server import Server

TABLES = 1_000
CONNECTIONS = 500
THREADS = 8
SLICE_S = 20
READER_S = 15
PAUSE_S = 5
DATABASE = "soak"


class Load(threading.Thread, ABC):
    """Runs until told to stop; `failure` says what went wrong."""

    def __init__(self, server: Server, seed: int, engine: str) -> None:
        super().__init__(daemon=True, name=type(self).__name__)
        self.failure: str | None = None
        self.done = 0
        self.server = server
        self.engine = engine
        self.rng = random.Random(f"{type(self).__name__} {seed}")
        self.halt = threading.Event()

    @abstractmethod
    def once(self) -> None: ...

    def run(self) -> None:
        try:
            while not self.halt.is_set():
                self.once()
                self.done += 1
        except Exception as error:  # Whatever it is, it ends the soak.
            self.failure = f"{self.name}: {error!r}"


class Sysbench(Load):
    def __init__(self, server: Server, seed: int, engine: str, bench: Bench) -> None:
        super().__init__(server, seed, engine)
        self._bench = bench

    def once(self) -> None:
        workload = (Workload.read_write, Workload.write_only, Workload.update_index)[self.done % 3]
        self._bench.run(self.engine, workload, THREADS, SLICE_S)


class Crowd(Load):
    """500 connections at once, each uses two of the 1,000 tables; then a table is dropped and made again."""

    def once(self) -> None:
        with ExitStack() as stack:
            for _ in range(CONNECTIONS):
                connection = stack.enter_context(self.server.connect(database=DATABASE, autocommit=True))
                with connection.cursor() as cursor:
                    for table in self.rng.sample(range(TABLES), 2):
                        cursor.execute(f"UPDATE t{table} SET n = n + 1 WHERE id = %s", (self.rng.randint(1, 10),))
                        cursor.execute(f"SELECT SUM(n) FROM t{table}")
                if self.halt.is_set():
                    return
        make_table(self.server, self.engine, self.rng.randrange(TABLES))
        self.halt.wait(PAUSE_S)


class Reader(Load):
    """A snapshot that stays open while versions pile up; it must not change."""

    def once(self) -> None:
        query = f"SELECT COUNT(*), SUM(k) FROM {database(self.engine)}.sbtest1"
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute(query)
            before = cursor.fetchall()
            self.halt.wait(READER_S)
            cursor.execute(query)
            if cursor.fetchall() != before:
                raise AssertionError("the snapshot changed")
        self.halt.wait(PAUSE_S)


def make_table(server: Server, engine: str, number: int) -> None:
    server.query(f"DROP TABLE IF EXISTS t{number}", database=DATABASE)
    server.query(f"CREATE TABLE t{number} (id INT PRIMARY KEY, n INT NOT NULL, KEY n_key (n)) ENGINE={engine}", database=DATABASE)
    server.query(f"INSERT INTO t{number} SELECT seq, 0 FROM seq_1_to_10", database=DATABASE, autocommit=True)
