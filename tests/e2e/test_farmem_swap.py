"""The ways that far memory is compared with: a program whose memory the kernel swaps to a memory node, to a file or to zram. It
gives the answers it gives on local memory, within its limit; when the memory node, or either of our two processes, goes, the
program ends and does not hang; in every case the host is afterwards as it was.

Where this is not allowed or there is swap already, what is promised is that it is refused with the reason and nothing changes.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from strata_cli import farmem
from strata_cli.waiting import wait_until

pytestmark = pytest.mark.quick

TIMEOUT_S = 120.0
LOST, NOT_STARTED = 74, 2
# More than fits: 40 MiB that no compression makes small, read three times and changed once.
SWEEP = """
import hashlib, random
random.seed(1)
block = random.randbytes(1 << 20)
memory = [bytearray(block) for _ in range(40)]
for i, part in enumerate(memory): part[i::4096] = bytes([i]) * len(part[i::4096])
print(hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in memory * 3)).hexdigest())
"""
FOREVER = """
memory = bytearray(40 << 20)
for at in range(0, len(memory), 4096): memory[at] = 1
print("there", flush=True)
while True:
    for at in range(0, len(memory), 4096): memory[at] ^= 1
"""
TWICE = """
memory = bytearray(40 << 20)
for turn in range(2):
    for at in range(0, len(memory), 4096): memory[at] += 1
print("whole" if memory.count(2) == len(memory) // 4096 else "not whole")
"""
LOCAL = "32M"


def python(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", text]


def host() -> dict[str, object]:
    """All that a run changes."""
    return {
        "swaps": Path("/proc/swaps").read_text().splitlines()[1:],
        "page cluster": Path("/proc/sys/vm/page-cluster").read_text(),
        "loop": sorted(str(file) for file in Path("/sys/block").glob("loop*/loop/backing_file")),
        "zram": sorted(str(folder) for folder in Path("/sys/block").glob("zram*")),
        "groups": sorted(str(folder) for folder in Path("/sys/fs/cgroup").rglob("strata-farmem-*")),
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if "strata-farmem" in line],
        "folders": sorted(str(folder) for folder in Path("/tmp").glob("strata-farmem-??????")),
    }


@pytest.fixture
def unchanged() -> Iterator[None]:
    before = host()
    yield
    assert wait_until(lambda: host() == before, 30.0), f"{host()}, and was {before}"


@pytest.fixture
def node() -> Iterator[farmem.MemoryNode]:
    yield farmem.MemoryNode("256M")


def swapping(mode: str, folder: Path, **more: object) -> farmem.Options:
    return farmem.Options(**{"mode": mode, "local": LOCAL, "far": "128M", "disk_folder": folder, "timeout_ms": 2000, **more})  # type: ignore[arg-type]


def measure(place: farmem.Place | None, options: farmem.Options) -> farmem.Measured:
    try:
        return farmem.measure(place, options, python(SWEEP), TIMEOUT_S)
    except farmem.NotStartedError as why:
        pytest.skip(f"refused here: {why}")


class Started:
    """A program that touches its memory until it is ended."""

    def __init__(self, place: farmem.Place | None, options: farmem.Options) -> None:
        command = farmem.run_command(place, options, python(FOREVER))
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "there\n":
            _, said = self.process.communicate(timeout=TIMEOUT_S)
            assert self.process.returncode == NOT_STARTED, said
            pytest.skip(f"refused here: {said}")

    def child(self, name: str) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip().startswith(name))

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, said


@pytest.mark.parametrize("way", ["swap", "swap over tcp", "disk", "zram"])
def test_a_program_gives_the_same_answer_within_its_limit(unchanged: None, way: str, tmp_path: Path) -> None:
    local = subprocess.run(python(SWEEP), capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    mode = way.split()[0]
    if farmem.needs_memory_node(mode):
        with farmem.MemoryNode("256M", tcp="tcp" in way) as place:
            far = measure(place, swapping(mode, tmp_path, prefetch=7))
    else:
        far = measure(None, swapping(mode, tmp_path, prefetch=7))
    assert far.said == local.stdout
    (process,) = far.stats["processes"]
    assert far.stats["mode"] == mode and far.stats["ended"]
    assert process["bytes_in"] > 8 << 20 and process["bytes_out"] > 8 << 20 and process["faults"] > 0
    assert process["local_pages_max"] <= far.stats["local_pages_cap"] == (32 << 20) // 4096
    assert not list(tmp_path.iterdir())


def test_a_program_that_waits_for_memory_beside_free_pages_gets_on(unchanged: None, tmp_path: Path) -> None:
    """Over a slow link, with little memory, all that is local is soon in the swap as well, and nobody takes it (FM49)."""
    with farmem.MemoryNode("256M", tcp=True) as place:
        options = swapping("swap", tmp_path, local="2M", prefetch=7, link="1g", quiet=True)
        run = subprocess.run(farmem.run_command(place, options, python(TWICE)), capture_output=True, text=True, timeout=TIMEOUT_S)
    if run.returncode == NOT_STARTED:
        pytest.skip(f"refused here: {run.stderr}")
    assert run.returncode == 0 and run.stdout == "whole\n", run.stderr


def test_a_program_that_does_not_fit_is_ended(unchanged: None, tmp_path: Path) -> None:
    with farmem.MemoryNode("256M") as place:
        options = swapping("swap", tmp_path, local="8M", far="16M", quiet=True)
        began = time.monotonic()
        run = subprocess.run(farmem.run_command(place, options, python(TWICE)), capture_output=True, text=True, timeout=TIMEOUT_S)
    if run.returncode == NOT_STARTED:
        pytest.skip(f"refused here: {run.stderr}")
    assert run.returncode == LOST and "is full, or --local is too little" in run.stderr, run.stderr
    assert time.monotonic() - began < 60


def test_a_lost_memory_node_ends_the_program_with_a_reason(unchanged: None, node: farmem.MemoryNode, tmp_path: Path) -> None:
    with node as place:
        program = Started(place, swapping("swap", tmp_path, quiet=True))
        node.kill()
        killed = time.monotonic()
        code, said = program.end()
    assert code == LOST and "is lost" in said
    assert time.monotonic() - killed < 30


def test_a_silent_memory_node_ends_the_program_in_time(unchanged: None, tmp_path: Path) -> None:
    node = farmem.MemoryNode("256M", tcp=True)
    with node as place:
        program = Started(place, swapping("swap", tmp_path, quiet=True))
        os.kill(node.pid(), signal.SIGSTOP)
        try:
            code, said = program.end()
        finally:
            os.kill(node.pid(), signal.SIGCONT)
    assert code == LOST and "is lost" in said


def test_whoever_is_left_puts_everything_back(unchanged: None, node: farmem.MemoryNode, tmp_path: Path) -> None:
    with node as place:
        program = Started(place, swapping("swap", tmp_path, quiet=True))
        os.kill(program.child("fm-keeper"), signal.SIGKILL)
        code, said = program.end()
        assert code == LOST and "was ended" in said and "put back" not in said
        program = Started(place, swapping("swap", tmp_path, quiet=True))
        database = program.child("python")
        program.process.kill()
        program.end()
        assert wait_until(lambda: not Path(f"/proc/{database}").exists(), 30.0)
        assert wait_until(lambda: len(Path("/proc/swaps").read_text().splitlines()) == 1, 30.0)


def test_only_one_place_to_swap_to_at_a_time(unchanged: None, tmp_path: Path) -> None:
    program = Started(None, swapping("disk", tmp_path, prefetch=1, disk_iops=2000, quiet=True))
    try:
        assert Path("/proc/sys/vm/page-cluster").read_text() == "1\n"
        command = farmem.run_command(None, swapping("zram", tmp_path), ["echo", "started"])
        refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert refused.returncode == NOT_STARTED and "swaps to" in refused.stderr and not refused.stdout
    finally:
        program.process.send_signal(signal.SIGTERM)
        code, _ = program.end()
    assert code == 128 + signal.SIGTERM


def test_what_cannot_be_is_refused_before_anything_is_changed(unchanged: None, tmp_path: Path) -> None:
    place = farmem.Place("unix:/nowhere/socket", tmp_path / "none")
    for where, options, word in (
        (None, swapping("swap", tmp_path), "--memory-node"),
        (place, swapping("swap", tmp_path), "none"),
        (place, swapping("disk", tmp_path), "no memory node"),
        (None, swapping("disk", tmp_path, policy="second-chance"), "the kernel decides"),
        (None, swapping("zram", tmp_path, trace=tmp_path / "trace"), "--trace"),
        (None, swapping("zram", tmp_path, disk_iops=7), "--disk-iops"),
        (None, swapping("disk", tmp_path, prefetch=2), "prefetch"),
        (None, swapping("disk", tmp_path, far="16K"), "128 KiB"),
    ):
        refused = subprocess.run(
            farmem.run_command(where, options, ["echo", "started"]), capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert refused.returncode == NOT_STARTED and not refused.stdout
        known = (word, "needs root", "swaps to")  # the last two: where it is not possible anyhow
        assert any(one in refused.stderr for one in known) and refused.stderr.count("\n") == 1, refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_without_rights_it_says_so(unchanged: None, tmp_path: Path) -> None:
    command = farmem.run_command(None, swapping("disk", tmp_path), ["echo", "started"])
    try:
        refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, user=65534)
    except PermissionError:
        pytest.skip("nobody else may run what was built here")
    assert refused.returncode == NOT_STARTED and "root" in refused.stderr and not refused.stdout
