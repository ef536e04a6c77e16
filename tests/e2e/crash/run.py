"""One run of the campaign: rounds of work, crash, recovery and checks on one data folder."""

import random
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from strata_cli import paths
from strata_cli.server import BINLOG_OPTIONS, Server, Settings
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

from .mirror import Mirror
from .plan import Plan, Round
from .worker import Worker
from .workloads import Failure, Workloads

DATABASE = "crash"
SMALL = (
    "--loose-strata-buffer-pool-size=8M",
    "--loose-strata-log-segment-size=1M",
    "--loose-strata-log-checkpoint-size=4M",
)
DRAIN_TIMEOUT_S = 60.0
START_TIMEOUT_S = 60.0


@dataclass
class RunResult:
    transactions: int = 0
    rounds: int = 0
    struck: set[str] = field(default_factory=set)  # Fault points that crashed the server.
    start_s_max: float = 0.0
    sectors_lost: int = 0  # 512-byte pieces that power losses took back


class Run:
    def __init__(
        self,
        plan: Plan,
        folder: Path,
        engine: str,
        preset: str,
        extra: tuple[str, ...],
        ddl_too: bool = True,
        mirror: Mirror | None = None,
        xa_rollback_too: bool = True,
    ) -> None:
        """`mirror`: for a plan with a binary log."""
        self._plan = plan
        self._folder = folder
        self._engine = engine
        self._settings = Settings(preset=preset, engine=engine)
        # No TCP: a campaign needs no port, and two can run side by side.
        self._mirror = mirror if plan.binlog else None
        logged = BINLOG_OPTIONS if self._mirror else ()
        self._extra = ("--skip-networking", *(SMALL if plan.small else ()), *logged, *extra)
        self._server = Server(folder / "data")
        self._workloads = Workloads(folder, self._server, DATABASE, engine, ddl_too=ddl_too, xa_rollback_too=xa_rollback_too)
        self.result = RunResult()

    def execute(self) -> RunResult:
        """Raises Failure; the server is down afterwards in any case."""
        try:
            self._prepare()
            for number, round_ in enumerate(self._plan.rounds, 1):
                self._round(number, round_)
                self.result.rounds = number
        except StrataError as error:
            raise Failure(str(error)) from error
        finally:
            self._server.kill()
            self._workloads.close()
        return self.result

    def _prepare(self) -> None:
        shutil.rmtree(self._server.data, ignore_errors=True)
        self._start({})
        if self._engine.upper() == "STRATA" and not self._server.has_strata():
            raise Failure(f"the server did not load STRATA:\n{self._server.log_tail()}")
        self._server.query(f"CREATE DATABASE {DATABASE}")
        self._workloads.create()
        if self._mirror:
            self._mirror.copy(self._server)
        self._server.stop()

    def _start(self, env: dict[str, str]) -> None:
        seconds = self._server.start(self._settings, env=env, extra=self._extra, timeout_s=START_TIMEOUT_S)
        self.result.start_s_max = max(self.result.start_s_max, seconds)

    # --- one round ---------------------------------------------------------------------------------------------

    def _round(self, number: int, round_: Round) -> None:
        crashed_early = self._start_or_crash(number, "work", round_.fault)
        if not crashed_early:
            workers = self._workloads.workers(random.Random(f"work {self._plan.seed} {number}"))
            self._work(workers, round_)
            self._lose_power(number, "work")
            self.result.transactions += sum(worker.done for worker in workers)
            if problems := [worker.failure for worker in workers if worker.failure]:
                raise Failure("\n".join(problems))
        if round_.recovery_fault and not self._start_or_crash(number, "recovery", round_.recovery_fault):
            self._server.kill()
            self._lose_power(number, "recovery")
        self._start({})
        self._workloads.verify()
        self._compare_binlog()
        if round_.clean_stop:
            if not self._server.stop(timeout_s=30):
                raise Failure(f"the server did not stop cleanly:\n{self._server.log_tail()}")
        else:
            self._server.kill()

    def _compare_binlog(self) -> None:
        if self._mirror and (problems := self._mirror.follow(self._server, self._workloads.take_not_logged())):
            raise Failure("\n".join(problems[:10]))

    def _start_or_crash(self, number: int, phase: str, fault: str | None) -> bool:
        """Starts the server as the round wants it. True: it struck its fault point before it was up."""
        env = {"STRATA_FAULT": fault} if fault else {}
        if self._plan.power_loss:
            env["STRATA_POWER_LOSS_JOURNAL"] = str(self._journal(number, phase))
        try:
            self._start(env)
            return False
        except StrataError as error:
            if not fault or self._server.last_signal() != signal.SIGKILL:
                raise Failure(f"start with fault {fault}: {error}") from error
        self.result.struck.add(fault.split(":")[0])
        self._lose_power(number, phase)
        return True

    def _work(self, workers: list[Worker], round_: Round) -> None:
        for worker in workers:
            worker.start()
        died = self._watch(workers, round_.work_s)
        if round_.drain and not died:
            self._drain(workers)
        code = self._server.last_signal() if died else None
        if not died:
            self._server.kill()
        for worker in workers:
            worker.halt()
        for worker in workers:
            worker.join(timeout=30)
            if worker.is_alive():
                raise Failure(f"{worker.name} does not end though its server is gone")
        if died and (round_.fault is None or code != signal.SIGKILL):
            raise Failure(f"the server crashed by itself (signal {code}):\n{self._server.log_tail(40)}")
        if died and round_.fault:
            self.result.struck.add(round_.fault.split(":")[0])

    def _drain(self, workers: list[Worker]) -> None:
        for worker in workers:
            worker.halt()
        for worker in workers:
            worker.join(timeout=DRAIN_TIMEOUT_S)
            if worker.is_alive():
                waiting = self._server.query("SELECT id, time, state, LEFT(info, 100) FROM information_schema.processlist")
                shown = "\n".join(str(row) for row in waiting)
                raise Failure(f"{worker.name} hangs: it did not end its transaction in {DRAIN_TIMEOUT_S:.0f} s\n{shown}")

    def _watch(self, workers: list[Worker], seconds: float) -> bool:
        """Waits for the time to be over, a worker to fail, or the server to die by itself (True)."""
        wait_until(lambda: self._server.pid() is None or any(worker.failure for worker in workers), seconds, every_s=0.005)
        return self._server.pid() is None and self._server.wait_exit(5)

    def _journal(self, number: int, phase: str) -> Path:
        return self._folder / f"power_loss.{number}.{phase}"

    def _lose_power(self, number: int, phase: str) -> None:
        """Takes back or tears what was written and not yet synced when the server died."""
        if not self._plan.power_loss:
            return
        tool = paths.preset_dir(self._settings.preset) / "src" / "io" / "strata_power_loss"
        journal = self._journal(number, phase)
        if not journal.exists():
            if self._engine.upper() == "STRATA":
                raise Failure(f"the engine wrote no power-loss journal {journal}")
            return
        seed = str(self._plan.seed * 1000 + number)
        done = subprocess.run([tool, "--journal", journal, "--seed", seed], capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(f"strata_power_loss failed: {done.stdout}{done.stderr}")
        if match := re.search(r"(\d+) sectors reverted", done.stdout):
            self.result.sectors_lost += int(match[1])
