"""Running other programs: logged, with deadlines, and never more than the machine should bear."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from . import paths

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

JOBS = max(1, min(2, os.cpu_count() or 1))
# A runner that is told to end stops the servers it has started before it does; they live in sessions of their own.
END_S = 20.0


def end_cleanly_on_sigterm() -> None:
    """SIGTERM ends this program as an exception does: what it has started is stopped on the way out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


class StrataError(Exception):
    """Something the user can act on: printed as one line, without a traceback."""


@dataclass(frozen=True)
class Outcome:
    code: int
    seconds: float
    log: Path

    @property
    def ok(self) -> bool:
        return self.code == 0

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def capture(command: Sequence[str | Path], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)  # type: ignore[call-overload,no-any-return]


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = paths.ROOT,
    timeout_s: float | None = None,
    on_line: Callable[[str], None] | None = None,
    append: bool = False,
) -> Outcome:
    """Runs a command in its own process group, writes what it prints to `log`, and ends the group at the deadline."""
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("a" if append else "w") as out:
        out.write(f"$ {shlex.join(str(part) for part in command)}\n")
        out.flush()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=cwd,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        killer = _Deadline(process, timeout_s)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                out.write(line)
                if on_line:
                    on_line(line.rstrip("\n"))
            code = process.wait()
        except BaseException:
            _end_group(process)
            raise
        finally:
            killer.cancel()
        if killer.fired:
            out.write(f"\nstopped at the deadline of {timeout_s:.0f} s\n")
            code = 124
    return Outcome(code, time.monotonic() - started, log)


def _end_group(process: subprocess.Popen[str]) -> None:
    _signal_group(process, signal.SIGTERM)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        pass
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


class _Deadline:
    def __init__(self, process: subprocess.Popen[str], timeout_s: float | None) -> None:
        self.fired = False
        self._process = process
        self._timer = threading.Timer(timeout_s, self._fire) if timeout_s else None
        if self._timer:
            self._timer.daemon = True
            self._timer.start()

    def _fire(self) -> None:
        if self._process.poll() is None:
            self.fired = True
            _end_group(self._process)

    def cancel(self) -> None:
        if self._timer:
            self._timer.cancel()


def retried(action: Callable[[], bool], attempts: int = 4, wait_s: float = 3.0) -> bool:
    """Mirrors hiccup: tries a few times, waiting a little longer each time."""
    for attempt in range(attempts):
        if action():
            return True
        if attempt + 1 < attempts:
            time.sleep(wait_s * (attempt + 1))
    return False


def nice(command: Sequence[str | Path]) -> list[str | Path]:
    return ["nice", "-n", "5", *command]
