"""One run: two servers, load on the primary, kill -9 of one, the other and both, then a comparison."""

import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from strata_cli.server import Server, Settings, choose_port
from strata_cli.waiting import wait_until

from .load import DATABASE, TABLES, Clients, create

PORT = 23506
OPTIONS = ("--log-bin=bin", "--sync-binlog=1", "--binlog-format=ROW", "--log-slave-updates", "--skip-slave-start")
# More retries than the server's 10: how often a transaction meets another at work is no matter of this test.
WORKERS = ("--slave-parallel-threads=4", "--slave-parallel-mode=optimistic", "--slave-transaction-retries=1000")
SYNC_S = 60.0


@dataclass(frozen=True)
class Plan:
    primary: str  # engines
    replica: str
    kills: int
    pause_s: float  # of load before each
    seed: int
    positions_in: str  # the engine of mysql.gtid_slave_pos on the replica
    port: int = PORT  # The first free one from here on.


class Pair:
    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.primary = Server(folder / "primary")
        self.replica = Server(folder / "replica")
        self._primary_port = choose_port(None, plan.port)
        self._replica_port = choose_port(None, self._primary_port + 1)

    def start_primary(self) -> None:
        self._start(self.primary, self.plan.primary, self._primary_port, "--server-id=1")

    def start_replica(self) -> None:
        self._start(self.replica, self.plan.replica, self._replica_port, "--server-id=2", *WORKERS)

    def _start(self, server: Server, engine: str, port: int, *options: str) -> None:
        server.start(Settings(port=port, engine=engine), extra=(*OPTIONS, *options))

    def connect(self) -> None:
        self.replica.query(f"ALTER TABLE mysql.gtid_slave_pos ENGINE={self.plan.positions_in}")
        self.replica.query(
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={self._primary_port}, MASTER_USER='root',"
            " MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1, MASTER_HEARTBEAT_PERIOD=1"
        )
        self.replica.query("START SLAVE")

    def restart(self, who: str) -> None:
        for server in (self.primary, self.replica):
            if who in (server.data.name, "both"):
                server.kill()
        if self.primary.pid() is None:
            self.start_primary()
        if self.replica.pid() is None:
            self.start_replica()
            self.replica.query("START SLAVE")

    def in_sync(self) -> bool:
        return self.replica.query("SELECT @@gtid_slave_pos") == self.primary.query("SELECT @@gtid_binlog_pos")

    def differences(self) -> list[str]:
        found = []
        for table in TABLES:
            sums = [server.query(f"CHECKSUM TABLE {table}", database=DATABASE)[0][1] for server in (self.primary, self.replica)]
            engines = [
                server.query(
                    f"SELECT engine FROM information_schema.tables WHERE table_schema = '{DATABASE}' AND table_name = '{table}'"
                )[0][0].upper()
                for server in (self.primary, self.replica)
            ]
            if sums[0] != sums[1]:
                found.append(f"{table} differs: {sums}")
            if engines != [self.plan.primary.upper(), self.plan.replica.upper()]:
                found.append(f"{table} is in {engines}")
        return found

    def sync_problems(self) -> list[str]:
        if wait_until(self.in_sync, SYNC_S):
            return []
        with self.replica.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW SLAVE STATUS")
            assert cursor.description is not None
            values = dict(zip([column[0] for column in cursor.description], cursor.fetchone() or (), strict=True))
        told = {
            name: values[name]
            for name in ("Slave_IO_Running", "Slave_SQL_Running", "Last_IO_Error", "Last_SQL_Error", "Gtid_Slave_Pos")
        }
        return [f"not in sync after {SYNC_S:.0f} s: {told}"]

    def kill(self) -> None:
        self.primary.kill()
        self.replica.kill()


def run(folder: Path, plan: Plan) -> list[str]:
    """What went wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    pair = Pair(folder, plan)
    rng = random.Random(plan.seed)
    clients: Clients | None = None
    try:
        pair.start_primary()
        pair.start_replica()
        create(pair.primary)
        pair.connect()
        clients = Clients(pair.primary, plan.seed)
        victims: list[str] = []
        for _ in range(plan.kills):
            victims = victims or rng.sample(("primary", "replica", "both"), 3)
            time.sleep(plan.pause_s * rng.uniform(0.5, 1.5))
            pair.restart(victims.pop())
        time.sleep(plan.pause_s)
        clients.stop()
        done = sum(clients.transactions)
        clients = None
        problems = pair.sync_problems() or pair.differences()
        if done < 10 * (plan.kills + 1):
            problems.append(f"only {done} transactions were made")
        return problems
    finally:
        if clients is not None:
            clients.stop()
        pair.kill()
