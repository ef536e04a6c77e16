"""Emulated nodes: programs whose time is dilated by libstrata_dilate.so (src/dilate), a number of cores for each node.

A node's programs share a file, which says how much they computed and how late they were. Emulated time is real time divided by
the factor; what this program measures itself is real time.
"""

import contextlib
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from . import paths
from .bench.process import MachineTime
from .shell import StrataError, capture

FACTOR_MAX = 1000.0
CORES_MAX = 64
KINDS = ("compute", "storage", "client")
MEMORY = "memory"  # of a cluster that has such nodes; one core unless it is said
CLIENT = "client"
PREFIX = "STRATA_DILATE_"

# A run of which more is not so is void.
LATE_SHARE_MAX = 0.02  # of the time for which all emulated cores were busy; and, of each node, of the time that it took
CORES_SHARE_MAX = 0.8  # of the real cores, other programs included

# src/dilate/node_state.h
HEADER = struct.Struct("<8sIIQqq")
COUNTERS = struct.Struct("<8Q")
MAGIC = b"strdilat"
VERSION = 1
BYTES = 640


def preload_file(preset: str = "release") -> Path:
    return paths.preset_dir(preset) / "src" / "dilate" / "preload" / "libstrata_dilate.so"


@dataclass(frozen=True)
class Wish:
    """What is asked for."""

    factor: float = 1.0
    cores: tuple[tuple[str, int], ...] = ()  # by kind of node

    @property
    def dilated(self) -> bool:
        return self.factor > 1

    def cores_of(self, kind: str) -> int:
        return dict(self.cores).get(kind, 1)

    def settings(self) -> dict[str, object]:
        """Nothing where time is real: what was measured before there was this can be added to."""
        return {"dilation": self.factor, "cores": dict(self.cores)} if self.dilated else {}


def parse(factor: float | None, cores: str | None) -> Wish:
    if factor is None or factor == 1:
        if cores is not None:
            raise StrataError("--cores says how many cores emulated nodes have: it needs --dilation above 1")
        return Wish()
    if not 1 <= factor <= FACTOR_MAX or round(factor, 3) != factor:
        raise StrataError(f"--dilation {factor:g}: from 1 to {FACTOR_MAX:g}, with at most three decimals")
    if cores is None:
        raise StrataError(f"--dilation needs --cores: how many each node has, as in {','.join(f'{kind}=2' for kind in KINDS)}")
    found: dict[str, int] = {}
    for part in cores.split(","):
        kind, _, count = part.partition("=")
        if kind not in (*KINDS, MEMORY) or kind in found or not count.isdecimal() or not 1 <= int(count) <= CORES_MAX:
            raise StrataError(f"--cores {cores}: as in {','.join(f'{kind}=2' for kind in KINDS)}, each 1 to {CORES_MAX}")
        found[kind] = int(count)
    if missing := [kind for kind in KINDS if kind not in found]:
        raise StrataError(f"--cores says nothing of {', '.join(missing)}")
    return Wish(factor, tuple(sorted(found.items())))


@dataclass(frozen=True)
class Use:
    """What a node's programs have counted so far; times in real seconds."""

    cpu_s: float = 0.0
    busy_s: float = 0.0  # of its emulated cores together
    late_s: float = 0.0
    late_s_max: float = 0.0
    bookings: int = 0
    sleeps: int = 0
    slices: int = 0
    programs: int = 0

    def since(self, before: "Use") -> "Use":
        grown = {name: value - getattr(before, name) for name, value in asdict(self).items()}
        return Use(**{**grown, "late_s_max": self.late_s_max})

    @property
    def late_share(self) -> float:
        return self.late_s / self.busy_s if self.busy_s > 0 else 0.0


@dataclass(frozen=True)
class NodeFile:
    factor: float
    cores: int
    use: Use


def read(file: Path) -> NodeFile:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise StrataError(f"{file}: {error.strerror}") from None
    if len(content) != BYTES:
        raise StrataError(f"{file} is no file of an emulated node")
    magic, version, cores, factor_milli, _, _ = HEADER.unpack_from(content)
    if (magic, version) != (MAGIC, VERSION):
        raise StrataError(f"{file} is no file of an emulated node")
    counted = COUNTERS.unpack_from(content, HEADER.size)
    return NodeFile(factor_milli / 1000, cores, Use(*(value / 1e9 for value in counted[:4]), *counted[4:]))


def line(file: Path) -> str:
    """For people."""
    node = read(file)
    use = node.use
    late = f"late {use.late_s:.3f} s ({use.late_share:.1%}, at most {use.late_s_max * 1e3:.1f} ms at once)"
    void = f"; VOID: more than {LATE_SHARE_MAX:.0%}" if use.late_share > LATE_SHARE_MAX else ""
    return (
        f"{file}: {node.cores} cores, {node.factor:g} times slower, {use.programs} programs; CPU {use.cpu_s:.3f} s,"
        f" busy {use.busy_s:.3f} s in {use.bookings:,} bookings, {late}{void}"
    )


def origin_now() -> str:
    return f"{time.clock_gettime_ns(time.CLOCK_MONOTONIC)}:{time.time_ns()}"


@dataclass(frozen=True)
class Program:
    factor: float
    cores: int
    node_file: Path | None
    origin: str | None


def run(program: Program, command: Sequence[str]) -> NoReturn:
    """Becomes the program."""
    if not preload_file().exists():
        raise StrataError(f"{paths.relative(preload_file())} is not built (./strata build)")
    settings = {"FACTOR": f"{program.factor:.3f}", "CORES": str(program.cores)}
    settings |= {"SHARED": str(program.node_file.resolve())} if program.node_file else {}
    settings |= {"ORIGIN": program.origin} if program.origin else {}
    environment = {**os.environ, "LD_PRELOAD": str(preload_file()), **{PREFIX + name: value for name, value in settings.items()}}
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        raise StrataError(f"{command[0]}: {error.strerror}") from None


class Emulation:
    """The nodes of one cluster and its clients. Without dilation it is there all the same, and changes nothing."""

    def __init__(self, wish: Wish, folder: Path) -> None:
        self.wish = wish
        self.folder = folder
        self._origin = ""
        self._nodes: dict[str, str] = {}  # names, and their kinds
        self._groups: list[Path] = []

    @property
    def factor(self) -> float:
        return self.wish.factor

    def begin(self) -> None:
        """From now on emulated time runs slower. Programs that were started before are not of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in self.folder.glob("*.node"):
            file.unlink()
        self._nodes = {}
        self._origin = origin_now()

    def environment(self, node: str, kind: str) -> dict[str, str]:
        """Of a program of that node."""
        if not self._origin:
            return {}
        self._nodes[node] = kind
        return {
            "LD_PRELOAD": str(preload_file()),
            f"{PREFIX}FACTOR": f"{self.factor:.3f}",
            f"{PREFIX}CORES": str(self.wish.cores_of(kind)),
            f"{PREFIX}SHARED": str(self._file(node)),
            f"{PREFIX}ORIGIN": self._origin,
        }

    def _file(self, node: str) -> Path:
        return self.folder / f"{node}.node"

    def nodes(self) -> dict[str, Use]:
        return {node: read(self._file(node)).use for node in self._nodes if self._file(node).exists()}

    def cores(self) -> dict[str, int]:
        return {node: self.wish.cores_of(kind) for node, kind in self._nodes.items()}

    def guard(self, node: str, pid: int | None) -> None:
        """A limit of real CPU time for what slips through, where the machine lets us set one."""
        if pid is None or node not in self._nodes:
            return
        with contextlib.suppress(OSError):
            # Clusters of several variants run at once, with nodes of the same names.
            name = f"strata-dilate-{os.getpid()}-{self.folder.name}-{node}"
            group = _guarded(name, self.wish.cores_of(self._nodes[node]) / self.factor)
            if group is not None:
                self._groups.append(group)
                (group / "cgroup.procs").write_text(str(pid))

    def end(self) -> None:
        for group in self._groups:
            with contextlib.suppress(OSError):
                group.rmdir()  # its programs have ended
        self._groups = []


# What sleeping takes is not charged, but the kernel counts it: as much again, where a thread computes for 30 us and sleeps.
# The period is much longer than the 5 ms that the kernel gives a core at a time, or one core uses up what another needs.
GUARD_FACTOR = 4.0
PERIOD_US_MIN, QUOTA_US_MIN = 50_000, 1_000
CGROUPS = Path("/sys/fs/cgroup")


def quota_us(cores: float) -> tuple[int, int]:
    """Quota and period for so many real cores: the kernel takes no quota below a millisecond."""
    period_us = max(PERIOD_US_MIN, int(QUOTA_US_MIN / (cores * GUARD_FACTOR)) + 1)
    return max(QUOTA_US_MIN, int(cores * GUARD_FACTOR * period_us)), min(period_us, 1_000_000)


def _guarded(name: str, cores: float) -> Path | None:
    quota, period = quota_us(cores)
    if (CGROUPS / "cgroup.controllers").exists():
        if "cpu" not in (CGROUPS / "cgroup.subtree_control").read_text().split():
            return None
        group = CGROUPS / name
        group.mkdir(exist_ok=True)
        (group / "cpu.max").write_text(f"{quota} {period}")
        return group
    if not (CGROUPS / "cpu" / "cpu.cfs_quota_us").exists():
        return None
    group = CGROUPS / "cpu" / name
    group.mkdir(exist_ok=True)
    (group / "cpu.cfs_period_us").write_text(str(period))
    (group / "cpu.cfs_quota_us").write_text(str(quota))
    return group


def why_impossible(programs: Sequence[str | Path], folder: Path) -> str | None:
    """Why these programs cannot be dilated; None: they can. Each is asked for its version, which must leave a trace."""
    if not preload_file().exists():
        return f"{paths.relative(preload_file())} is not built"
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs:
        trace = folder / "trial.node"
        trace.unlink(missing_ok=True)
        settings = {f"{PREFIX}FACTOR": "2", f"{PREFIX}CORES": "1", f"{PREFIX}SHARED": str(trace)}
        try:
            capture([program, "--version"], env={**os.environ, "LD_PRELOAD": str(preload_file()), **settings}, timeout=60)
        except OSError as error:
            return f"{program}: {error.strerror}"
        if not trace.exists() or read(trace).use.programs == 0:
            return f"{program} loads no library in front of its own (is it linked statically?)"
        trace.unlink()
    return None


@dataclass(frozen=True)
class Validity:
    """Of one run."""

    late_share: float = 0.0  # of the busy time of all nodes
    latest: str = ""  # the node of which most of it was
    slowest: str = ""  # the node that was late for most of its cores' time
    slowest_share: float = 0.0  # of the run, times its cores
    cores_used: float = 0.0  # real ones, by all programs
    cores: int = 1

    @property
    def why_void(self) -> str | None:
        if self.late_share > LATE_SHARE_MAX:
            return f"{self.late_share:.1%} of all busy time was late, most of it of {self.latest}"
        if self.slowest_share > LATE_SHARE_MAX:
            return f"{self.slowest} was late for {self.slowest_share:.1%} of its cores' time"
        if self.cores_used > CORES_SHARE_MAX * self.cores:
            return f"{self.cores_used:.2f} of {self.cores} real cores were used"
        return None


@contextlib.contextmanager
def watched(emulation: Emulation | None) -> Iterator[Callable[[], Validity | None]]:
    """How valid what happens within it is can be asked afterwards. None: nothing is dilated."""
    if emulation is None:
        yield lambda: None
        return
    before, machine, began = emulation.nodes(), MachineTime.now(), time.monotonic()
    found: list[Validity] = []
    yield lambda: found[0]
    elapsed_s, used_s = time.monotonic() - began, machine.used_since()
    found.append(judged(emulation.nodes(), before, elapsed_s, used_s, emulation.cores()))


def judged(
    after: Mapping[str, Use], before: Mapping[str, Use], elapsed_s: float, used_s: float, cores: Mapping[str, int] | None = None
) -> Validity:
    """A node that hardly computes is judged by the time that passed on its cores: of its busy time any delay would be much."""
    grown = {node: use.since(before.get(node, Use())) for node, use in after.items()}
    busy_s = sum(use.busy_s for use in grown.values())
    late_s = sum(use.late_s for use in grown.values())
    shares = {node: use.late_s / (elapsed_s * (cores or {}).get(node, 1)) for node, use in grown.items()}
    return Validity(
        late_share=late_s / busy_s if busy_s else 0.0,
        latest=max(grown, key=lambda node: grown[node].late_s, default=""),
        slowest=max(shares, key=lambda node: shares[node], default=""),
        slowest_share=max(shares.values(), default=0.0),
        cores_used=used_s / elapsed_s,
        cores=os.cpu_count() or 1,
    )
