"""How many of the machine's cores a process may use, changed while it runs: by a cgroup's quota where one can be made, which can
be parts of a core, too; else by which cores its threads may run on."""

import contextlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

from .shell import StrataError

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
LEAST = 0.05  # Of a core; less, and it would not answer in time.
PASSES_MAX = 20


@dataclass(frozen=True)
class _Controller:
    """Where groups can be made, and how a quota is written there."""

    parent: Path
    unified: bool  # cgroup v2

    def write(self, group: Path, cores: float) -> None:
        quota = int(cores * PERIOD_US)
        if self.unified:
            (group / "cpu.max").write_text(f"{quota if quota else 'max'} {PERIOD_US}")
            return
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota or -1))


def check(cores: float) -> float:
    """0: all there are. Raises StrataError."""
    there = len(os.sched_getaffinity(0))
    if cores != 0 and not LEAST <= cores <= there:
        raise StrataError(f"{cores:g} cores: this machine has {there}; give up to so many, parts of one included, or 0 for all")
    return cores


def limit(pid: int, name: str, cores: float, root: Path = CGROUPS) -> str:
    """Lets that process use so many from now on, 0: all; returns how, in words. `name`: of its group, its own."""
    check(cores)
    for controller in _controllers(root):
        group = controller.parent / name
        try:
            group.mkdir(exist_ok=True)
            controller.write(group, cores)
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:  # Not allowed, or the controller is not there below that group.
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        return f"a quota of its cgroup {group}"
    return _bind(pid, cores)


def forget(name: str, root: Path = CGROUPS) -> None:
    """Of a process that is gone."""
    for controller in _controllers(root):
        with contextlib.suppress(OSError):
            (controller.parent / name).rmdir()


def _controllers(root: Path) -> list[_Controller]:
    """Of the group that this program is in."""
    found = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, names, place = line.split(":", 2)
        below = place.lstrip("/")
        if "cpu" in names.split(","):
            found += [_Controller(mount / below, False) for mount in (root / "cpu", root / "cpu,cpuacct") if mount.is_dir()]
        elif not names and (root / "cgroup.controllers").exists():
            found.append(_Controller(root / below, True))
    return [controller for controller in found if controller.parent.is_dir()]


def _bind(pid: int, cores: float) -> str:
    """Every thread, and those that they make meanwhile."""
    there = sorted(os.sched_getaffinity(0))
    chosen = set(there[: math.ceil(cores)] if cores else there)
    bound: set[int] = set()
    for _ in range(PASSES_MAX):
        threads = {int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()} - bound
        if not threads:
            break
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, chosen)
        bound |= threads
    whole = "" if cores == len(chosen) or not cores else ", whole ones only: no cgroup can be made here"
    return f"the cores its threads may run on ({len(chosen)}{whole})"
