"""The private server the tests of this folder run on, with tables of both engines."""

import shutil
from pathlib import Path

from strata_cli.server import Server, Settings

DURABLE = ("--skip-networking", "--innodb-stats-persistent=0", "--sync-frm=0", "--innodb-log-file-size=64M")
# Isolation is not a matter of what reaches the disk: nothing waits for it.
FAST = (
    *DURABLE,
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--innodb-fast-shutdown=2",
    "--loose-strata-flush-log-at-commit=0",
    "--loose-strata-direct-io=0",
)
SMALL_POOL = ("--loose-strata-buffer-pool-size=8M", "--loose-strata-log-segment-size=1M", "--loose-strata-log-checkpoint-size=4M")


def start(folder: Path, preset: str = "release", options: tuple[str, ...] = FAST) -> Server:
    server = Server(folder)
    shutil.rmtree(server.data, ignore_errors=True)
    server.start(Settings(preset=preset), extra=options)
    return server


def remove(server: Server) -> None:
    server.kill()
    shutil.rmtree(server.data, ignore_errors=True)
    server.socket.unlink(missing_ok=True)
