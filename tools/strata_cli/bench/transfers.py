"""What it costs that a page goes from server to server: clients of two servers that write the same table change rows of one page,
each its own. CPU time and context switches of every process, for a statement and for a transfer; builds in turns."""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pymysql
from rich.table import Table

from .. import paths, setup_cmd
from ..cluster import Cluster, Wishes
from ..server import Server
from ..shell import console
from . import results, servers
from .process import cpu_s
from .servers import alone

TABLE = "transfers.shared"
WARM_S = 2.0
GIVEN_UP = "Strata_fusion_pages_given_up"


@dataclass(frozen=True)
class Plan:
    profile: str
    presets: tuple[str, ...]
    clients: int  # of each server
    rows: int  # of the table; 64: one page
    seconds: float
    rounds: int


@dataclass(frozen=True)
class Costs:
    """Of a process, or of all of a kind."""

    cpu_us: float = 0.0
    switches: int = 0

    def __add__(self, other: "Costs") -> "Costs":
        return Costs(self.cpu_us + other.cpu_us, self.switches + other.switches)

    def __sub__(self, other: "Costs") -> "Costs":
        return Costs(self.cpu_us - other.cpu_us, self.switches - other.switches)


@dataclass
class Measured:
    preset: str
    clients: int
    statements_s: float
    transfers_per_statement: float
    cpu_us: dict[str, float] = field(default_factory=dict)  # of a statement, by kind of process
    switches: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def run(plan: Plan, json_file: Path | None) -> None:
    setup_cmd.ensure_setup()
    found: list[Measured] = []
    for number in range(plan.rounds):
        for preset in plan.presets:
            found.append(_measure(plan, preset))
            console.print(f"  round {number + 1} of {plan.rounds}, {preset}: {found[-1].statements_s:.0f} statements/s")
    console.print(table(found))
    if json_file:
        results.write(results.measured([one.as_json() for one in found], asdict(plan), servers.machine()), json_file)
        console.print(f"written: {paths.relative(json_file.resolve())}")


def table(found: list[Measured]) -> Table:
    """The mean of the rounds."""
    out = Table(box=None, header_style="bold", title="of a statement")
    out.add_column("build", no_wrap=True)
    for name in ("statements/s", "transfers", "CPU µs", *KINDS, "switches", *KINDS):
        out.add_column(name, justify="right")
    for preset in dict.fromkeys(one.preset for one in found):
        rounds = [one for one in found if one.preset == preset]

        def mean(values: Iterator[float], count: int = len(rounds)) -> float:
            return sum(values) / count

        cells = [f"{mean(one.statements_s for one in rounds):.0f}", f"{mean(one.transfers_per_statement for one in rounds):.2f}"]
        cells.append(f"{mean(sum(one.cpu_us.values()) for one in rounds):.0f}")
        cells += [f"{mean(one.cpu_us.get(kind, 0.0) for one in rounds):.0f}" for kind in KINDS]
        cells.append(f"{mean(sum(one.switches.values()) for one in rounds):.1f}")
        cells += [f"{mean(one.switches.get(kind, 0.0) for one in rounds):.1f}" for kind in KINDS]
        out.add_row(preset, *cells)
    return out


KINDS = ("servers", "memory", "storage")


def costs_of(pid: int) -> Costs:
    """Up to now; switches of threads that live."""
    switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        switches += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return Costs(cpu_s(pid) * 1e6, switches)


def _costs(cluster: Cluster) -> dict[str, Costs]:
    parts = (*cluster.computes.values(),), (*cluster.memory.values(),), (*cluster.storage.values(),)
    pids = [[pid for part in of if (pid := part.pid()) is not None] for of in parts]
    return {kind: sum((costs_of(pid) for pid in of), Costs()) for kind, of in zip(KINDS, pids, strict=True)}


def _transfers(computes: list[Server]) -> int:
    counted: Counter[str] = Counter()
    for server in computes:
        for name, value in server.query(f"SHOW GLOBAL STATUS LIKE '{GIVEN_UP}'"):
            counted[str(name)] += int(value)
    return counted[GIVEN_UP]


class Client(threading.Thread):
    def __init__(self, server: Server, row: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._row = row
        self._stop_asked = stop
        self.done = 0
        self.failed: pymysql.MySQLError | None = None

    def run(self) -> None:
        try:
            with self._server.connect(autocommit=True) as connection, connection.cursor() as cursor:
                while not self._stop_asked.is_set():
                    cursor.execute(f"UPDATE {TABLE} SET n = n + 1 WHERE id = %s", (self._row,))
                    self.done += 1
        except pymysql.MySQLError as error:
            self.failed = error


def _measure(plan: Plan, preset: str) -> Measured:
    with _cluster(plan, preset) as cluster:
        computes = [cluster.computes[name] for name in cluster.serving_computes()]
        computes[0].query("CREATE DATABASE transfers")
        computes[0].query(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=STRATA")
        rows = ", ".join(f"({number}, 0)" for number in range(plan.rows))
        computes[0].query(f"INSERT INTO {TABLE} VALUES {rows}", autocommit=True)
        stop = threading.Event()
        clients = [
            Client(server, number * plan.clients + client, stop)
            for number, server in enumerate(computes)
            for client in range(plan.clients)
        ]
        for one in clients:
            one.start()
        time.sleep(WARM_S)
        began, costs, moved, done = time.monotonic(), _costs(cluster), _transfers(computes), sum(one.done for one in clients)
        time.sleep(plan.seconds)
        took, after = time.monotonic() - began, _costs(cluster)
        statements = max(1, sum(one.done for one in clients) - done)
        moved = _transfers(computes) - moved
        stop.set()
        for one in clients:
            one.join()
            if one.failed is not None:
                raise one.failed
    spent = {kind: after[kind] - costs[kind] for kind in KINDS}
    return Measured(
        preset,
        plan.clients,
        statements / took,
        moved / statements,
        {kind: cost.cpu_us / statements for kind, cost in spent.items()},
        {kind: cost.switches / statements for kind, cost in spent.items()},
    )


@contextmanager
def _cluster(plan: Plan, preset: str) -> Iterator[Cluster]:
    folder = paths.BUILD / "bench" / "transfers"
    with alone(folder.parent / "lock"):
        shutil.rmtree(folder, ignore_errors=True)
        cluster = Cluster(folder, preset=preset)
        try:
            cluster.start(plan.profile, wishes=Wishes(servers=2))
            yield cluster
        finally:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
