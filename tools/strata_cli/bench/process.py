"""What the operating system knows of a server's process, and how much its files take."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..waiting import wait_until

QUIET_SHARE = 0.1  # of one core
LOOK_S = 0.5


def cpu_s(pid: int) -> float:
    """CPU seconds of all its threads, ended ones too, by the kernel's clock of the process (see clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


@dataclass(frozen=True)
class MachineTime:
    """All cores' time since the machine started, in the kernel's ticks."""

    whole: int
    stolen: int
    unused: int

    @staticmethod
    def now() -> "MachineTime":
        # user nice system idle iowait irq softirq steal
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return MachineTime(sum(ticks), ticks[7], ticks[3] + ticks[4])

    def stolen_since(self) -> float:
        now = MachineTime.now()
        return (now.stolen - self.stolen) / max(now.whole - self.whole, 1)

    def used_since(self) -> float:
        """Seconds of CPU time that some process here has had."""
        now = MachineTime.now()
        return (now.whole - self.whole - (now.stolen - self.stolen) - (now.unused - self.unused)) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(used_s: Callable[[], float], timeout_s: float) -> bool:
    """Whether what uses this CPU time came to use next to none, for as long as one look takes."""
    began, before = time.monotonic(), used_s()

    def quiet() -> bool:
        nonlocal began, before
        now = time.monotonic()
        if now - began < LOOK_S:
            return False
        share = (used_s() - before) / (now - began)
        began, before = now, used_s()
        return share < QUIET_SHARE

    return wait_until(quiet, timeout_s, every_s=LOOK_S)


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def pages_swapped_in() -> int:
    """By the whole machine, since it started; in the kernel's pages."""
    found = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(found.get("pswpin", 0))


def disk_bytes(*files: Path) -> int:
    """Blocks allocated to these files and to what is below these folders."""
    found = [one for file in files for one in ([file] if file.is_file() else file.rglob("*")) if one.is_file()]
    return sum(one.stat().st_blocks * 512 for one in found)
