"""One run of errors without a crash: the fault comes, the server lives on, the fault goes, and the ledger is checked: on the
living server, and again after kill -9."""

import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
from strata_cli.process import replace_file
from strata_cli.server import BINLOG_OPTIONS, Server, Settings
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

from .clients import DISK_ERRORS, REFUSALS, Clients
from .errors_plan import FULL, IO, ErrorsPlan, Trouble
from .mirror import Mirror
from .run import DATABASE, SMALL, START_TIMEOUT_S
from .worker import Worker
from .workloads import Failure, Workloads

KEPT_SHARE = 0.6  # of the connections go on after an error, the others are given up
GRACE_S = 2.0  # after the end of a fault errors are still excused
ANSWER_TIMEOUT_S = 20.0
DRAIN_TIMEOUT_S = 90.0
QUIET_S = 0.4
BULK_ROWS = 1_500
# What the server says once it acknowledges nothing any more: an operator has to start it again.
HAS_ENDED = re.compile(r"the node stops writing|restart the node|restart this server|start the server again|outcome unknown")


@dataclass
class ErrorsResult:
    transactions: int = 0
    turned_away: int = 0
    struck: set[str] = field(default_factory=set)  # fault points that failed
    notes: list[str] = field(default_factory=list)


class ErrorsRun:
    def __init__(self, plan: ErrorsPlan, folder: Path, preset: str, extra: tuple[str, ...], mirror: Mirror) -> None:
        self._plan = plan
        self._folder = folder
        self._settings = Settings(preset=preset)
        self._mirror = mirror if plan.binlog else None
        logged = BINLOG_OPTIONS if self._mirror else ()
        self._extra = ("--skip-networking", *(SMALL if plan.small else ()), *logged, *extra)
        self._server = Server(folder / "data")
        self._clients = Clients(REFUSALS | DISK_ERRORS, KEPT_SHARE)
        self._workloads = Workloads(folder, self._clients, DATABASE, "STRATA", bulk_rows=BULK_ROWS)
        self._workers: list[Worker] = []
        self._points, self._full, self._failing = (folder / name for name in ("points", "full", "failing"))
        self.result = ErrorsResult()

    def execute(self) -> ErrorsResult:
        """Raises Failure; the server is down afterwards in any case."""
        try:
            self._prepare()
            for number, trouble in enumerate(self._plan.troubles, 1):
                self._round(number, trouble)
            self._restart()
            self._check()
        except StrataError as error:
            raise Failure(str(error)) from error
        finally:
            self._server.kill()
            self._halt_workers()
            self._workloads.close()
        return self.result

    def _prepare(self) -> None:
        shutil.rmtree(self._server.data, ignore_errors=True)
        self._start()
        self._clients.server = self._server
        self._server.query(f"CREATE DATABASE {DATABASE}")
        self._workloads.create()
        self._query("CREATE TABLE witness (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=STRATA")
        self._query("INSERT INTO witness VALUES (1, 0)")
        if self._mirror:
            self._mirror.copy(self._server)

    def _start(self) -> None:
        files = {"FAULT_FILE": self._points, "FULL_DISK": self._full, "FAILING_DISK": self._failing}
        env = {f"STRATA_{name}": str(path) for name, path in files.items()}
        self._server.start(self._settings, env=env, extra=self._extra, timeout_s=START_TIMEOUT_S)
        if not self._server.has_strata():
            raise Failure(f"the server did not load STRATA:\n{self._server.log_tail()}")

    def _query(self, sql: str) -> list[tuple[object, ...]]:
        return self._server.query(sql, database=DATABASE, autocommit=True, read_timeout=ANSWER_TIMEOUT_S)

    # --- one round ---------------------------------------------------------------------------------------------

    def _round(self, number: int, trouble: Trouble) -> None:
        self._start_workers(number)
        self._watch(trouble.work_s)
        self._clients.tolerant = True
        self._begin(trouble)
        self._watch(trouble.lasts_s)
        self._end()
        if trouble.ends_the_log:
            self._check_quiet()
            self._restart()
        else:
            self._watch(GRACE_S)
            if self._answers_again():
                self._clients.tolerant = False
                self._watch(trouble.work_s)
                self._drain()
            else:
                self._check_quiet()
                self.result.notes.append(f"{trouble.text()}: it had to be started again")
                self._restart()
        self.result.turned_away += self._clients.turned_away.total()
        self._clients.turned_away.clear()
        self._forget_workers()
        self._check()

    def _start_workers(self, number: int) -> None:
        self._workers = self._workloads.workers(random.Random(f"errors work {self._plan.seed} {number}"))
        for worker in self._workers:
            worker.stays = True
            worker.start()

    def _watch(self, seconds: float) -> None:
        wait_until(lambda: self._server.pid() is None or any(worker.failure for worker in self._workers), seconds, every_s=0.01)
        if self._server.pid() is None:
            self._server.wait_exit(5)
            raise Failure(f"the server ended by itself (signal {self._server.last_signal()}):\n{self._server.log_tail(40)}")
        if failures := [worker.failure for worker in self._workers if worker.failure]:
            raise Failure("\n".join(failures))

    def _begin(self, trouble: Trouble) -> None:
        lines = trouble.what.split("\n") if trouble.what else []
        rules = lines[:1] if trouble.kind == IO else []
        if rules:
            replace_file(self._failing, rules[0].replace(" ", " #strata/", 1) if " " in rules[0] else f"{rules[0]} #strata/")
        if trouble.kind == FULL:
            self._full.touch()
        if specs := lines[len(rules) :]:
            replace_file(self._points, "\n".join(specs))

    def _end(self) -> None:
        for path in (self._failing, self._full, self._points):
            path.unlink(missing_ok=True)
        noted = self._points.with_name(self._points.name + ".struck")
        if noted.exists():
            self.result.struck |= set(noted.read_text().split())

    def _answers_again(self) -> bool:
        """False: it says that it has to be started again."""
        last = ["?"]

        def answers() -> bool:
            try:
                self._query("UPDATE witness SET n = n + 1 WHERE id = 1")
            except pymysql.MySQLError as error:
                last[0] = str(error)
                return False
            return True

        if wait_until(lambda: answers() or self._has_ended(), ANSWER_TIMEOUT_S) and not self._has_ended():
            return True
        if not self._has_ended():
            raise Failure(f"it does not work again though the fault is over: {last[0]}\n{self._server.log_tail(30)}")
        return False

    def _has_ended(self) -> bool:
        return any(HAS_ENDED.search(line) for line in self._server.log_lines())

    def _check_quiet(self) -> None:
        """The server lives, and acknowledges nothing any more."""
        if not self._has_ended():
            return
        self._watch(QUIET_S)  # Answers that were on their way.
        acked = len(self._workloads.bank.acked)
        self._watch(QUIET_S)
        if (
            any("the node stops writing" in line for line in self._server.log_lines())
            and len(self._workloads.bank.acked) != acked
        ):
            raise Failure("transfers are acknowledged though the log has ended")

    def _halt_workers(self) -> None:
        for worker in self._workers:
            worker.halt()
        wait_until(lambda: not any(worker.is_alive() for worker in self._workers), 30)

    def _drain(self) -> None:
        for worker in self._workers:
            worker.halt()
        wait_until(lambda: not any(worker.is_alive() for worker in self._workers), DRAIN_TIMEOUT_S)
        if stuck := [worker.name for worker in self._workers if worker.is_alive()]:
            raise Failure(f"{', '.join(stuck)}: no end of the transaction in {DRAIN_TIMEOUT_S:.0f} s\n{self._process_list()}")
        ours = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'root' AND id <> CONNECTION_ID()"
        if not wait_until(lambda: self._query(ours) == [(0,)], ANSWER_TIMEOUT_S):
            raise Failure(f"connections stay:\n{self._process_list()}")

    def _process_list(self) -> str:
        shown = self._query("SELECT id, time, state, LEFT(info, 100) FROM information_schema.processlist")
        return "\n".join(str(row) for row in shown)

    def _forget_workers(self) -> None:
        self.result.transactions += sum(worker.done for worker in self._workers)
        if failures := [worker.failure for worker in self._workers if worker.failure]:
            raise Failure("\n".join(failures))
        self._workers = []

    def _restart(self) -> None:
        """After kill -9."""
        self._server.kill()
        self._halt_workers()
        if stuck := [worker.name for worker in self._workers if worker.is_alive()]:
            raise Failure(f"{', '.join(stuck)}: no end though the server is gone")
        self._start()
        self._clients.tolerant = False

    def _check(self) -> None:
        self._workloads.verify()
        if self._mirror and (problems := self._mirror.follow(self._server, self._workloads.take_not_logged())):
            raise Failure("\n".join(problems[:10]))
