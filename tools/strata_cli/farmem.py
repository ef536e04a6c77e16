"""`./strata farmem`: unmodified programs with most of their memory in a memory node (src/farmem)."""

import contextlib
import json
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import paths
from .daemon_process import check_built
from .shell import StrataError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


def program() -> Path:
    return paths.preset_dir("release") / "cmd" / "strata-farmem" / "strata-farmem"


@dataclass(frozen=True)
class Place:
    """Where a memory node is, and what one must know to use it."""

    address: str
    secret: Path


# What a program's memory is in: far memory by our own pager (what each process allocates, or what several share), or, to
# compare with, what the kernel swaps to.
UFFD, FUSE, SWAP, DISK, ZRAM = MODES = ("uffd", "fuse", "swap", "disk", "zram")
NOT_STARTED = 2  # exit code


class NotStartedError(StrataError):
    """What is missing here for what was wished."""


@dataclass(frozen=True)
class Options:
    """Of `strata-farmem run`, as its flags take them."""

    local: str = "64M"
    far: str = ""  # 16G, or less where it is taken at once
    far_from: str = "16K"
    policy: str = "fifo"
    prefetch: int = 0
    link: str = "none"
    timeout_ms: int = 5000
    stats: Path | None = None
    trace: Path | None = None
    live: bool = False
    quiet: bool = False
    mode: str = UFFD
    disk_folder: Path | None = None
    disk_iops: int = 0
    far_files: Path | None = None

    def flags(self) -> list[str]:
        flags = ["--mode", self.mode, "--local", self.local, "--far-from", self.far_from, "--policy", self.policy]
        flags += ["--far", self.far] if self.far else []
        flags += ["--disk-folder", str(self.disk_folder)] if self.disk_folder else []
        flags += ["--disk-iops", str(self.disk_iops)] if self.disk_iops else []
        flags += ["--far-files", str(self.far_files)] if self.far_files else []
        flags += ["--prefetch", str(self.prefetch), "--link", self.link, "--timeout-ms", str(self.timeout_ms)]
        flags += ["--stats", str(self.stats)] if self.stats else []
        flags += ["--trace", str(self.trace)] if self.trace else []
        return flags + ["--live"] * self.live + ["--quiet"] * self.quiet


def needs_memory_node(mode: str) -> bool:
    return mode in (UFFD, FUSE, SWAP)


def run_command(place: Place | None, options: Options, command: Sequence[str]) -> list[str]:
    check_built(program())
    where = ["--memory-node", place.address, "--secret-file", str(place.secret)] if place else []
    return [str(program()), "run", *where, *options.flags(), "--", *command]


class MemoryNode:
    """A memory node on this machine, in a folder that is gone afterwards. Use with `with`."""

    def __init__(self, capacity: str = "16G", *, tcp: bool = False, port: int = 0) -> None:
        self._capacity = capacity
        self._listen = f"127.0.0.1:{port}" if tcp else ""
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="strata-farmem-")

    def __enter__(self) -> Place:
        check_built(program())
        folder = Path(self._folder.name)
        listen = self._listen or f"unix:{folder}/socket"
        secret = folder / "secret"
        command = [str(program()), "serve", "--listen", listen, "--secret-file", str(secret), "--capacity", self._capacity]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            return Place(self._ready_line().removeprefix("ready address="), secret)
        except BaseException:
            self.__exit__()
            raise

    def _ready_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT_S)
        line = self._process.stdout.readline().strip() if readable else ""
        if not line:
            raise StrataError("the memory node did not start (what it says is above)")
        return line

    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
            self.kill()
            assert self._process.stdout is not None
            self._process.stdout.close()
        self._folder.cleanup()


def serve(listen: str, secret: Path, capacity: str) -> int:
    check_built(program())
    return _foreground([str(program()), "serve", "--listen", listen, "--secret-file", str(secret), "--capacity", capacity])


def replay_command(
    trace: Path, policies: Sequence[str], local: Sequence[str], prefetch: Sequence[int], as_json: bool
) -> list[str]:
    check_built(program())
    flags = ["--policy", ",".join(policies), "--local", ",".join(local), "--prefetch", ",".join(map(str, prefetch))]
    return [str(program()), "replay", str(trace), *flags, *["--json"] * as_json]


def replay(trace: Path, policies: Sequence[str], local: Sequence[str], prefetch: Sequence[int], as_json: bool) -> int:
    return _foreground(replay_command(trace, policies, local, prefetch, as_json))


def run(place: Place | None, capacity: str, options: Options, command: Sequence[str]) -> int:
    """The program's exit code. Without a place: a memory node of its own, on this machine."""
    if place is not None or not needs_memory_node(options.mode):
        return _foreground(run_command(place, options, command))
    with MemoryNode(capacity) as own:
        return _foreground(run_command(own, options, command))


def _foreground(command: Sequence[str]) -> int:
    """As if it had been started instead of this: Ctrl-C and SIGTERM are its business."""
    process = subprocess.Popen(command)
    with _passing_on(process):
        return process.wait()


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM)),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),  # the terminal tells both
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Measured:
    seconds: float
    code: int
    said: str
    stats: dict[str, Any]

    def total(self, counter: str) -> int:
        return sum(int(process[counter]) for process in self.stats.get("processes", []))


def measure(place: Place | None, options: Options, command: Sequence[str], timeout_s: float) -> Measured:
    """Runs a program and takes what it says on standard output; all its memory is local without a place for what is not."""
    is_far = place is not None or not needs_memory_node(options.mode)
    with tempfile.TemporaryDirectory(prefix="strata-farmem-") as folder:
        stats = Path(folder) / "stats.json"
        started = time.monotonic()
        if is_far:
            wished = Options(**{**vars(options), "stats": stats, "quiet": True})
            command = run_command(place, wished, command)
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        seconds = time.monotonic() - started
        if is_far and done.returncode == NOT_STARTED and not stats.exists():
            raise NotStartedError(done.stderr.strip())
        if done.returncode != 0:
            raise StrataError(f"{command[-1]}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        return Measured(seconds, done.returncode, done.stdout, json.loads(stats.read_text()) if is_far else {})
