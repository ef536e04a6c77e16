"""A private etcd, the cluster's registry: started, found again, stopped and killed by pid.

    <folder>/data/          etcd's own files
    <folder>/etcd.log       what it said
    <folder>/etcd.pid       its pid
    <folder>/instance.json  its port and what tells its cluster from others

It listens on loopback only, without authentication: it is for development. One member; nobody connects to its peer port,
which is therefore any free one.
"""

import http.client
import json
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import etcd_packages, paths
from .process import BackgroundProcess, replace_file
from .server import choose_port
from .shell import StrataError
from .waiting import wait_until

DEFAULT_PORT = 23379  # Not etcd's own 2379, where a system's etcd may listen.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
# Changes kept for watches that lost their connection; older ones go every five minutes.
REVISIONS_KEPT = 10_000


@dataclass
class Instance:
    port: int
    token: str  # Goes into the cluster's id: clients notice when the folder was replaced by another.


class Etcd(BackgroundProcess):
    """One folder and the process that serves it, if any. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.data = self.folder / "data"
        self.instance_file = self.folder / "instance.json"
        super().__init__("etcd", self.folder / "etcd.log", self.folder / "etcd.pid", [f"--data-dir={self.data}"])

    # --- what is on disk ---------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return self.instance_file.exists()

    def instance(self) -> Instance | None:
        if not self.exists():
            return None
        try:
            instance = Instance(**json.loads(self.instance_file.read_text()))
        except (ValueError, TypeError) as error:
            raise StrataError(f"{self.instance_file} cannot be read ({error}); it names etcd's port and cluster token") from error
        return instance

    def endpoint(self) -> str:
        instance = self.instance()
        if instance is None:
            raise StrataError(f"there is no etcd in {paths.relative(self.folder)}")
        return f"http://127.0.0.1:{instance.port}"

    def _is_foreign(self) -> bool:
        return self.folder.exists() and not self.exists() and any(self.folder.iterdir())

    def wipe(self) -> None:
        if self.pid() is not None:
            raise StrataError(f"the etcd in {self.folder} is still running")
        if self._is_foreign():
            raise StrataError(f"{self.folder} does not look like an etcd folder of Strata; not deleting it")
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- the process -------------------------------------------------------------------------------------------

    def start(self, port: int | None = None, *, extra: Sequence[str] = (), timeout_s: float = START_TIMEOUT_S) -> float:
        """Starts etcd and waits until it answers; returns the seconds it took. Without a wish, the port it had before."""
        started = time.monotonic()
        self._launch(port, extra)
        if not wait_until(self._answers, timeout_s):
            self.kill()
            raise StrataError(f"etcd did not answer within {timeout_s:.0f} s:\n{self.log_tail()}")
        return time.monotonic() - started

    def _launch(self, port: int | None, extra: Sequence[str]) -> None:
        if self.pid() is not None:
            raise StrataError(f"an etcd already runs in {self.folder} (pid {self.pid()})")
        if self._is_foreign():
            raise StrataError(f"{self.folder} is not empty and holds no etcd of Strata; choose another folder")
        before = self.instance()
        chosen = choose_port(port, before.port if before else DEFAULT_PORT)
        instance = Instance(chosen, before.token if before else secrets.token_hex(16))
        command = [*self._command(instance), *extra]
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.instance_file, json.dumps(asdict(instance), indent=2) + "\n")
        # etcd takes settings from ETCD_* as well.
        env = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        self.pid_file.write_text(f"{self._spawn(command, self.folder, env)}\n")

    def _command(self, instance: Instance) -> list[str]:
        if not etcd_packages.is_ready():
            raise StrataError("etcd is not there; ./strata setup fetches it")
        client, peer = f"http://127.0.0.1:{instance.port}", "http://127.0.0.1:1"
        return [
            str(etcd_packages.etcd()),
            "--name=strata",
            f"--data-dir={self.data}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            "--listen-peer-urls=http://127.0.0.1:0",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=strata={peer}",
            f"--initial-cluster-token={instance.token}",
            "--auto-compaction-mode=revision",
            f"--auto-compaction-retention={REVISIONS_KEPT}",
            "--logger=zap",
            "--log-outputs=stderr",
        ]

    def _answers(self) -> bool:
        if end := self.ended():
            raise StrataError(
                f"etcd ended while starting ({end}). If it speaks of a damaged file below: {self.data} holds the"
                f" cluster's epochs and placement; only a copy brings them back.\n{self.log_tail(8)}"
            )
        return self.healthy()

    def healthy(self, timeout_s: float = 2.0) -> bool:
        """Whether it answers and can commit."""
        instance = self.instance()
        if instance is None:
            return False
        connection = http.client.HTTPConnection("127.0.0.1", instance.port, timeout=timeout_s)
        try:
            connection.request("GET", "/health")
            answer = json.loads(connection.getresponse().read(10_000))
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()
        return isinstance(answer, dict) and answer.get("health") == "true"

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        return super().stop(timeout_s)
