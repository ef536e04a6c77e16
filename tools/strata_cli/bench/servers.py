"""The server of a comparison: one process, both engines, the same memory and durable commits for each."""

import fcntl
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .. import paths
from ..server import Server, Settings, choose_port
from ..shell import StrataError
from .comparison import STRATA

PORT = 23406
MIB = 1 << 20


@dataclass(frozen=True)
class Memory:
    """Equal for both engines. Log space is what a restart may have to read: InnoDB's file, and for STRATA the log after which a
    checkpoint starts and half as much again, in which it ends."""

    pool_bytes: int = 1024 * MIB
    log_bytes: int = 1024 * MIB

    def options(self) -> list[str]:
        return [
            f"--innodb-buffer-pool-size={self.pool_bytes}",
            f"--innodb-log-file-size={self.log_bytes}",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-flush-method=O_DIRECT",
            "--innodb-buffer-pool-load-at-startup=OFF",
            "--innodb-buffer-pool-dump-at-shutdown=OFF",
            f"--strata-buffer-pool-size={self.pool_bytes}",
            f"--strata-log-checkpoint-size={self.log_bytes * 2 // 3}",
            "--strata-flush-log-at-commit=1",
            "--strata-direct-io=ON",
            "--max-connections=500",
            "--performance-schema=OFF",
        ]

    def options_alone(self, engine: str) -> list[str]:
        """For what is measured of the whole process: the other engine is off, or (InnoDB, the server's own) tiny."""
        if engine != STRATA:
            return [*self.options(), "--strata=OFF"]
        return [*self.options(), f"--innodb-buffer-pool-size={8 * MIB}", f"--innodb-log-file-size={8 * MIB}"]


IN_MEMORY = Memory()
ON_DISK = Memory(pool_bytes=128 * MIB)


@contextmanager
def bench_server(
    memory: Memory, engines: Sequence[str], *, preset: str = "release", env: Mapping[str, str] | None = None
) -> Iterator[Server]:
    if not paths.plugin_path(preset).exists():
        raise StrataError("ha_strata.so is not built; run ./strata build")
    server = Server(paths.BUILD / "bench" / "data")
    with alone(server.data.parent / "lock"):
        server.stop()
        shutil.rmtree(server.data, ignore_errors=True)
        try:
            settings = Settings(preset=preset, port=choose_port(None, PORT), engine=engines[0])
            server.start(settings, env=env, extra=memory.options())
            if STRATA in engines and not server.has_strata():
                raise StrataError(f"the server runs without STRATA; see {paths.relative(server.log)}")
            for engine in engines:
                server.query(f"CREATE DATABASE {database(engine)}")
            yield server
        finally:
            server.stop()


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Two benches at once would take each other's server away, and measure each other. The lock goes with its process."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StrataError(f"another ./strata bench is running ({paths.relative(lock)} is locked); wait for its end") from None
        yield


def database(engine: str) -> str:
    return f"bench_{engine.lower()}"


def machine() -> dict[str, object]:
    return {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count(), "memory_bytes": _memory_bytes()}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
