"""Histories one after the other on one private server: made, written down, checked."""

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strata_cli.server import Server, Settings
from strata_cli.waiting import wait_until

from . import families, target, workload
from .checker import Report, check
from .history import History, Level, save
from .session import ENGINES

JOIN_TIMEOUT_S = 90.0
PROBLEMS_SHOWN_MOST = 6
MIXED = "mixed"
SNAPSHOT_ISOLATION = "RR+SI"
AnyClient = workload.Client | families.Client
KINDS = (*(level.value for level in Level), SNAPSHOT_ISOLATION, MIXED)


@dataclass(frozen=True)
class Plan:
    """Everything about one history that its seed decides; the threads' timing is not part of that."""

    seed: str  # of the campaign, and which of its histories
    kind: str  # a level, mixed, or RR+SI (REPEATABLE READ with snapshot isolation)
    clients: int
    keys: int
    durable: bool
    kills: int
    long_share: float  # of the values that do not fit into a page with others

    faults: int = 0  # on several servers

    @property
    def levels(self) -> tuple[Level, ...]:
        if self.kind == MIXED:
            return tuple(Level)
        return (Level.RR,) if self.kind == SNAPSHOT_ISOLATION else (Level(self.kind),)


def make_plan(seed: int, number: int, kinds: tuple[str, ...], clients: int, kill: bool, faults: int = 0) -> Plan:
    rng = random.Random(f"isolation {seed} {number}")
    kills = rng.choice((0, 0, 1, 2)) if kill else 0
    return Plan(
        seed=f"{seed}/{number}",
        kind=kinds[number % len(kinds)],
        clients=clients or rng.choice((4, 8, 12, 16)),
        keys=rng.choice((4, 8, 12, 24)),
        durable=kills > 0 or rng.random() < 0.3,
        kills=kills,
        long_share=rng.choice((0.02, 0.02, 0.3)),
        faults=faults,
    )


@dataclass
class Totals:
    passed: int = 0
    failed: int = 0
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    reads: int = 0
    appends: int = 0
    permitted: Counter[str] = field(default_factory=Counter)

    def add(self, report: Report) -> None:
        self.passed += report.ok
        self.failed += not report.ok
        for name in ("committed", "aborted", "unknown", "reads", "appends"):
            setattr(self, name, getattr(self, name) + getattr(report, name))
        self.permitted += report.permitted


class Campaign:
    _engines: Sequence[str] = ENGINES  # that every server has

    def __init__(self, folder: Path, engine: str, preset: str = "release", options: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self.engine = engine
        self._settings = Settings(preset=preset)
        self._options = (*target.DURABLE, *options)
        self._server = Server(folder / "data")

    def start(self) -> None:
        self._server = target.start(self._folder / "data", self._settings.preset, self._options)

    def stop(self, keep: bool = False) -> None:
        self._server.kill()
        if not keep:
            target.remove(self._server)

    def one(self, plan: Plan, seconds: float) -> Report:
        history = self.record(plan, seconds)
        report = check(history)
        if not report.ok:
            self._keep(history, report, self._folder / f"history-{plan.seed.replace('/', '-')}.jsonl")
        return report

    def _keep(self, history: History, report: Report, path: Path) -> None:
        save(history, path)
        self._say(report, path)

    def _say(self, report: Report, path: Path) -> None:
        for problem in report.problems[:PROBLEMS_SHOWN_MOST]:
            print(f"  {problem}")
        if len(report.problems) > PROBLEMS_SHOWN_MOST:
            kinds = Counter(problem.kind for problem in report.problems)
            print(f"  ... {len(report.problems)} problems: {dict(kinds)}")
        print(f"  the history is {path}", flush=True)

    def record(self, plan: Plan, seconds: float) -> History:
        snapshot_isolation = plan.kind == SNAPSHOT_ISOLATION
        self._make_lists()
        self._set_globals(plan)
        history = History(snapshot_isolation=snapshot_isolation)
        history.about = {"seed": plan.seed, "kind": plan.kind, "engine": self.engine, "clients": plan.clients, "keys": plan.keys}
        shared = workload.Shared(self._servers(), plan.seed, plan.levels, plan.keys, plan.long_share, snapshot_isolation)
        shared.excuses, shared.engines = self._excuses, self._engines
        clients = [workload.Client(shared, number) for number in range(plan.clients)]
        history.problems += self._let_work(plan, seconds, clients, shared.stopping)
        for client in clients:
            history.transactions += client.transactions
            history.problems += client.problems
        history.problems += self._read_final(history)
        return history

    def _judge(self, clients: list[families.Client]) -> families.Report:
        return families.judge(self._servers(), clients)

    def _read_final(self, history: History) -> list[str]:
        """What kept it from being read."""
        workload.read_final(self._servers(), history)
        return []

    def family(self, plan: Plan, seconds: float) -> families.Report:
        """A history of parents and children."""
        self._make_families()
        self._set_globals(plan)
        shared = families.Shared(self._servers(), plan.seed, plan.levels, plan.kind == SNAPSHOT_ISOLATION)
        shared.excuses, shared.engines = self._excuses, self._engines
        clients = [families.Client(shared, number) for number in range(plan.clients)]
        problems = self._let_work(plan, seconds, clients, shared.stopping)
        report = self._judge(clients)
        report.problems = problems + report.problems
        for problem in report.problems[:PROBLEMS_SHOWN_MOST]:
            print(f"  {problem}", flush=True)
        return report

    # --- what is under it; several servers have their own ---

    def _servers(self) -> Sequence[Server]:
        return [self._server]

    def _excuses(self, _number: int, _text: str) -> bool:
        return False

    def _make_lists(self) -> None:
        workload.create_table(self._server, self.engine)

    def _make_families(self) -> None:
        families.create_tables(self._server, self.engine)

    def _set_globals(self, plan: Plan) -> None:
        for name, value in (
            ("innodb_flush_log_at_trx_commit", int(plan.durable)),
            ("strata_flush_log_at_commit", int(plan.durable)),
        ):
            self._server.query(f"SET GLOBAL {name} = {value}")

    def _let_work(self, plan: Plan, seconds: float, clients: Sequence[AnyClient], stopping: threading.Event) -> list[str]:
        """Starts the clients and ends them; what went wrong with all of it. The server is there when this returns."""
        for client in clients:
            client.start()
        problems = self._disturb(plan, seconds, clients)
        stopping.set()
        for client in clients:
            client.join(JOIN_TIMEOUT_S)
            if client.is_alive():
                problems.append(f"{client.name} hangs")
        return problems + self._recover()

    def _recover(self) -> list[str]:
        """Every server is there when this returns."""
        problems = []
        server = self._server
        if server.pid() is None:
            problems.append(f"the server crashed:\n{server.log_tail(40)}")
            server.kill()
            server.start(self._settings, extra=self._options)
        return problems

    def _disturb(self, plan: Plan, seconds: float, clients: Sequence[AnyClient]) -> list[str]:
        """Returns when the clients have worked for long enough; what went wrong."""
        rng = random.Random(f"kills {plan.seed}")
        began = time.monotonic()
        kills = sorted(began + seconds * rng.uniform(0.15, 0.85) for _ in range(plan.kills))

        def over() -> bool:
            return self._server.pid() is None or any(client.problems for client in clients)

        for kill_at in kills:
            if wait_until(over, kill_at - time.monotonic()):
                return []
            self._server.kill()
            self._server.start(self._settings, extra=self._options)
            self._set_globals(plan)
        wait_until(over, began + seconds - time.monotonic())
        return []
