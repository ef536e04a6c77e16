"""How many cores a process may use: a quota where a cgroup can be made, else the cores its threads may run on."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from strata_cli import cpu_share
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

NAME = f"strata-test-{os.getpid()}"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["python3", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()
    cpu_share.forget(NAME)


def test_only_what_the_machine_has() -> None:
    there = len(os.sched_getaffinity(0))
    for cores in (0, 0.5, there):
        assert cpu_share.check(cores) == cores
    for cores in (-1, 0.01, there + 1):
        with pytest.raises(StrataError, match=f"this machine has {there}"):
            cpu_share.check(cores)


def test_without_cgroups_threads_are_bound(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    there = os.sched_getaffinity(0)
    assert "1, whole ones only" in cpu_share.limit(process.pid, NAME, 0.5, tmp_path)
    assert len(os.sched_getaffinity(process.pid)) == 1
    cpu_share.limit(process.pid, NAME, 0, tmp_path)
    assert os.sched_getaffinity(process.pid) == there


def test_a_quota_is_written_where_that_is_possible(
    process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = cpu_share._Controller(tmp_path / "v1", False), cpu_share._Controller(tmp_path / "v2", True)
    for controller in (old, new):
        controller.parent.mkdir()
        monkeypatch.setattr(cpu_share, "_controllers", lambda _, one=controller: [one])
        for cores in (1.5, 0):
            assert str(controller.parent / NAME) in cpu_share.limit(process.pid, NAME, cores)
            file = "cpu.max" if controller.unified else "cpu.cfs_quota_us"
            said = (controller.parent / NAME / file).read_text()
            assert (
                said
                == {(True, 1.5): "150000 100000", (True, 0): "max 100000", (False, 1.5): "150000", (False, 0): "-1"}[
                    controller.unified, cores
                ]
            )
        assert (controller.parent / NAME / "cgroup.procs").read_text() == str(process.pid)


def test_it_has_effect_whichever_way_it_is_done() -> None:
    """One thread that only computes gets about the half of a core, or all of it where only whole ones can be given."""
    spin = "while True: pass"
    with subprocess.Popen(["python3", "-c", spin]) as running:
        try:
            how = cpu_share.limit(running.pid, NAME, 0.5)
            ticks, began = _ticks(running.pid), time.monotonic()
            wait_until(lambda: False, 1.0)
            used = (_ticks(running.pid) - ticks) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
            assert used < (0.75 if "quota" in how else 1.2)
        finally:
            running.kill()
    cpu_share.forget(NAME)


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
