"""Processes that are held, and go on whatever becomes of whoever held them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from strata_cli import held_processes, paths
from strata_cli.held_processes import ENDED, RUNS, STOPPED, Holding, holding, state_of
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

DEADLINE_S = 60


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    made = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
    yield made
    for process in made:
        process.kill()
        process.wait()


def pids(processes: list[subprocess.Popen[bytes]]) -> dict[str, int]:
    return {f"p{number}": process.pid for number, process in enumerate(processes)}


def run_again(processes: list[subprocess.Popen[bytes]]) -> bool:
    return wait_until(lambda: all(state_of(process.pid) == RUNS for process in processes), DEADLINE_S)


def test_all_are_held_and_go_on(processes: list[subprocess.Popen[bytes]]) -> None:
    with holding(pids(processes)) as held:
        assert held.held_s() == 0 and not held.are_held()
        assert held.stop() and held.are_held()
        assert held.states() == dict.fromkeys(("p0", "p1", "p2"), STOPPED)
        held.go_on()
        assert run_again(processes) and not held.are_held()
        told = held.held_s()
        held.go_on()
        assert told == held.held_s() > 0
    with pytest.raises(KeyError), holding(pids(processes)) as held:
        assert held.stop()
        raise KeyError
    assert run_again(processes)


def test_they_go_on_after_their_time(processes: list[subprocess.Popen[bytes]]) -> None:
    with holding(pids(processes), at_most_s=0.3) as held:
        # It begins when they are stopped.
        assert not wait_until(lambda: held._waker.poll() is not None, 0.5)
        assert held.stop()
        assert run_again(processes)
        assert not held.are_held()
        assert held.held_s() > 0.25


def test_somebody_else_lets_one_of_them_go_on(processes: list[subprocess.Popen[bytes]]) -> None:
    with holding(pids(processes)) as held:
        assert held.stop()
        os.kill(processes[1].pid, signal.SIGCONT)
        assert wait_until(lambda: held.states()["p1"] == RUNS, DEADLINE_S)
        assert not held.are_held()


def test_who_ends_does_nothing_any_more(processes: list[subprocess.Popen[bytes]]) -> None:
    processes[0].kill()
    processes[0].wait()
    with holding(pids(processes)) as held:
        assert held.stop() and held.are_held()
        processes[1].kill()  # A zombie until it is waited for.
        assert wait_until(lambda: held.states() == {"p0": ENDED, "p1": ENDED, "p2": STOPPED}, DEADLINE_S)
        assert held.are_held()
    assert run_again(processes[2:])


def test_they_go_on_when_the_holder_or_its_waker_is_killed(processes: list[subprocess.Popen[bytes]]) -> None:
    script = "import os, signal, sys; from strata_cli.held_processes import Holding; held = Holding({'p': int(sys.argv[1])});"
    script += "held.stop(); os.kill(os.getpid(), signal.SIGKILL)"
    pid = processes[0].pid
    ended = subprocess.run([sys.executable, "-c", script, str(pid)], env={**os.environ, "PYTHONPATH": str(paths.ROOT / "tools")})
    assert ended.returncode == -signal.SIGKILL
    assert run_again(processes[:1])
    with holding(pids(processes)) as held:
        assert held.stop()
        held._waker.kill()
        assert wait_until(lambda: not held.are_held(), DEADLINE_S)
        for process in processes:
            os.kill(process.pid, signal.SIGCONT)


def test_without_a_waker_nobody_is_held(monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[bytes]]) -> None:
    monkeypatch.setattr(held_processes, "WAKER", "raise SystemExit(1)")
    with pytest.raises(StrataError, match="nothing was held"):
        Holding(pids(processes))
    assert {state_of(process.pid) for process in processes} == {RUNS}


def test_a_process_that_is_not_there() -> None:
    assert state_of(2**22 + 1) == ENDED
    assert state_of(os.getpid()) == RUNS
    assert Path(f"/proc/{os.getpid()}/task").exists()
