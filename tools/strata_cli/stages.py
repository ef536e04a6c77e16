"""The stages of `./strata test`: each runs something, counts what passed and failed, or says why it was skipped."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from . import build_cmd, mtr, mtr_nodes, paths
from . import spin as spin_models
from .bench.sysbench import sweep
from .build_cmd import BuildType
from .draw import TIDY_SHARE
from .profile_list import MONOLITHIC
from .server import TEST_BINLOG, Server
from .shell import JOBS, Outcome, capture, nice, run_logged
from .storage_beneath import storage_beneath

PYTHON_FOLDERS = ("strata", "tools", "tests", "bench")
FOUND_LINES = 60  # of a failed runner's output in the report
FAILURE_LINES = 10  # of a failed test program
FUZZ = paths.ROOT / "tests" / "fuzz"
SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}

Takes = Callable[[str], bool]  # whether a run takes the one of this name


def everything(_: str) -> bool:
    return True


@dataclass
class StageResult:
    passed: int = 0
    failed: int = 0
    skipped: str = ""  # Why the stage did not run.
    details: list[str] = field(default_factory=list)  # What failed, for the summary.
    log: Path | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Stage:
    name: str
    action: Callable[[], StageResult]


def from_outcome(outcome: Outcome, name: str) -> StageResult:
    """A check is one test: it passes or it fails with the end of its log."""
    if outcome.ok:
        return StageResult(passed=1, log=outcome.log)
    return StageResult(failed=1, details=[f"{name}:", outcome.tail(15)], log=outcome.log)


def summed(*results: StageResult) -> StageResult:
    total = StageResult(log=next((result.log for result in results if result.failed), None))
    for result in results:
        total.passed += result.passed
        total.failed += result.failed
        total.details += result.details
    return total


# --- building and unit tests ---------------------------------------------------------------------------------------


def build(build_type: BuildType) -> StageResult:
    return from_outcome(build_cmd.try_build(build_type, keep_going=True), f"build {build_type}")


def ctest(build_type: BuildType, timeout_s: float, extra: tuple[str, ...] = ()) -> StageResult:
    """Counts the GoogleTest cases inside each test program; a program without any counts as one."""
    folder = paths.preset_dir(build_type)
    if not (folder / "CTestTestfile.cmake").exists():
        return StageResult(skipped=f"build/{build_type} is not configured")
    slots = 2 * JOBS + 1  # a program has two, one that mostly waits has one (cmake/strata.cmake)
    command = nice(["ctest", "--test-dir", folder, "-V", "-j", str(slots), "--timeout", "900", *extra])
    outcome = run_logged(command, paths.LOGS / f"ctest-{build_type}.log", env=SANITIZER_ENV, timeout_s=timeout_s)
    return parse_ctest(outcome)


def programs_taken(build_type: BuildType, takes_program: Takes, *extra: str) -> dict[str, bool]:
    """Of a configured build those that are taken, each with whether it was built. `extra` narrows down as it does for ctest."""
    folder = paths.preset_dir(build_type)
    listed = capture(["ctest", "--test-dir", folder, "--show-only=json-v1", *extra])
    tests = json.loads(listed.stdout)["tests"] if listed.returncode == 0 else []
    return {test["name"]: "command" in test for test in tests if takes_program(test["name"])}


def build_sanitized(build_type: BuildType, takes_program: Takes, *extra: str) -> StageResult:
    """Builds the test programs that are taken, and what these need: each test is a target of its own name."""
    if takes_program is everything:
        return build(build_type)
    outcome = build_cmd.configure(build_type)
    taken = list(programs_taken(build_type, takes_program, *extra)) if outcome.ok else []
    if outcome.ok and not taken:
        return StageResult(failed=1, details=[f"of build/{build_type} no test program was taken"], log=outcome.log)
    if outcome.ok:
        outcome = build_cmd.build_configured(build_type, taken, keep_going=True)
    return from_outcome(outcome, f"build {build_type}, {len(taken)} test programs")


def ctest_sanitized(build_type: BuildType, timeout_s: float, takes_program: Takes, *extra: str) -> StageResult:
    """The test programs that are taken: one that was not built, or of which ctest says nothing, has failed."""
    taken = programs_taken(build_type, takes_program, *extra)
    if not taken:
        return StageResult(failed=1, details=[f"of build/{build_type} no test program was taken"])
    result = ctest(build_type, timeout_s, (*extra, "-R", f"^({'|'.join(map(re.escape, taken))})$"))
    return summed(result, not_run(taken, result.log))


def not_run(taken: Mapping[str, bool], log: Path | None) -> StageResult:
    """Those of which ctest says nothing at all, be it that it was stopped: the others are counted by parse_ctest()."""
    ran = {name for _, name, _ in _program_lines(log.read_text(errors="replace") if log else "")}
    lost = [f"{name}: {'did not run' if built else 'was not built'}" for name, built in taken.items() if name not in ran]
    return StageResult(failed=len(lost), details=lost, log=log)


def write_prefixes(seed: int, timeout_s: float) -> StageResult:
    """Recovery from every moment of a long run, several copies of the disk each."""
    program = paths.preset_dir(BuildType.release) / "src" / "engine" / "engine_write_prefix_test"
    env = {
        "STRATA_SEED": str(seed),
        "STRATA_PREFIX_STEPS": "2500",
        "STRATA_PREFIX_COPIES": "4",
        "STRATA_PREFIX_SAVE": str(paths.BUILD),
    }
    outcome = run_logged(nice([program]), paths.LOGS / f"write-prefix-{seed}.log", env=env, timeout_s=timeout_s)
    return from_outcome(outcome, f"write prefixes, seed {seed}")


def corruption(seed: int, timeout_s: float) -> StageResult:
    """Files damaged in many random places: reported, or harmless, never served."""
    program = paths.preset_dir(BuildType.release) / "src" / "engine" / "engine_corruption_test"
    env = {"STRATA_SEED": str(seed), "STRATA_CORRUPTION_TRIALS": "12000"}
    outcome = run_logged(nice([program]), paths.LOGS / f"corruption-{seed}.log", env=env, timeout_s=timeout_s)
    return from_outcome(outcome, f"corruption, seed {seed}")


def _fuzz_one(name: str, seconds: int) -> StageResult:
    """Goes on from the committed corpus and from what earlier runs found; what breaks it is kept in build/fuzz/found."""
    folder = paths.preset_dir(BuildType.fuzz)
    corpus, found = folder / "corpus" / name, folder / "found"
    for made in (corpus, found):
        made.mkdir(parents=True, exist_ok=True)
    program = folder / "tests" / "fuzz" / f"fuzz_{name}"
    limits = [f"-max_total_time={seconds}", "-timeout=25", "-rss_limit_mb=2000", "-max_len=2048"]
    places: list[str | Path] = [f"-artifact_prefix={found / name}-", corpus, FUZZ / "corpus" / name]
    command: list[str | Path] = [program, *limits, *places]
    outcome = run_logged(nice(command), paths.LOGS / f"fuzz-{name}.log", timeout_s=seconds + 300)
    return from_outcome(outcome, f"fuzz {name}")


def fuzz(seconds: int) -> StageResult:
    """Every target of tests/fuzz for so many seconds, as many at once as the machine should bear."""
    built = build(BuildType.fuzz)
    if built.failed:
        return built
    names = sorted(path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.cc"))
    with ThreadPoolExecutor(JOBS) as pool:
        return summed(built, *pool.map(lambda name: _fuzz_one(name, seconds), names))


def parse_ctest(outcome: Outcome) -> StageResult:
    text = outcome.log.read_text(errors="replace")
    if "No tests were found" in text:
        return StageResult(skipped="no tests are built", log=outcome.log)
    result = StageResult(log=outcome.log)
    for number, name, verdict in _program_lines(text):
        cases = re.findall(rf"^{number}: \[  (PASSED|FAILED)  \] (\d+) tests?", text, re.MULTILINE)
        passed = sum(int(count) for kind, count in cases if kind == "PASSED")
        failed = sum(int(count) for kind, count in cases if kind == "FAILED")
        good = verdict.startswith("Passed")
        result.passed += passed if cases or not good else 1
        result.failed += max(failed, 0 if good else 1)
        if not good:
            named = re.findall(rf"^{number}: \[  FAILED  \] (\w+\.\S+)", text, re.MULTILINE)
            result.details.append(f"{name}: {verdict.strip('* ')} {' '.join(sorted(set(named)))}".rstrip())
            result.details.extend(_first_failure(re.findall(rf"^{number}: (.*)", text, re.MULTILINE)))
    if not outcome.ok and result.failed == 0:
        result.failed = 1
        result.details.append(outcome.tail(10))
    return result


def _program_lines(text: str) -> list[tuple[str, str, str]]:
    """What ctest says at the end of each program: its number, name and verdict."""
    return re.findall(r"^ *\d+/\d+ Test +#(\d+): (\S+) \.+ *(\**[A-Za-z][A-Za-z ]*)", text, re.MULTILINE)


def _first_failure(lines: list[str]) -> list[str]:
    """Of a test program's output: what the first failure says, and the seed, without which nobody finds it again."""
    failure = next((at for at, line in enumerate(lines) if line.endswith(": Failure") or "Sanitizer: " in line), None)
    if failure is None:
        return [f"  {line}" for line in lines[-FAILURE_LINES:]]
    seeds = [line for line in lines[:failure] if re.search(r"\bseeds?\b", line)][-1:]
    return [f"  {line}" for line in (*seeds, *lines[failure : failure + FAILURE_LINES])]


# --- checks --------------------------------------------------------------------------------------------------------


def check(name: str, *command: str | Path, timeout_s: float = 600) -> StageResult:
    return from_outcome(run_logged(nice(list(command)), paths.LOGS / f"check-{name}.log", timeout_s=timeout_s), name)


def python_check(script: str, *arguments: str, timeout_s: float = 600) -> StageResult:
    name = script.removeprefix("check_").removesuffix(".py")
    return check(name, paths.venv_bin("python3"), paths.ROOT / "tools" / script, *arguments, timeout_s=timeout_s)


def layers() -> StageResult:
    return python_check("check_layers.py")


def _cpp_files() -> list[Path]:
    folders = [paths.ROOT / name for name in ("src", "mariadb", "tests", "bench", "cmd")]
    return [p for folder in folders for p in sorted(folder.rglob("*")) if p.suffix in (".h", ".cc") and p.is_file()]


def _python_places() -> list[Path]:
    return [paths.ROOT / name for name in PYTHON_FOLDERS if (paths.ROOT / name).exists()]


def cpp_format() -> StageResult:
    files = _cpp_files()
    return check("format", "clang-format-14", "--dry-run", "-Werror", *files) if files else StageResult()


def format_sources() -> None:
    subprocess.run(["clang-format-14", "-i", *_cpp_files()], check=True)
    cache = paths.BUILD / "checks" / "ruff"
    for action in (["check", "--fix", "--quiet"], ["format", "--quiet"]):
        subprocess.run([paths.venv_bin("ruff"), *action, "--cache-dir", cache, *_python_places()], check=True)


def python_checks() -> StageResult:
    cache = paths.BUILD / "checks" / "ruff"
    existing = _python_places()
    ruff = paths.venv_bin("ruff")
    typed = [paths.ROOT / "tools" / "strata_cli", paths.ROOT / "tools" / "tests"]
    typed += [paths.ROOT / "tests" / name for name in ("applications", "differential", "e2e", "isolation", "stress", "upgrade")]
    typed += sorted((paths.ROOT / "tools").glob("*.py"))
    return summed(
        check("ruff", ruff, "check", "--cache-dir", cache, *existing),
        check("ruff-format", ruff, "format", "--check", "--cache-dir", cache, *existing),
        check("mypy", paths.venv_bin("mypy"), *typed),
    )


def quick_checks() -> StageResult:
    checkers = [
        python_check(f"check_{name}.py")
        for name in ("readmes", "comments", "invariants", "declared", "manual", "errors", "results", "pictures")
    ]
    return summed(layers(), cpp_format(), *checkers, python_checks())


def spin(takes_model: Takes = everything) -> StageResult:
    """Every interleaving of the protocol models, and of copies with one rule broken, which must be found."""
    checks = [check for check in spin_models.CHECKS if takes_model(f"{check.model} {check.name}")]
    problems = [text for text in map(spin_models.problem, checks) if text]
    return StageResult(len(checks) - len(problems), len(problems), details=problems)


def slow_checks(drawn_from: str | None) -> StageResult:
    """clang-tidy looks at the share of the sources that is drawn from a commit, or at all of them."""
    share = [] if drawn_from is None else ["--share", str(TIDY_SHARE), "--draw", drawn_from]
    return summed(
        python_check("check_headers.py"),
        python_check("check_locks.py", "--time-limit-s", "500"),
        python_check("check_tidy.py", "--time-limit-s", "900", *share, timeout_s=1000),
    )


# --- with a server -------------------------------------------------------------------------------------------------


def pytest(name: str, *arguments: str | Path, timeout_s: float, env: Mapping[str, str] | None = None) -> StageResult:
    """A skipped test counts as failed: what the tests need, `./strata setup` and `build` provide."""
    command = nice([paths.venv_bin("python3"), "-m", "pytest", "-q", "-rfEs", *arguments])
    outcome = run_logged(command, paths.LOGS / f"pytest-{name}.log", env=env, timeout_s=timeout_s)
    counts = dict.fromkeys(("passed", "failed", "error", "skipped"), 0)
    for count, kind in re.findall(r"(\d+) (passed|failed|error|skipped)s?\b", outcome.tail(3)):
        counts[kind] = int(count)
    failed = counts["failed"] + counts["error"] + counts["skipped"]
    result = StageResult(counts["passed"], failed, log=outcome.log)
    if failed or not outcome.ok:
        result.failed = max(failed, 1)
        result.details.append(outcome.tail(15))
    return result


def tool_tests() -> StageResult:
    return pytest("tools", paths.ROOT / "tools" / "tests", timeout_s=300)


def e2e(quick: bool, binlog: bool = False, takes_file: Takes = everything) -> StageResult:
    """With `binlog` every server that a test starts keeps a binary log (server.py)."""
    env = {TEST_BINLOG: "1"} if binlog else {}
    folder = paths.ROOT / "tests" / "e2e"
    # Not the files that are taken: what is named is collected even where conftest.py leaves it out.
    left_out = [f"--ignore={file}" for file in sorted(folder.glob("test_*.py")) if not takes_file(file.stem)]
    return pytest("e2e", folder, *left_out, *(("-m", "quick") if quick else ()), timeout_s=1800, env=env)


def isolation_tests() -> StageResult:
    return pytest("isolation", paths.ROOT / "tests" / "isolation", timeout_s=900)


def runner(command: list[str | Path], log: Path, timeout_s: float) -> StageResult:
    """A runner of ours: a line for each of its cases, what it found below, and the sum in its last line."""
    outcome = run_logged(nice(command), log, env={"PYTHONUNBUFFERED": "1"}, timeout_s=timeout_s)
    match = re.search(r"^(\d+) passed, (\d+) failed$", outcome.tail(1))
    if not match:
        return StageResult(failed=1, details=["it did not finish:", outcome.tail(FOUND_LINES)], log=log)
    result = StageResult(int(match[1]), int(match[2]), log=log)
    if result.failed:
        said = log.read_text(errors="replace").splitlines()
        result.details += [line for line in said if not re.match(r"(seed \S+: ok|\d+ statements, )", line)][:FOUND_LINES]
    return result


def isolation_command(seconds: float, seed: int, *extra: str) -> list[str | Path]:
    return [paths.venv_bin("python3"), "-m", "isolation", "--seconds", str(seconds), "--seed", str(seed), *extra]


def isolation(seconds: float, seed: int, profile: str = MONOLITHIC) -> StageResult:
    """Histories of concurrent clients at every isolation level."""
    command = isolation_command(seconds, seed, "--profile", profile)
    return runner(command, paths.LOGS / f"isolation-{profile}-{seed}.log", timeout_s=seconds + 300)


def isolation_several(seconds: float, seed: int, servers: int, faults: int) -> StageResult:
    """Histories on several servers that write the same tables; so many faults in each."""
    command = isolation_command(seconds, seed, "--profile", "fusion", "--servers", str(servers), "--faults", str(faults))
    return runner(command, paths.LOGS / f"isolation-fusion-{servers}-{seed}.log", timeout_s=seconds + 900)


def needs_plugin(action: Callable[[], StageResult]) -> Callable[[], StageResult]:
    def run() -> StageResult:
        if not paths.plugin_path("release").exists():
            return StageResult(skipped="ha_strata.so is not built")
        return action()

    return run


def crash_command(runs: int | None, seed: int, *extra: str) -> list[str | Path]:
    count = [] if runs is None else ["--runs", str(runs)]
    return [paths.venv_bin("python3"), "-m", "crash", *count, "--seed", str(seed), *extra]


def crash(runs: int, seed: int, timeout_s: float, binlog: str) -> StageResult:
    command = crash_command(runs, seed, "--binlog", binlog, "--time-limit-s", str(timeout_s - 60))
    return runner(command, paths.LOGS / "crash.log", timeout_s=timeout_s)


def crash_errors(runs: int, seed: int, limit_s: float, binlog: str) -> StageResult:
    """Errors without a crash: so many runs, or as many as the time allows."""
    command = crash_command(runs, seed, "--errors", "--binlog", binlog, "--time-limit-s", str(limit_s))
    return runner(command, paths.LOGS / "crash-errors.log", timeout_s=limit_s + 300)


def crash_on_clusters(faults: int, seed: int, limit_s: float, binlog: str, profile: str = "every") -> StageResult:
    """So many faults, or as many as the time allows; with profile "every" the runs take turns with the profiles."""
    extra = ["--profile", profile, "--faults", str(faults), "--time-limit-s", str(limit_s), "--binlog", binlog]
    return runner(crash_command(None, seed, *extra), paths.LOGS / f"crash-{profile}.log", timeout_s=limit_s + 300)


def differential_command(statements: int, seed: int, *extra: str) -> list[str | Path]:
    return [paths.venv_bin("python3"), "-m", "differential", "--statements", str(statements), "--seed", str(seed), *extra]


def differential(seed: int, statements: int, limit_s: int | None = None, profile: str = MONOLITHIC) -> StageResult:
    """Random SQL on STRATA and InnoDB, so many statements or as many as the time allows; a case whose answers differ fails."""
    extra = ["--failures", "5", "--minimise", "--profile", profile, *(["--time-limit-s", str(limit_s)] if limit_s else [])]
    command = differential_command(statements, seed, *extra)
    return runner(command, paths.LOGS / f"differential-{profile}.log", timeout_s=(limit_s or statements / 100) + 900)


def differential_several(seed: int, statements: int, limit_s: int, servers: int) -> StageResult:
    """The same, with STRATA's statements on several servers that write the same tables."""
    extra = ["--failures", "5", "--minimise", "--profile", "fusion", "--servers", str(servers), "--time-limit-s", str(limit_s)]
    command = differential_command(statements, seed, *extra)
    return runner(command, paths.LOGS / f"differential-fusion-{servers}.log", timeout_s=limit_s + 1200)


def stress_command(seconds: float, seed: int, *extra: str) -> list[str | Path]:
    return [paths.venv_bin("python3"), "-m", "stress", "--seconds", str(seconds), "--seed", str(seed), *extra]


def stress(seconds: float, seed: int, kills: bool) -> StageResult:
    """Statements of every kind on several servers, while some are killed or not."""
    name = "stress-kills" if kills else "stress"
    command = stress_command(seconds, seed, *(["--kills"] if kills else []))
    return runner(command, paths.LOGS / f"{name}-{seed}.log", timeout_s=3 * seconds + 900)


def differential_tests() -> StageResult:
    return pytest("differential", paths.ROOT / "tests" / "differential", timeout_s=300)


def applications(timeout_s: float) -> StageResult:
    """Tests that belong to Django and SQLAlchemy: what passes on InnoDB passes on STRATA."""
    return runner([paths.venv_bin("python3"), "-m", "applications"], paths.LOGS / "applications.log", timeout_s=timeout_s)


def applications_several(timeout_s: float) -> StageResult:
    """The same on three servers that write the same tables: what passes on one passes there."""
    log = paths.LOGS / "applications-several.log"
    return runner([paths.venv_bin("python3"), "-m", "applications", "--several"], log, timeout_s=timeout_s)


def sysbench(seconds: int) -> StageResult:
    """Every oltp workload with 8 threads runs to its end without an error."""
    problems = sweep("STRATA", seconds)
    bad = [f"{workload}: {text}" for workload, text in problems.items() if text]
    return StageResult(len(problems) - len(bad), len(bad), details=bad)


def sysbench_sanitized(seconds: int) -> StageResult:
    """The same with the plugin under ASan and UBSan in the stock server, which preloads the sanitizer's library."""
    built = build_cmd.try_build(BuildType.asan, ("ha_strata",))
    if not built.ok:
        return from_outcome(built, "build ha_strata, asan")
    library = capture(["g++", "-print-file-name=libasan.so"]).stdout.strip()
    report = paths.LOGS / "sanitizer"
    for old in paths.LOGS.glob("sanitizer.*"):
        old.unlink()
    # The server frees little at its end, looks at its own memory after a signal, and does not undo the poisoning that its
    # headers put into a plugin built for ASan.
    asan = f"detect_leaks=0:allow_user_poisoning=0:handle_segv=0:handle_sigill=0:handle_abort=0:log_path={report}"
    env = {
        "LD_PRELOAD": str(Path(library).resolve()),
        "ASAN_OPTIONS": asan,
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={report}",
    }
    problems = sweep("STRATA", seconds, preset="asan", env=env)
    bad = [f"{workload}: {text}" for workload, text in problems.items() if text]
    bad += [f"{path.name}:\n{path.read_text()[:3000]}" for path in sorted(paths.LOGS.glob("sanitizer.*"))]
    return StageResult(len(problems) - min(len(problems), len(bad)), len(bad), details=bad)


def soak_command(seconds: float, seed: int) -> list[str | Path]:
    return [paths.venv_bin("python3"), "-m", "soak", "--seconds", str(seconds), "--seed", str(seed)]


def soak(seconds: int, seed: int) -> StageResult:
    outcome = run_logged(nice(soak_command(seconds, seed)), paths.LOGS / f"soak-{seed}.log", timeout_s=seconds + 600)
    return from_outcome(outcome, f"soak, {seconds} s, seed {seed}")


def replication_command(rounds: int, seed: int) -> list[str | Path]:
    return [paths.venv_bin("python3"), "-m", "replication", "--rounds", str(rounds), "--seed", str(seed)]


def replication(rounds: int, seed: int) -> StageResult:
    command = nice(replication_command(rounds, seed))
    outcome = run_logged(command, paths.LOGS / f"replication-{seed}.log", timeout_s=120 * rounds)
    return from_outcome(outcome, f"replication, {rounds} rounds, seed {seed}")


def mtr_own(profile: str = MONOLITHIC) -> StageResult:
    if not mtr.OWN_SUITES.exists():
        return StageResult(skipped="mariadb/mysql-test is not there")
    mtr.prepare("release")
    # The tests of strata_rpl have two servers, each with a database of its own.
    return _mtr_on(profile, "strata,strata_rpl" if profile == MONOLITHIC else "strata", mtr.OWN_OPTIONS, 900, set())


def mtr_named(names: Sequence[str], profile: str, record: bool) -> StageResult:
    """Single tests of the own suites; with `record` what they gave becomes what they have to give."""
    tests = [mtr.own_test(name) for name in names]
    mtr.prepare("release")
    options = [*mtr.OWN_OPTIONS, *(["--record"] if record else [])]
    result = _mtr_on(profile, mtr.suites_of(tests), options, 600, set(), tests)
    if record and not result.failed:
        mtr.keep_recorded(tests)
    return result


def mtr_engine_suite(suite: str, timeout_s: float, *extra: str, profile: str = MONOLITHIC) -> StageResult:
    """A suite of MariaDB's own, every table in STRATA; what is known not to pass is listed with its reason."""
    mtr.prepare("release")
    return _mtr_on(profile, suite, [*mtr.engine_options("STRATA"), *extra], timeout_s, _expected_failures())


def mtr_selected(timeout_s: float, *, longer: bool = False) -> StageResult:
    """Single tests of MariaDB's own suites (tests/mtr/selected.txt), every table in STRATA."""
    mtr.prepare("release")
    tests = mtr.selected(longer)
    options = mtr.engine_options("STRATA")
    result = mtr.run(mtr.suites_of(tests), options, timeout_s=timeout_s, tests=tests, label="selected", env={"ENGINE": "STRATA"})
    return _from_mtr(result, set())


def mtr_rewritten(timeout_s: float) -> StageResult:
    """Tests of MariaDB's own suites that name InnoDB (tests/mtr/rewritten.txt), with STRATA in its place."""
    mtr.prepare("release")
    tests = mtr.rewrite(mtr.rewritten())
    options = [option for option in mtr.engine_options("STRATA") if not option.startswith("--combination")]  # they have their own
    result = mtr.run(mtr.suites_of(tests), options, timeout_s=timeout_s, tests=tests, label="rewritten")
    found = mtr.differences(result.outcome.log) if result.outcome is not None else {}
    as_known = {name for name, lines in found.items() if lines and lines == mtr.recorded_differences(name)}
    stage = _from_mtr(result, as_known)
    stage.passed += len(as_known)
    return stage


def mtr_several(timeout_s: float, profile: str, takes_test: Takes = everything) -> StageResult:
    """MariaDB's tests for Galera's clusters (tests/mtr/nodes.txt), on servers that write the same tables; those marked `long`
    where everything is taken. Then tests for one server, each statement of which goes to any of them (tests/mtr/spread.txt)."""
    whole = takes_test is everything
    tests = [test for test in mtr_nodes.listed() if whole or (takes_test(test.name) and not test.long)]
    if not tests:
        return StageResult(failed=1, details=["no test was taken"])
    mtr.prepare("release")
    mtr_nodes.copy(tests)
    names = [test.copy for test in tests]
    with mtr_nodes.servers(profile) as servers:
        arguments, env = mtr_nodes.options(servers), mtr_nodes.environment(servers)
        result = mtr.run(mtr.suites_of(names), arguments, timeout_s=timeout_s, tests=names, label=profile, env=env)
        spread = _mtr_spread(timeout_s, profile, servers, [name for name in mtr_nodes.spread_tests() if takes_test(name)])
        ended = [f"{server.data.name} ended ({end})" for server in servers if (end := server.ended())]
    stage = _from_mtr(result, set())
    ran = {name.split()[0] for name in (*result.passed, *result.failed)}
    # What cannot run here does not belong into the list.
    problems = [*ended, *(f"{name} did not run" for name in names if name not in ran)]
    return summed(stage, summed(spread, StageResult(failed=len(problems), details=problems, log=stage.log)))


def _mtr_spread(timeout_s: float, profile: str, servers: Sequence[Server], tests: Sequence[str]) -> StageResult:
    if not tests:
        return StageResult()
    with mtr_nodes.one_port_for(servers) as spread:
        arguments = [f"--extern=port={spread.port}", "--extern=host=127.0.0.1"]
        result = mtr.run(mtr.suites_of(tests), arguments, timeout_s=timeout_s, tests=tests, label=f"{profile}-spread")
    stage = _from_mtr(result, set())
    if min(spread.statements) == 0:
        stage = summed(stage, StageResult(failed=1, details=[f"not spread: {spread.told()}"], log=stage.log))
    return stage


def mtr_like_innodb(suite: str, timeout_s: float) -> StageResult:
    """MariaDB's tests for engines, whose recorded results are of older servers: what differs from them differs as with InnoDB."""
    mtr.prepare("release")
    results = []
    for engine in ("InnoDB", "STRATA"):
        options = mtr.engine_options(engine)
        results.append(mtr.run(suite, options, timeout_s=timeout_s, label=engine, env={"ENGINE": engine}))
    logs = [result.outcome.log for result in results if result.outcome is not None]
    wanted, found = map(mtr.differences, logs)
    same = {name for name, lines in found.items() if lines and lines in (wanted.get(name), mtr.recorded_differences(name))}
    stage = _from_mtr(results[1], same | _expected_failures())
    stage.passed += len(same)
    return stage


def _mtr_on(
    profile: str, suite: str, options: Sequence[str], timeout_s: float, expected: set[str], tests: Sequence[str] = ()
) -> StageResult:
    with storage_beneath(profile, paths.BUILD / "mtr-cluster") as storage:
        options = [*options, *(f"--mysqld={option}" for option in storage)]
        return _from_mtr(mtr.run(suite, options, timeout_s=timeout_s, tests=tests, label=profile), expected)


def _expected_failures() -> set[str]:
    listing = paths.ROOT / "tests" / "mtr" / "expected_failures.txt"
    if not listing.exists():
        return set()
    lines = (line.split("#", 1)[0].strip() for line in listing.read_text().splitlines())
    return {line.split()[0] for line in lines if line}


def _from_mtr(result: mtr.MtrResult, expected: set[str]) -> StageResult:
    assert result.outcome is not None
    failed = [name for name in result.failed if name.split()[0] not in expected]
    stage = StageResult(len(result.passed), len(failed), log=result.outcome.log, details=failed)
    if not result.passed and not result.failed:
        stage.failed = 1
        stage.details = ["no test ran:", result.outcome.tail(15)]
    elif result.outcome.code == 124:
        stage.failed += 1
        stage.details.append("stopped at the deadline")
    return stage


def run_folder_is_clean() -> StageResult:
    """No server of this checkout is left behind by the tests."""
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_ours(pid)]  # noqa: PTH208
    return StageResult(failed=len(left), details=[f"still running: pid {pid}" for pid in left]) if left else StageResult(passed=1)


def _is_ours(pid: str) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    places = (f"--datadir={paths.BUILD}", f"--datadir={paths.MARIADB}", f"--data-dir={paths.BUILD}", f"--data\0{paths.BUILD}/")
    return any(place.encode() in arguments for place in places)
