"""The process that keeps one compute node standing by (compute_standby.py), and the server that waits below it.

<data>/standby.pid         it
<data>/standby.log         what it said
<data>/standby.json        how far it is
<data>/standby-server.pid  the server that it has started last, which has a pid file of its own only once it serves
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from . import paths
from .process import BackgroundProcess, kill_all, replace_file
from .server import Server

STOP_TIMEOUT_S = 10.0
PYTHON_PATH = os.pathsep.join(str(paths.ROOT / folder) for folder in ("tools", "tests", "tests/e2e"))  # as ./strata has it
STARTING, WAITING, TAKING_OVER, SERVING, FAILED = "starting", "waiting", "taking over", "serving", "failed"


@dataclass
class State:
    """What it says of itself."""

    state: str = STARTING
    why: str = ""  # it failed, in words
    tries: int = 0  # that failed, one after the other
    again_s: float = 0.0  # after this pause it tries again
    took_over_s: float | None = None  # the last time: from when it saw its turn until it answered


class StandBy(BackgroundProcess):
    """One compute node's supervisor, if it runs. Not thread-safe."""

    def __init__(self, cluster: Path, server: Server, port: int) -> None:
        self.server = server
        self.port = port
        self._cluster = cluster
        self._command = ["compute", "standby", "run", "--cluster", str(cluster), "--data", str(server.data)]
        self._state_file = server.data / "standby.json"
        # That of the cluster's folder leads to the server that serves: no server that stands by can have it.
        own = server.data != cluster
        self.socket = server.socket if own else paths.socket_path(server.data / "tmp", "standby.sock")
        super().__init__(server.name, server.data / "standby.log", server.data / "standby.pid", self._command)
        self.waiting = BackgroundProcess(
            server.name, server.log, server.data / "standby-server.pid", [f"--datadir={server.datadir}"]
        )

    def launch(self, lease_s: float) -> None:
        self.waiting.kill()  # Its supervisor was killed.
        self.server.data.mkdir(parents=True, exist_ok=True)
        self.tell(State())
        environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
        command = [
            sys.executable,
            "-m",
            "strata_cli",
            *self._command,
            "--lease-seconds",
            f"{lease_s:g}",
        ]
        pid = self._spawn(command, self.server.data, environment)
        self.pid_file.write_text(f"{pid}\n")

    def state(self) -> State:
        try:
            return State(**json.loads(self._state_file.read_text()))
        except (OSError, ValueError, TypeError):
            return State()

    def tell(self, state: State) -> None:
        replace_file(self._state_file, json.dumps(asdict(state), indent=2) + "\n")

    def leave(self) -> bool:
        """Ends the supervisor and a server that waits; one that serves goes on. Returns whether anything ran."""
        ran = self.pid() is not None
        self.stop(STOP_TIMEOUT_S)
        if self.server.pid() is None:
            self.waiting.kill()
        return ran

    def kill_both(self) -> None:
        """kill -9."""
        kill_all([self, self.waiting])
