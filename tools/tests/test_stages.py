"""Counting: what a test program, ctest and mtr print becomes the numbers of the summary."""

import json
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from strata_cli import build_cmd, mtr, paths, stages
from strata_cli.build_cmd import BuildType
from strata_cli.mtr import RESULT, differences
from strata_cli.shell import Outcome, StrataError
from strata_cli.spin import verdict
from strata_cli.stages import StageResult, not_run, parse_ctest, runner, summed

CTEST = """test 1
    Start 1: base_test
1: [==========] 5 tests from 2 test suites ran. (3 ms total)
1: [  PASSED  ] 5 tests.
1/4 Test #1: base_test ........................   Passed    0.01 sec
2: seeds 7 to 9
2: page_test.cc:12: Failure
2: Value of: page, STRATA_SEED=8
2: [  PASSED  ] 6 tests.
2: [  FAILED  ] 2 tests, listed below:
2: [  FAILED  ] Page.HoldsWhatItWasGiven
2: [  FAILED  ] Page.Other
2/4 Test #2: page_test ........................***Failed    0.10 sec
3/4 Test #3: tree_test ........................***Exception: SegFault  0.10 sec
4/4 Test #4: check_script .....................   Passed    0.10 sec
50% tests passed, 2 tests failed out of 4
"""


def test_ctest_counts_the_cases_and_a_crash_counts_as_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(CTEST)
    result = parse_ctest(Outcome(8, 1.0, log))
    assert (result.passed, result.failed) == (5 + 6 + 1, 2 + 1)
    assert result.details[0] == "page_test: Failed Page.HoldsWhatItWasGiven Page.Other"
    assert result.details[1:4] == ["  seeds 7 to 9", "  page_test.cc:12: Failure", "  Value of: page, STRATA_SEED=8"]
    assert result.details[-1].startswith("tree_test: Exception")


def test_ctest_that_fails_without_a_failed_test_is_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1/1 Test #1: a_test ....   Passed    0.01 sec\nstopped at the deadline of 5 s\n")
    assert parse_ctest(Outcome(124, 5.0, log)).failed == 1


NOT_BUILT = """1/2 Test #1: base_test ........................   Passed    0.01 sec
2/2 Test #2: page_test ........................***Not Run   0.00 sec
"""


def test_a_program_that_was_not_built_has_failed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(NOT_BUILT)
    result = parse_ctest(Outcome(8, 1.0, log))
    assert (result.passed, result.failed) == (1, 1)
    assert result.details[0] == "page_test: Not Run"


def test_a_program_of_which_ctest_says_nothing_has_failed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(NOT_BUILT)
    assert not_run({"base_test": True, "page_test": False}, log).failed == 0  # the second has failed already
    lost = not_run({"base_test": True, "tree_test": True, "log_test": False}, log)
    assert (lost.failed, lost.details) == (2, ["tree_test: did not run", "log_test: was not built"])
    assert not_run({"base_test": True}, None).failed == 1


LISTED: dict[str, object] = {"tests": [{"name": "a_test", "command": ["/b/a_test"]}, {"name": "b_test"}, {"name": "c_test"}]}


class SanitizedBuild:
    """Stands in for cmake, ninja and ctest, and keeps what they were asked for."""

    def __init__(self, log: Path, tests: dict[str, object]) -> None:
        self.log, self.tests = log, tests
        self.asked: list[tuple[str, ...]] = []
        self.configures = True

    def configure(self, _: BuildType) -> Outcome:
        self.log.write_text("configured")
        return Outcome(0 if self.configures else 1, 1.0, self.log)

    def build_configured(self, _: BuildType, targets: Sequence[str] = (), *, keep_going: bool = False) -> Outcome:
        assert keep_going
        self.asked.append(("ninja", *targets))
        return Outcome(0, 1.0, self.log)

    def capture(self, command: Sequence[str | Path]) -> CompletedProcess[str]:
        return CompletedProcess(list(command), 0, json.dumps(self.tests), "")

    def run_logged(self, command: Sequence[str | Path], log: Path, **_: object) -> Outcome:
        self.asked.append(tuple(map(str, command)))
        log.write_text("1/1 Test #1: a_test ....   Passed    0.01 sec\n")
        return Outcome(0, 1.0, log)


@pytest.fixture
def sanitized(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SanitizedBuild:
    stub = SanitizedBuild(tmp_path / "log", LISTED)
    monkeypatch.setattr(build_cmd, "configure", stub.configure)
    monkeypatch.setattr(build_cmd, "build_configured", stub.build_configured)
    monkeypatch.setattr(stages, "capture", stub.capture)
    monkeypatch.setattr(stages, "run_logged", stub.run_logged)
    monkeypatch.setattr(paths, "LOGS", tmp_path)
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    (tmp_path / "asan").mkdir()
    (tmp_path / "asan" / "CTestTestfile.cmake").touch()
    return stub


def test_only_what_is_drawn_is_built(sanitized: SanitizedBuild) -> None:
    result = stages.build_sanitized(BuildType.asan, {"a_test", "c_test"}.__contains__)
    assert (result.passed, result.failed) == (1, 0)
    assert sanitized.asked == [("ninja", "a_test", "c_test")]


def test_without_a_draw_everything_is_built(sanitized: SanitizedBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[BuildType] = []

    def build(build_type: BuildType) -> StageResult:
        built.append(build_type)
        return StageResult(1)

    monkeypatch.setattr(stages, "build", build)
    assert stages.build_sanitized(BuildType.asan, stages.everything).passed == 1
    assert built == [BuildType.asan] and not sanitized.asked


def test_a_build_that_takes_nothing_has_failed(sanitized: SanitizedBuild) -> None:
    assert stages.build_sanitized(BuildType.asan, lambda _: False).failed == 1
    assert stages.ctest_sanitized(BuildType.asan, 10, lambda _: False).failed == 1
    sanitized.configures = False
    assert stages.build_sanitized(BuildType.asan, {"a_test"}.__contains__).failed == 1
    assert not sanitized.asked


def test_what_is_drawn_has_to_run(sanitized: SanitizedBuild) -> None:
    alone = stages.ctest_sanitized(BuildType.asan, 10, {"a_test"}.__contains__, "-LE", "sequential")
    assert (alone.passed, alone.failed) == (1, 0)
    assert sanitized.asked[0][-4:] == ("-LE", "sequential", "-R", "^(a_test)$")
    lost = stages.ctest_sanitized(BuildType.asan, 10, {"a_test", "c_test"}.__contains__)
    assert (lost.passed, lost.failed, lost.details) == (1, 1, ["c_test: was not built"])


def test_mtr_lines() -> None:
    match = RESULT.match("engines/iuds.type_bit_iuds '--default-storage-engine=STRATA' [ pass ]   6250")
    assert match and match["result"] == "pass" and match["name"].startswith("engines/iuds.type_bit_iuds")
    failed = RESULT.match("strata.basic                             [ fail ]")
    assert failed and failed["result"] == "fail"
    assert RESULT.match("strata.basic w1 [ skipped ]  Need debug")
    assert not RESULT.match("Completed: All 14 tests were successful.")


def test_what_a_test_gave_otherwise_has_no_times_of_processes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    same = "suite.same                               [ pass ]      5\n"
    said = (
        "--- /r/a.result\n+++ /r/a.reject\n@@ -1 +1 @@\n one\n-two\n+three\n+14\troot\tlocalhost\ttest\tSleep\t1\t\tNULL\t0.000\n"
    )
    log.write_text(f"{same}suite.other                              [ fail ]\n{said}{same}")
    assert differences(log) == {"suite.other": ["-two", "+three"]}


def test_a_sum_points_at_the_log_of_what_failed() -> None:
    good, bad = StageResult(1, log=Path("good")), StageResult(0, 1, log=Path("bad"))
    assert summed(good, bad, good).log == Path("bad")


def test_what_a_runner_found_is_in_the_report(tmp_path: Path) -> None:
    said = "seed 1: ok, fine\n  the row is gone\nseed 2: FAILED, RC\n1 passed, 1 failed\n"
    result = runner(["printf", "%s", said], tmp_path / "log", timeout_s=10)
    assert (result.passed, result.failed) == (1, 1)
    assert result.details[-3:] == ["  the row is gone", "seed 2: FAILED, RC", "1 passed, 1 failed"]
    assert runner(["printf", "seed 1: ok, cut"], tmp_path / "log", timeout_s=10).failed == 1


def test_what_a_model_checker_says() -> None:
    assert verdict("State-vector 92 byte, depth reached 31, errors: 0\n") == 0
    assert verdict("pan:1: assertion violated\nState-vector 92 byte, depth reached 31, errors: 1\n") == 1
    assert verdict("error: max search depth too small\ndepth reached 31, errors: 0\n") is None
    assert verdict("Warning: Search not completed\n... errors: 1\n") == 1
    assert verdict("pan: out of memory\n") is None


def test_a_single_test_is_of_our_suites(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mtr, "OWN_SUITES", tmp_path)
    for suite, test in (("strata", "autoinc"), ("strata_rpl", "kill")):
        (tmp_path / suite / "t").mkdir(parents=True)
        (tmp_path / suite / "t" / f"{test}.test").touch()
    assert mtr.own_test("autoinc") == mtr.own_test("strata.autoinc") == "strata.autoinc"
    assert mtr.own_test("strata_rpl.kill") == "strata_rpl.kill"
    with pytest.raises(StrataError, match=r"there is no .*kill\.test"):
        mtr.own_test("kill")


def test_what_was_recorded_is_kept_beside_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mtr, "OWN_SUITES", tmp_path / "own")
    monkeypatch.setattr(mtr, "TREE", tmp_path / "tree")
    recorded = tmp_path / "tree" / "mysql-test" / "suite" / "strata" / "r"
    for folder in (recorded, tmp_path / "own" / "strata" / "r"):
        folder.mkdir(parents=True)
    (recorded / "autoinc.result").write_text("new")
    mtr.keep_recorded(["strata.autoinc"])
    assert (tmp_path / "own" / "strata" / "r" / "autoinc.result").read_text() == "new"
