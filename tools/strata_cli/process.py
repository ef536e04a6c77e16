"""A program that runs on a folder of ours in the background: found again by its pid file, stopped, killed. By whichever
process of ./strata: the one that started it has usually ended."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .waiting import wait_until

KILL_TIMEOUT_S = 30.0


class BackgroundProcess:
    """Not thread-safe.

    `marks` are arguments, one after the other, which no other program's command line has: they name the folder. A process
    without them is a foreign one that got the pid of ours, and is never touched.
    """

    def __init__(self, name: str, log: Path, pid_file: Path, marks: Sequence[str]) -> None:
        self.name = name
        self.log = log
        self.pid_file = pid_file
        self._marks = b"\0".join(os.fsencode(mark) for mark in ("", *marks, ""))
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._last_signal: int | None = None
        self._end = "still running"

    def pid(self) -> int | None:
        """The pid of the live process. A recycled pid is recognised by its command line."""
        if self._child and self._child.poll() is None:
            return self._child.pid
        try:
            pid = int(self.pid_file.read_text())
            command_line = b"\0" + Path(f"/proc/{pid}/cmdline").read_bytes()
            if _is_dead(pid):
                return None
        except (OSError, ValueError, IndexError):
            return None
        return pid if self._marks in command_line else None

    def _spawn(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], out: Path | None = None) -> int:
        """Starts it with stderr, and stdout unless `out` is given, at the end of the log."""
        self._end = "still running"
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with contextlib.ExitStack() as files:
            log = files.enter_context(self.log.open("ab"))
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=files.enter_context(out.open("wb")) if out else log,
                stderr=log,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
        return self._child.pid

    def ended(self) -> str | None:
        """How the process that this object started has ended, if it has."""
        if self._child is None or self._child.poll() is None:
            return None
        self._forget()
        return self._end

    def stop(self, timeout_s: float) -> bool:
        """SIGTERM, a deadline, then SIGKILL. Returns whether the stop was clean."""
        return not stop_all([self], timeout_s)

    def kill(self) -> None:
        """kill -9, and waits until the process is gone."""
        pid = self.pid()
        if pid is not None:
            self._signal(pid, signal.SIGKILL)
            wait_until(lambda: self._is_gone(pid), KILL_TIMEOUT_S, every_s=0.02)
        self._forget()

    def child_pid(self) -> int | None:
        """Of what this object has started and not yet seen end."""
        return self._child.pid if self._child else None

    def kill_child(self) -> None:
        """kill -9 of what this object has started, and of nothing else that its pid file may name."""
        if self._child:
            self._child.kill()
            self._forget()

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def _is_gone(self, pid: int) -> bool:
        """Of a pid that was ours: pid() does not know a process by its command line any more while it exits."""
        if self._child and self._child.pid == pid:
            return self._child.poll() is not None
        try:
            return _is_dead(pid)
        except (OSError, IndexError):
            return True

    def wait_exit(self, timeout_s: float) -> bool:
        """Waits for a process that ends by itself (a crash at a fault point)."""
        gone = wait_until(lambda: self.pid() is None, timeout_s, every_s=0.02)
        if gone:
            self._forget()
        return gone

    def _forget(self) -> None:
        if self._child:
            code = self._child.wait()
            self._last_signal = -code if code < 0 else None
            self._end = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._child = None
        self.pid_file.unlink(missing_ok=True)

    def last_signal(self) -> int | None:
        """The signal that ended the process this object started last; None when it ended by itself or is still there."""
        return self._last_signal

    def disown(self) -> None:
        """Leaves the process running when this program ends (no zombie: init adopts it)."""
        if self._child:
            self._child.returncode = 0  # Keeps Popen from warning about a child it thinks is lost.
            self._child = None

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log_lines()[-lines:])

    def log_lines(self) -> list[str]:
        """What it logged since this object started it (the whole log otherwise)."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as source:
            source.seek(self._log_start)
            return source.read().decode(errors="replace").splitlines()


def stop_all(processes: Iterable[BackgroundProcess], timeout_s: float) -> list[BackgroundProcess]:
    """SIGTERM to all of them, one deadline, then SIGKILL. Returns those that had to be killed."""
    running = [(process, pid) for process in processes if (pid := process.pid()) is not None]
    for process, pid in running:
        process._signal(pid, signal.SIGTERM)
    wait_until(lambda: all(process._is_gone(pid) for process, pid in running), timeout_s, every_s=0.02)
    late = [process for process, pid in running if not process._is_gone(pid)]
    for process, _ in running:
        process.kill()  # For those that are gone: takes away what they left.
    return late


def kill_all(processes: Iterable[BackgroundProcess]) -> None:
    """kill -9 of all of them before any is waited for."""
    processes = list(processes)
    for process in processes:
        if (pid := process.pid()) is not None:
            process._signal(pid, signal.SIGKILL)
    for process in processes:
        process.kill()


def _is_dead(pid: int) -> bool:
    """Whether nobody has to wait for it any more but its parent: no thread is left that might hold files or ports."""
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state == "Z" and len(list(Path(f"/proc/{pid}/task").iterdir())) <= 1


def replace_file(path: Path, text: str) -> None:
    """Whole or not at all, whenever the program is killed."""
    written = path.with_suffix(".new")
    written.write_text(text)
    written.replace(path)
