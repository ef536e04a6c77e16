"""Looks for statements that take longer than their timeouts allow, and writes down what all servers were doing then."""

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pymysql
from strata_cli.server import Server

from .sessions import Session, Shared

LOOK_S = 0.5
STALL_S = 2.0  # more than a busy machine takes for LOOK_S
TOLD_MOST = 4
ASKED = (
    "SELECT id, command, time, state, LEFT(info, 120) FROM information_schema.processlist",
    "SELECT * FROM information_schema.strata_lock_waits",
    "SELECT * FROM information_schema.strata_trx",
)
STACKS_TIMEOUT_S = 120.0


class Watch(threading.Thread):
    """`limit_s()`: what a statement may take now. `stacks`: gdb shows every thread, too; servers stand still meanwhile, and those
    of a cluster are put out of it."""

    def __init__(
        self, shared: Shared, folder: Path, limit_s: Callable[[], float], stalled: Callable[[float], None], stacks: bool
    ) -> None:
        super().__init__(name="watch", daemon=True)
        self._shared = shared
        self._folder = folder
        self._limit_s = limit_s
        self._stalled = stalled
        self._stacks = stacks
        self._told: set[tuple[Session, float]] = set()
        self._stalls_s = 0.0  # of the machine: nobody is blamed for these
        self.ending = threading.Event()

    def run(self) -> None:
        looked = time.monotonic()
        while not self.ending.wait(LOOK_S):
            stall = time.monotonic() - looked - LOOK_S
            if stall > STALL_S:
                self._shared.journal.note(f"the machine stood still for {stall:.1f} s")
                self._stalled(stall)
                self._stalls_s += stall
            looked = time.monotonic()
            self._look()

    def _look(self) -> None:
        for session in self._shared.live():
            waited, since, statement = session.waits_for_s(), session.since, session.statement
            if waited < self._limit_s() + self._stalls_s or not statement or (session, since) in self._told:
                continue
            self._told.add((session, since))
            if len(self._told) <= TOLD_MOST:
                file = self._write_down()
                self._shared.journal.wrong(
                    "a statement takes too long",
                    f"{session.who}, connection {session.number}, {waited:.0f} s: {statement}\n    {file}",
                    session.who,
                )

    def _write_down(self) -> Path:
        file = self._folder / f"too-long-{len(self._told)}.txt"
        text = [
            f"{session.who} {session.number} {session.waits_for_s():.1f} s: {session.statement}"
            for session in self._shared.live()
        ]
        for server in self._shared.servers:
            text += [f"\n--- {server.data.name}", *_doing(server)]
        file.write_text("\n".join(text) + "\n")
        if self._stacks:
            for server in self._shared.servers:
                self._write_stacks(server)
        return file

    def _write_stacks(self, server: Server) -> None:
        with (self._folder / f"stacks-{len(self._told)}-{server.data.name}.txt").open("w") as out:
            command = ["gdb", "-p", str(server.pid()), "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt 25"]
            subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=STACKS_TIMEOUT_S, check=False)


def _doing(server: Server) -> list[str]:
    said = []
    for statement in ASKED:
        try:
            said += [" | ".join(map(str, row)) for row in server.query(statement, connect_timeout=5, read_timeout=10)]
        except (pymysql.MySQLError, OSError) as error:
            said.append(f"{statement}: {error}")
    return said
