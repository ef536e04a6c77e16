"""What is asked of emulated nodes, what their files say, and when a run is void."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from strata_cli import dilation
from strata_cli.bench import same_figures
from strata_cli.bench.same_figures import Figures
from strata_cli.dilation import Emulation, Use, Wish
from strata_cli.shell import StrataError


def test_without_a_factor_nothing_is_dilated() -> None:
    assert dilation.parse(None, None) == dilation.parse(1, None) == Wish()
    assert not Wish().dilated and Wish().settings() == {}
    with pytest.raises(StrataError, match="needs --dilation"):
        dilation.parse(None, "compute=4,storage=2,client=4")


def test_cores_are_said_of_every_kind_of_node() -> None:
    wish = dilation.parse(6, "storage=2,client=4,compute=8")
    assert wish.cores_of("compute") == 8 and wish.cores_of("storage") == 2
    assert wish.settings() == {"dilation": 6, "cores": {"compute": 8, "storage": 2, "client": 4}}
    for cores in (None, "compute=4", "compute=4,storage=2,client=0", "compute=4,storage=2,client=4,client=4", "disk=1"):
        with pytest.raises(StrataError, match="--cores"):
            dilation.parse(6, cores)
    for factor in (0.5, 1001, 2.0001):
        with pytest.raises(StrataError, match="--dilation"):
            dilation.parse(factor, "compute=4,storage=2,client=4")


def node_file(file: Path, cpu_s: float = 1.0, busy_s: float = 6.0, late_s: float = 0.0) -> Path:
    times = [int(value * 1e9) for value in (cpu_s, busy_s, late_s, late_s)]
    content = struct.pack("<8sIIQqq8Q", b"strdilat", 1, 4, 6000, 11, 22, *times, 5, 6, 7, 8)
    file.write_bytes(content.ljust(dilation.BYTES, b"\0"))
    return file


def test_a_nodes_file_is_read_as_the_library_writes_it(tmp_path: Path) -> None:
    node = dilation.read(node_file(tmp_path / "a", late_s=0.3))
    assert (node.factor, node.cores) == (6.0, 4)
    assert node.use == Use(1.0, 6.0, 0.3, 0.3, 5, 6, 7, 8) and node.use.late_share == pytest.approx(0.05)
    assert "VOID" in dilation.line(tmp_path / "a") and "VOID" not in dilation.line(node_file(tmp_path / "b"))
    (tmp_path / "c").write_bytes(b"x" * dilation.BYTES)
    (tmp_path / "d").write_bytes(b"x")
    for name in ("c", "d", "none"):
        with pytest.raises(StrataError):
            dilation.read(tmp_path / name)


def test_the_latest_node_and_real_cores_void_a_run() -> None:
    before = {"s1": Use(busy_s=100.0, late_s=50.0)}
    late = {"s1": Use(busy_s=110.0, late_s=50.1), "client": Use(busy_s=10.0, late_s=0.4)}
    validity = dilation.judged(late, before, 50.0, 25.0)
    assert validity.why_void == "2.5% of all busy time was late, most of it of client"
    idle = {"s1": Use(busy_s=140.0, late_s=50.1), "client": Use(busy_s=0.001, late_s=0.3)}
    assert dilation.judged(idle, before, 50.0, 25.0).why_void is None, "its delays are a trifle"
    assert dilation.judged(idle, before, 10.0, 5.0).why_void == "client was late for 3.0% of its cores' time"
    assert dilation.judged(idle, before, 10.0, 5.0, {"client": 2}).why_void is None, "on two cores it may be twice as much"
    assert dilation.judged({}, {}, 10.0, 15.0).why_void is None
    assert dilation.judged({}, {}, 10.0, 17.0).why_void == f"1.70 of {os.cpu_count()} real cores were used" or os.cpu_count() != 2


def test_programs_of_a_node_share_a_file_and_all_nodes_an_origin(tmp_path: Path) -> None:
    emulation = Emulation(dilation.parse(6, "compute=4,storage=2,client=4"), tmp_path / "nodes")
    assert emulation.environment("s1", "storage") == {}, "not before it begins"
    emulation.begin()
    first, other = emulation.environment("s1", "storage"), emulation.environment("compute-1", "compute")
    assert first["STRATA_DILATE_ORIGIN"] == other["STRATA_DILATE_ORIGIN"]
    assert first["STRATA_DILATE_SHARED"] != other["STRATA_DILATE_SHARED"]
    assert (first["STRATA_DILATE_CORES"], other["STRATA_DILATE_CORES"]) == ("2", "4")
    assert emulation.nodes() == {}
    node_file(Path(first["STRATA_DILATE_SHARED"]))
    assert list(emulation.nodes()) == ["s1"]


def test_figures_are_compared_with_undilated_ones() -> None:
    base = Figures(1.0, "read_only", 1, 1000.0, 1.0, 500.0, 0.0)
    rows = [base, Figures(8.0, "read_only", 1, 970.0, 1.04, 500.0, 0.0)]
    assert same_figures.worst(rows) == pytest.approx(0.04)
    assert same_figures.deviations(rows)[8.0, "read_only", 1, "rate"] == pytest.approx(-0.03)
    assert same_figures.worst([base]) == 0.0


def test_a_guard_is_a_quota_that_the_kernel_takes() -> None:
    assert dilation.quota_us(1 / 8) == (25_000, 50_000)
    quota, period = dilation.quota_us(1 / 400)
    assert quota >= 1_000 and quota / period == pytest.approx(4 / 400, rel=0.01)


def test_what_is_loaded_into_a_program_is_found_out_by_trying(tmp_path: Path) -> None:
    assert dilation.preload_file().exists(), "build it first: ./strata build"
    assert dilation.why_impossible([sys.executable], tmp_path) is None
    static = tmp_path / "static"
    static.write_text("#!/nowhere\n")
    static.chmod(0o700)
    assert dilation.why_impossible([static], tmp_path) is not None
    slow = {**os.environ, **{"LD_PRELOAD": str(dilation.preload_file()), "STRATA_DILATE_FACTOR": "4", "STRATA_DILATE_CORES": "1"}}
    code = "import time; a, b = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME); time.sleep(0.05); "
    code += "print(time.monotonic() - a, time.clock_gettime(time.CLOCK_BOOTTIME) - b)"
    said = subprocess.run([sys.executable, "-c", code], env=slow, capture_output=True, text=True, check=True).stdout
    emulated_s, real_s = map(float, said.split())
    assert emulated_s >= 0.05 and real_s / emulated_s == pytest.approx(4, rel=0.05)
