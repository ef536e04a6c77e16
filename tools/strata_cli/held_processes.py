"""Processes that do nothing for a moment (SIGSTOP), and go on afterwards: also when the one that holds them is killed, and, if it
is said so, after a time, whatever the one that holds them does."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .shell import StrataError
from .waiting import wait_until

STOP_S = 10.0  # For all threads of a process to stop.
# A process beside this one. It says that it is there; what it reads begins its time; the end of what it reads, or of that time,
# lets all go on.
WAKER = """
import os, select, signal, sys
print(flush=True)
os.read(0, 1)
select.select([0], [], [], float(sys.argv[1]) or None)
for pid in sys.argv[2:]:
    try:
        os.kill(int(pid), signal.SIGCONT)
    except ProcessLookupError:
        pass
"""
RUNS, STOPPED, ENDED = "runs", "stopped", "ended"


class Holding:
    """Some processes by name, with their pids. Begins with none of them held. Not thread-safe."""

    def __init__(self, processes: Mapping[str, int], at_most_s: float = 0.0) -> None:
        """`at_most_s`: then they go on in any case; 0: they are held until go_on()."""
        self._processes = dict(processes)
        pids = [str(pid) for pid in self._processes.values()]
        command = [sys.executable, "-S", "-E", "-c", WAKER, str(at_most_s), *pids]
        self._waker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
        self._began: float | None = None
        self._held_s: float | None = None
        assert self._waker.stdout is not None
        if not self._waker.stdout.readline():
            self._waker.communicate()
            raise StrataError(f"no process could be started that lets {', '.join(self._processes)} go on again; nothing was held")

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """Once. Whether all of those that have not ended do nothing any more."""
        assert self._waker.stdin is not None
        self._began = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # Somebody has ended it: are_held() will say so.
            self._waker.stdin.write(b"\n")
        for pid in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return wait_until(lambda: RUNS not in self.states().values(), timeout_s, every_s=0.002)

    def states(self) -> dict[str, str]:
        return {name: state_of(pid) for name, pid in self._processes.items()}

    def are_held(self) -> bool:
        """All that have not ended; nobody has let one of them go on."""
        return self._waker.poll() is None and RUNS not in self.states().values()

    def held_s(self) -> float:
        """For how long they are held, or were."""
        if self._held_s is not None:
            return self._held_s
        return 0.0 if self._began is None else time.monotonic() - self._began

    def go_on(self) -> None:
        """Any number of times."""
        if self._held_s is None:
            self._waker.communicate()
            self._held_s = self.held_s()


@contextlib.contextmanager
def holding(processes: Mapping[str, int], at_most_s: float = 0.0) -> Iterator[Holding]:
    """They go on when this ends."""
    held = Holding(processes, at_most_s)
    try:
        yield held
    finally:
        held.go_on()


def state_of(pid: int) -> str:
    """Of all its threads: one that runs may still do anything."""
    try:
        states = [_state_in(thread / "stat") for thread in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        # A thread has ended meanwhile, or all of it has.
        return RUNS if Path(f"/proc/{pid}/task").exists() else ENDED
    if all(state in "ZX" for state in states):
        return ENDED
    return STOPPED if all(state in "TZX" for state in states) else RUNS


def _state_in(stat: Path) -> str:
    return stat.read_text().rpartition(")")[2].split()[0]
