"""Processes that stand still, as after SIGSTOP: the signal returns before the last thread of a program has stopped."""

import os
import signal
from pathlib import Path

from strata_cli.waiting import wait_until


def pause(pid: int) -> None:
    """Every thread of it stands still when this returns; SIGCONT lets it go on."""
    os.kill(pid, signal.SIGSTOP)
    if not wait_until(lambda: all(_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()), 10, every_s=0.005):
        raise TimeoutError(f"process {pid} does not stop")


def _stopped(task: Path) -> bool:
    return (task / "stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
