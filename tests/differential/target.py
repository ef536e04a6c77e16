"""The private server both engines live in. A crash is a finding, so it can be started again on fresh data."""

import os
import shutil
import tempfile
from pathlib import Path

from strata_cli.server import Server, Settings

from .pair import Pair

# Durability is not compared here: nothing waits for a disk.
OPTIONS = (
    "--skip-networking",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--innodb-fast-shutdown=2",
    "--innodb-log-file-size=64M",
    "--loose-strata-flush-log-at-commit=0",
    "--loose-strata-direct-io=0",
    "--sync-frm=0",
    # InnoDB's own tables of statistics are locked by every CREATE and DROP: with no waiting for locks that fails at random.
    "--innodb-stats-persistent=0",
)
SMALL_POOL = ("--loose-strata-buffer-pool-size=8M", "--loose-strata-log-segment-size=1M", "--loose-strata-log-checkpoint-size=4M")
# Creating and dropping tables waits for the disk whatever is configured, and most of the time went there.
MEMORY = Path("/dev/shm")
MEMORY_LEAST = 4 << 30


def data_folder(folder: Path) -> Path:
    """In memory where there is room, else in `folder`."""
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_LEAST:
        return Path(tempfile.mkdtemp(prefix="differential-", dir=MEMORY)) / "data"
    return folder / "data"


class Target:
    def __init__(self, folder: Path, preset: str, engines: tuple[str, str], options: tuple[str, ...] = ()) -> None:
        self._kept = folder / "data"
        self._server = Server(data_folder(folder))
        self._settings = Settings(preset=preset)
        self._engines = engines
        self._options = (*OPTIONS, *options)
        self.crashes = 0

    def start(self) -> None:
        shutil.rmtree(self._server.data, ignore_errors=True)
        self._server.start(self._settings, extra=self._options)

    def stop(self, keep: bool = False) -> None:
        self._server.kill()
        data = self._server.data
        if keep and data != self._kept:
            shutil.rmtree(self._kept, ignore_errors=True)
            shutil.move(data, self._kept)
        if not keep:
            shutil.rmtree(data, ignore_errors=True)
        if data != self._kept:
            data.parent.rmdir()

    def pair(self) -> Pair:
        """Fresh schemas; a fresh server too when the last case crashed it."""
        if self._server.pid() is None:
            self.crashes += 1
            self._server.kill()
            self.start()
        return Pair(self._server.socket, self._engines)

    def log_tail(self) -> str:
        return self._server.log_tail(60)
