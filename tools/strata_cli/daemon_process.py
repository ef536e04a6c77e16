"""A daemon of a cluster on this machine, whichever it is: started, found again, stopped and killed by pid, asked how it is.

<folder>/data/          what it keeps
<folder>/<kind>.log     what it said
<folder>/<kind>.out     its line `ready ...`, once it serves
<folder>/<kind>.pid     its pid
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import local_http, paths
from .process import BackgroundProcess
from .server import port_is_free
from .shell import StrataError
from .waiting import wait_until

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
HTTP_TIMEOUT_S = 2.0
PORT_TIMEOUT_S = 1.0


def check_built(*programs: str | Path) -> None:
    for program in programs:
        if not Path(program).exists():
            raise StrataError(f"{paths.relative(Path(program))} is not built (./strata build)")


def check_port(name: str, port: int) -> None:
    """A process that was just killed may still hold it."""
    if not wait_until(lambda: port_is_free(port), PORT_TIMEOUT_S):
        raise StrataError(f"{name}: its port {port} is in use by another program")


class DaemonProcess(BackgroundProcess):
    """One folder and the process that serves it, if any. Not thread-safe."""

    kind = "daemon"  # in the names of its files

    def __init__(self, name: str, folder: Path, program: Sequence[str | Path]) -> None:
        self.folder = folder.resolve()
        self.data = self.folder / "data"
        self.out = self.folder / f"{self.kind}.out"
        self._program = program
        self._began = 0.0
        log, pid_file = self.folder / f"{self.kind}.log", self.folder / f"{self.kind}.pid"
        super().__init__(name, log, pid_file, ["--data", str(self.data)])

    def ports(self) -> tuple[int, int]:
        """For the nodes' own protocol; for health, status and metrics."""
        raise NotImplementedError

    def flags(self) -> list[str]:
        """What only this kind is told."""
        raise NotImplementedError

    def address(self) -> str:
        return f"127.0.0.1:{self.ports()[0]}"

    def start(self, timeout_s: float = START_TIMEOUT_S) -> float:
        """Starts it and waits until it serves; returns the seconds it took."""
        self.launch()
        return self.wait_ready(timeout_s)

    def launch(self, *, env: Mapping[str, str] | None = None, extra: Sequence[str] = ()) -> None:
        """The first half of start(), so that several can start at once."""
        pid = self.pid()
        if pid is not None:
            raise StrataError(f"{self.name} already runs (pid {pid})")
        check_built(self._program[0])
        for port in self.ports():
            check_port(self.name, port)
        self.prepare()
        self._began = time.monotonic()
        command = [*(str(part) for part in self._program), *self._common_flags(), *self.flags(), *extra]
        pid = self._spawn(command, self.folder, {**os.environ, **(env or {})}, out=self.out)
        self.pid_file.write_text(f"{pid}\n")

    def prepare(self) -> None:
        """The folders it needs."""
        self.data.mkdir(parents=True, exist_ok=True)

    def _common_flags(self) -> list[str]:
        return ["--name", self.name, "--data", str(self.data), "--http", f"127.0.0.1:{self.ports()[1]}"]

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> float:
        if not wait_until(self._is_ready, timeout_s):
            self.kill()
            raise StrataError(f"{self.name} did not get ready within {timeout_s:g} s; the end of {self.log}:\n{self.log_tail()}")
        return time.monotonic() - self._began

    def _is_ready(self) -> bool:
        ready = any(line.startswith(b"ready ") for line in self.out.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n")
        if end := self.ended():
            raise StrataError(f"{self.name} ended while starting ({end}); the end of {self.log}:\n{self.log_tail()}")
        return ready

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        return super().stop(timeout_s)

    def illness(self, timeout_s: float = HTTP_TIMEOUT_S) -> str | None:
        """Why it does not serve as it should; None: it does."""
        if self.pid() is None:
            return "not running"
        try:
            code, said = local_http.get(self.ports()[1], "/healthz", timeout_s)
        except local_http.NoAnswer as error:
            return str(error)
        return None if code == 200 else said.decode(errors="replace").strip() or f"HTTP status {code}"

    def status(self, timeout_s: float = HTTP_TIMEOUT_S) -> dict[str, Any]:
        """What it says about itself; empty when it says nothing that can be read."""
        try:
            code, said = local_http.get(self.ports()[1], "/status", timeout_s)
            answer = json.loads(said) if code == 200 else None
        except (local_http.NoAnswer, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}
