"""What the operating system knows of a server's process, and how much its files take."""

import time
from dataclasses import dataclass
from pathlib import Path


def cpu_s(pid: int) -> float:
    """CPU seconds of all its threads, ended ones too, by the kernel's clock of the process (see clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


@dataclass(frozen=True)
class MachineTime:
    """All cores' time since the machine started, in the kernel's ticks."""

    whole: int
    stolen: int

    @staticmethod
    def now() -> "MachineTime":
        # user nice system idle iowait irq softirq steal
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return MachineTime(sum(ticks), ticks[7])

    def stolen_since(self) -> float:
        now = MachineTime.now()
        return (now.stolen - self.stolen) / max(now.whole - self.whole, 1)


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def disk_bytes(*files: Path) -> int:
    """Blocks allocated to these files and to what is below these folders."""
    found = [one for file in files for one in ([file] if file.is_file() else file.rglob("*")) if one.is_file()]
    return sum(one.stat().st_blocks * 512 for one in found)
