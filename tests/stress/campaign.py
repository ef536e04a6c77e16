"""One run: a cluster, its clients, what is done to it, and what there must be in the end."""

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pymysql
from fusion_cluster import Several
from isolation.faults import EVERY_KIND, Faults, Strike
from isolation.faults import draw as draw_faults
from strata_cli import paths
from strata_cli.process import kill_all
from strata_cli.server import Server
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

from . import agree, logs, schema
from .actions import ROLLED_BACK, sample_file
from .clients import WildClient
from .errors import CONNECTION_LOST
from .journal import Journal
from .money import PREFIX, SUM, TOTAL, Ledger, Teller
from .sessions import Shared, names_of
from .watch import Watch

SERVERS = 3
PULSE = "bank.account"
LOCK_WAIT_S, ROW_WAIT_S = 5, 3
OPTIONS = (
    "--skip-networking",
    "--event-scheduler=ON",
    f"--lock-wait-timeout={LOCK_WAIT_S}",
    f"--strata-lock-wait-timeout={ROW_WAIT_S}",
)
# A statement may wait for several locks one after the other, on a busy machine; while the memory node is away for 30 s more.
LIMIT_S = 4 * LOCK_WAIT_S
LIMIT_DISTURBED_S = LIMIT_S + 60
SECONDS_PER_STRIKE = 9.0
AGREE_S = 30.0
ANSWERS_S = 120.0
READ_TIMEOUT_S = 120.0
LOOK_S = 0.2


@dataclass(frozen=True)
class Plan:
    seed: int
    seconds: float
    kills: bool
    wild: int  # clients of the catalogue
    tellers: int
    stacks: bool = False
    keep: bool = False
    fault_kinds: Sequence[str] = tuple(EVERY_KIND)

    @property
    def name(self) -> str:
        return f"{'kills' if self.kills else 'calm'}-{self.seed}"


@dataclass
class Result:
    problems: list[str]
    kinds: Counter[str]
    passed: int
    failed: int
    said: str


class Run:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.folder = paths.BUILD / "stress" / plan.name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._journal = Journal(self.folder / "journal.log")
        self._ledger = Ledger()
        self._cluster = Several(self.folder / "cluster", server_options=OPTIONS, shares_accounts=True)
        self._faults: Faults | None = None
        self._failed: list[str] = []  # checks
        self._passed = 0

    def run(self) -> Result:
        try:
            self._all_of_it()
        except (StrataError, AssertionError, pymysql.MySQLError, OSError) as error:
            self._verdict("the run came to its end", [f"{type(error).__name__}: {error}"])
        finally:
            self._check_logs()
            self._cluster.kill()
            self._journal.close()
        self._keep_logs()
        if not self._plan.keep:
            shutil.rmtree(self._cluster.folder, ignore_errors=True)
        totals = self._journal.totals()
        return Result(self._journal.problems, totals, self._passed, len(self._failed), self._said())

    def _all_of_it(self) -> None:
        self._begin()
        self._work()
        self._check_all("in the end")
        if not self._failed:
            self._start_anew()
            self._check_all("after all servers were killed at once")

    def _said(self) -> str:
        answers = self._journal.answers
        errors = sum(count for code, count in answers.items() if code)
        struck = (
            "" if self._faults is None else f", {sum(self._faults.struck.values())} faults, {self._faults.fenced} servers fenced"
        )
        return (
            f"{answers[0]} statements done, {errors} refused, {len(self._ledger.acknowledged)} transfers acknowledged,"
            f" {len(self._ledger.unknown)} of unknown outcome{struck}"
        )

    def _keep_logs(self) -> None:
        """Without the data, which take hundreds of megabytes."""
        place = self.folder / "logs"
        place.mkdir()
        for name, log in self._logs():
            if log.exists():
                shutil.copy(log, place / f"{name}.log")
        for written in self.folder.glob("rows.csv*"):  # by SELECT ... INTO OUTFILE
            written.unlink()

    def _logs(self) -> list[tuple[str, Path]]:
        cluster = self._cluster
        parts = (*cluster.servers, cluster.memory, *cluster.storage)
        return [(part.data.name if isinstance(part, Server) else part.name, part.log) for part in parts]

    # --- the work ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        for _ in range(SERVERS):
            self._cluster.add()
        with closing(self._cluster.servers[0].connect(autocommit=True)) as connection:
            ask = agree.asker(connection)
            for statement in (*schema.WILD, *schema.BANK):
                ask(statement)
        for server in self._cluster.servers:  # It has the databases then.
            self._wait_answers(server, "SELECT COUNT(*) FROM s.log")
            self._wait_answers(server)

    def _work(self) -> None:
        began = len(self._journal.problems)
        shared = Shared(self._cluster.servers, self._plan.seed, self._journal, self._excuses)
        file = sample_file(self.folder)
        clients = [
            *(WildClient(shared, number, file) for number in range(self._plan.wild)),
            *(Teller(shared, number, self._ledger) for number in range(self._plan.tellers)),
        ]
        strikes = self._strikes()
        faults = self._faults = Faults(self._cluster, strikes, PULSE)
        watch = Watch(shared, self.folder, self._limit_s, faults.machine_stood_still, self._plan.stacks)
        for thread in (*clients, watch):
            thread.start()
        faults.start()
        until = time.monotonic() + self._plan.seconds
        while time.monotonic() < until:
            time.sleep(LOOK_S)
        shared.stopping.set()
        faults.end()
        deadline = time.monotonic() + LIMIT_DISTURBED_S
        for client in clients:
            client.join(max(0.1, deadline - time.monotonic()))
            if client.is_alive():
                self._journal.wrong("a client does not end", client.name, client.name)
        watch.ending.set()
        watch.join()
        for problem in faults.problems:
            self._journal.wrong("a process", problem)
        self._verdict("statements", self._journal.problems[began:])

    def _strikes(self) -> list[Strike]:
        plan = self._plan
        count = max(1, int(plan.seconds / SECONDS_PER_STRIKE)) if plan.kills else 0
        strikes = draw_faults(f"stress {plan.seed}", count, plan.seconds, SERVERS, len(self._cluster.storage), plan.fault_kinds)
        for strike in strikes:
            self._journal.note(f"to come: {strike}")
        return strikes

    def _limit_s(self) -> float:
        return LIMIT_DISTURBED_S if self._plan.kills else LIMIT_S

    def _excuses(self, code: int, text: str) -> bool:
        if self._faults is None:
            return False
        return self._faults.excuses(code, text) or (code in CONNECTION_LOST and self._faults.disturbed() and self._plan.kills)

    # --- the end -----------------------------------------------------------------------------------------------

    def _check_all(self, when: str) -> None:
        for server in self._cluster.servers:
            self._wait_answers(server)
        self._quiet()
        self._verdict(f"the ledger, {when}", self._ledger_problems())
        self._verdict(f"the servers agree, {when}", agree.disagreements(self._cluster.servers, AGREE_S))
        self._verdict(f"CHECK TABLE, {when}", [text for server in self._cluster.servers for text in agree.unwell_tables(server)])

    def _quiet(self) -> None:
        """No event runs any more, and nothing is prepared: what has to be there is committed, the rest rolled back."""
        for server in self._cluster.servers:
            with closing(server.connect(autocommit=True, read_timeout=READ_TIMEOUT_S)) as connection:
                ask = agree.asker(connection)
                ask("SET GLOBAL event_scheduler = OFF")
                for name in names_of(ask("XA RECOVER")):
                    try:
                        ask(f"XA {'COMMIT' if name.startswith(PREFIX) else 'ROLLBACK'} '{name}'")
                    except pymysql.MySQLError as error:
                        if name.startswith(PREFIX) or error.args[0] != ROLLED_BACK:
                            raise

    def _ledger_problems(self) -> list[str]:
        problems = []
        for server in self._cluster.servers:
            found = {int(row[0]) for row in server.query("SELECT id FROM bank.ledger", read_timeout=READ_TIMEOUT_S)}
            problems += [f"{server.data.name}: {text}" for text in self._ledger.problems(found)]
            ((amount, count),) = server.query(SUM)
            if (int(amount), int(count)) != TOTAL:
                problems.append(f"{server.data.name}: {count} accounts have {amount} together, not {TOTAL[0]}")
        return problems

    def _start_anew(self) -> None:
        kill_all(self._cluster.servers)
        for server in self._cluster.servers:
            self._cluster.launch(server)
        for server in self._cluster.servers:
            server.wait_ready()

    def _wait_answers(self, server: Server, question: str = SUM) -> None:
        last = [""]

        def answers() -> bool:
            try:
                return bool(server.query(question, read_timeout=READ_TIMEOUT_S))
            except (pymysql.MySQLError, OSError) as error:
                last[0] = str(error)
                return False

        if not wait_until(answers, ANSWERS_S, every_s=LOOK_S):
            self._journal.wrong("a server does not answer", f"{server.data.name}: {last[0]}\n{server.log_tail(20)}")

    def _check_logs(self) -> None:
        bad = []
        for name, log in self._logs():
            bad += logs.bad_lines(name, _lines(log), self._plan.kills)
        self._verdict("logs", bad)

    def _verdict(self, check: str, problems: Sequence[str]) -> None:
        if not problems:
            self._passed += 1
            return
        self._failed.append(check)
        if check != "statements":  # Those have been told already.
            for problem in problems:
                self._journal.wrong(check, problem)


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines() if log.exists() else []
