"""A storage node of a cluster on this machine: started, found again, stopped and killed by pid.

<folder>/data/            what it stores
<folder>/storenode.log    what it said
<folder>/storenode.out    its line `ready ...`, once it serves
<folder>/storenode.pid    its pid
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Joining:
    """How a node that is in no group gets into one."""

    replaces: str  # In that one's place; "": one more.
    write_quorum: int  # Then; 0: a majority.

    def flags(self) -> list[str]:
        if self.replaces:
            return ["--replaces", self.replaces]
        return ["--join", *(["--write-quorum", str(self.write_quorum)] if self.write_quorum else [])]


@dataclass(frozen=True)
class NodeSettings:
    port: int  # For the nodes' own protocol.
    http_port: int  # For health, status and metrics.
    registry: str
    cluster: str
    secret: Path
    profile: str
    group: tuple[str, ...]
    write_quorum: int
    joining: Joining | None = None  # Instead of group and write quorum.


def check_built(*programs: str | Path) -> None:
    for program in programs:
        if not Path(program).exists():
            raise StrataError(f"{paths.relative(Path(program))} is not built (./strata build)")


def check_port(name: str, port: int) -> None:
    """A process that was just killed may still hold it."""
    if not wait_until(lambda: port_is_free(port), PORT_TIMEOUT_S):
        raise StrataError(f"{name}: its port {port} is in use by another program")


class StorageNode(BackgroundProcess):
    """One folder and the process that serves it, if any. Not thread-safe."""

    def __init__(self, name: str, folder: Path, settings: NodeSettings, program: Sequence[str | Path]) -> None:
        self.folder = folder.resolve()
        self.data = self.folder / "data"
        self.out = self.folder / "storenode.out"
        self.settings = settings
        self._program = program
        self._began = 0.0
        super().__init__(name, self.folder / "storenode.log", self.folder / "storenode.pid", ["--data", str(self.data)])

    def address(self) -> str:
        return f"127.0.0.1:{self.settings.port}"

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
        for port in (self.settings.port, self.settings.http_port):
            check_port(self.name, port)
        self.data.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        pid = self._spawn([*self._command(), *extra], self.folder, {**os.environ, **(env or {})}, out=self.out)
        self.pid_file.write_text(f"{pid}\n")

    def _command(self) -> list[str]:
        settings = self.settings
        flags = {
            "--name": self.name,
            "--data": self.data,
            "--listen": self.address(),
            "--http": f"127.0.0.1:{settings.http_port}",
            "--registry": settings.registry,
            "--cluster": settings.cluster,
            "--secret-file": settings.secret,
            "--profile": settings.profile,
        }
        group = ["--initial-group", ",".join(settings.group), "--write-quorum", str(settings.write_quorum)]
        if settings.joining is not None:
            group = settings.joining.flags()
        return [*(str(part) for part in self._program), *(str(part) for flag in flags.items() for part in flag), *group]

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
            code, said = local_http.get(self.settings.http_port, "/healthz", timeout_s)
        except local_http.NoAnswer as error:
            return str(error)
        return None if code == 200 else said.decode(errors="replace").strip() or f"HTTP status {code}"

    def status(self, timeout_s: float = HTTP_TIMEOUT_S) -> dict[str, Any]:
        """What it says about itself; empty when it says nothing that can be read."""
        try:
            code, said = local_http.get(self.settings.http_port, "/status", timeout_s)
            answer = json.loads(said) if code == 200 else None
        except (local_http.NoAnswer, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}
