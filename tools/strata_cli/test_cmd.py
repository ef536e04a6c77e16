"""`./strata test`: which stages run, in which order, and the summary. Its last line is `N passed, M failed`."""

import os
import time

from rich.table import Table

from . import paths, setup_cmd, stages
from .build_cmd import BuildType
from .draw import Draw, commit_here, make_draw
from .profile_list import MONOLITHIC, OF_CLUSTERS, OF_ONE_WRITER, OF_SEVERAL_WRITERS
from .shell import console
from .stages import Stage, StageResult, needs_plugin

CRASH_RUNS = 30
CRASH_RUNS_ALL = 300
ERROR_RUNS = 6
ERROR_LIMIT_S = 240
ERROR_RUNS_ALL = 200
CLUSTER_FAULTS = 40
CLUSTER_LIMIT_S = 200
CLUSTER_FAULTS_ALL = 300  # of each profile
DIFFERENTIAL_S = 75
DIFFERENTIAL_SEVERAL_S = 45
DIFFERENTIAL_STATEMENTS_ALL = 1_000_000
SEED = 1
HISTORY_SECONDS = 120
HISTORY_SECONDS_ALL = 7200
SEVERAL_SECONDS_ALL = 1200  # of histories on several servers
SEVERAL_SERVERS = 3
SEVERAL_FAULTS = 4  # in each history
SQL_SECONDS_ALL = 600  # on each profile
STRESS_S = 75
STRESS_SECONDS_ALL = 1800  # each, with kills and without
FUZZ_SECONDS_ALL = 600
REPLICATION_ROUNDS_ALL = 30


def quick_stages() -> list[Stage]:
    return [
        Stage("build release", lambda: stages.build(BuildType.release)),
        Stage("checks", stages.quick_checks),
        Stage("tool tests", stages.tool_tests),
        Stage("unit tests, release", lambda: stages.ctest(BuildType.release, 600, ("-L", "unit"))),
        Stage("end to end", needs_plugin(lambda: stages.e2e(quick=True))),
        Stage("crash campaign, 3 runs", needs_plugin(lambda: stages.crash(3, SEED, 180, "draw"))),
        Stage("nothing left running", stages.run_folder_is_clean),
    ]


def usual_stages(
    drawn: Draw,
    crash_runs: int = CRASH_RUNS,
    error_runs: int = ERROR_RUNS,
    history_seconds: int = HISTORY_SECONDS,
    *,
    whole: bool = False,
) -> list[Stage]:
    """What is too much for each run is drawn from the commit, but for a `whole` one; the stages' names say what was."""
    binlog = drawn.crash_binlog
    under_asan = stages.everything if whole else drawn.takes_under_asan
    under_tsan = stages.everything if whole else drawn.takes_under_tsan
    sanitized = "unit and model tests" if whole else "drawn unit and model tests"
    drawn_tests = "" if whole else ", drawn tests"
    parallel = ("-LE", "sequential")
    return [
        Stage("build release", lambda: stages.build(BuildType.release)),
        Stage("checks", stages.quick_checks),
        Stage("tool tests", stages.tool_tests),
        Stage("unit and model tests, release", lambda: stages.ctest(BuildType.release, 900)),
        _protocol_models(None if whole else drawn),
        _end_to_end(drawn.e2e_binlog, None if whole else drawn),
        Stage("isolation: matrix, checker", needs_plugin(stages.isolation_tests)),
        Stage(
            f"isolation: histories, {history_seconds} s, seed {drawn.history_seed}",
            needs_plugin(lambda: stages.isolation(history_seconds, drawn.history_seed)),
        ),
        Stage("sysbench, every oltp workload", needs_plugin(lambda: stages.sysbench(seconds=4))),
        *suite_stages(MONOLITHIC),
        Stage("mtr: selected tests", needs_plugin(lambda: stages.mtr_selected(300))),
        Stage("mtr: InnoDB's tests of foreign keys", needs_plugin(lambda: stages.mtr_rewritten(300))),
        _own_suite(drawn.suite_profile),
        *([] if whole else [_mtr_several(OF_SEVERAL_WRITERS[0], drawn)]),
        Stage("differential, the runner itself", needs_plugin(stages.differential_tests)),
        Stage(
            f"differential, {DIFFERENTIAL_S} s, seed {drawn.differential_seed}",
            needs_plugin(lambda: stages.differential(drawn.differential_seed, 1_000_000, DIFFERENTIAL_S)),
        ),
        _differential_several(DIFFERENTIAL_SEVERAL_S, drawn.differential_seed),
        _stress(STRESS_S, drawn.stress_seed, drawn.stress_kills),
        Stage(
            f"crash campaign, {crash_runs} runs, seed {drawn.crash_seed}, binlog {binlog}",
            needs_plugin(lambda: stages.crash(crash_runs, drawn.crash_seed, 12 * crash_runs, binlog)),
        ),
        Stage(
            f"crash campaign, errors, {error_runs} runs, seed {drawn.errors_seed}, binlog {binlog}",
            needs_plugin(lambda: stages.crash_errors(error_runs, drawn.errors_seed, max(ERROR_LIMIT_S, 20 * error_runs), binlog)),
        ),
        Stage(
            f"crash campaign on clusters, {CLUSTER_FAULTS} faults, seed {drawn.cluster_seed}, binlog {binlog}",
            needs_plugin(lambda: stages.crash_on_clusters(CLUSTER_FAULTS, drawn.cluster_seed, CLUSTER_LIMIT_S, binlog)),
        ),
        Stage(f"build asan{drawn_tests}", lambda: stages.build_sanitized(BuildType.asan, under_asan)),
        Stage(f"{sanitized}, asan + ubsan", lambda: stages.ctest_sanitized(BuildType.asan, 1200, under_asan)),
        Stage(f"build tsan{drawn_tests}", lambda: stages.build_sanitized(BuildType.tsan, under_tsan, *parallel)),
        Stage(
            f"{sanitized}, tsan",
            lambda: stages.ctest_sanitized(BuildType.tsan, 1500, under_tsan, *parallel),
        ),
        Stage(
            f"headers alone, locks, clang-tidy{'' if whole else ' of a drawn part'}",
            lambda: stages.slow_checks(None if whole else drawn.commit),
        ),
        Stage("nothing left running", stages.run_folder_is_clean),
    ]


def all_stages(drawn: Draw) -> list[Stage]:
    """All that is drawn, and all that was not."""
    partition = "--mysqld=--partition"
    return [
        *usual_stages(drawn, CRASH_RUNS_ALL, ERROR_RUNS_ALL, HISTORY_SECONDS_ALL, whole=True),
        _end_to_end(not drawn.e2e_binlog),
        *(_crash_on(profile) for profile in OF_CLUSTERS),
        *(stage for profile in OF_ONE_WRITER for stage in _sql_on(profile)),
        *(_mtr_several(profile) for profile in OF_SEVERAL_WRITERS),
        _several(SEVERAL_SECONDS_ALL),
        *(_stress(STRESS_SECONDS_ALL, SEED, kills) for kills in (False, True)),
        _differential_several(SEVERAL_SECONDS_ALL, SEED),
        Stage(
            f"differential, {DIFFERENTIAL_STATEMENTS_ALL} statements",
            needs_plugin(lambda: stages.differential(SEED + 1, DIFFERENTIAL_STATEMENTS_ALL)),
        ),
        Stage(f"fuzzing, {FUZZ_SECONDS_ALL} s each", lambda: stages.fuzz(FUZZ_SECONDS_ALL)),
        Stage("damaged files", lambda: stages.corruption(2, 900)),
        Stage("recovery from every write", lambda: stages.summed(*(stages.write_prefixes(seed, 900) for seed in (2, 3)))),
        Stage("sysbench, the plugin under asan + ubsan", needs_plugin(lambda: stages.sysbench_sanitized(seconds=10))),
        Stage(
            f"replication, {REPLICATION_ROUNDS_ALL} rounds",
            needs_plugin(lambda: stages.replication(REPLICATION_ROUNDS_ALL, SEED)),
        ),
        Stage("soak, 2 hours", needs_plugin(lambda: stages.soak(7200, SEED))),
        Stage("applications: tests of Django and SQLAlchemy", needs_plugin(lambda: stages.applications(3600))),
        Stage("applications: the same on three servers", needs_plugin(lambda: stages.applications_several(3600))),
        Stage("mtr: selected tests, the longer ones too", needs_plugin(lambda: stages.mtr_selected(900, longer=True))),
        Stage("mtr: storage_engine as on InnoDB", needs_plugin(lambda: stages.mtr_like_innodb("storage_engine", 900))),
        Stage(
            "mtr: engines/funcs",
            needs_plugin(lambda: stages.mtr_engine_suite("engines/funcs", 2400, partition)),
        ),
    ]


def _protocol_models(drawn: Draw | None) -> Stage:
    if drawn is None:
        return Stage("protocol models, spin", stages.spin)
    return Stage("protocol models, spin, drawn", lambda: stages.spin(drawn.takes_model))


def _end_to_end(binlog: bool, drawn: Draw | None = None) -> Stage:
    takes = stages.everything if drawn is None else drawn.takes_end_to_end
    name = f"end to end{'' if drawn is None else ', drawn files'}{', binlog on' if binlog else ''}"
    return Stage(name, needs_plugin(lambda: stages.e2e(quick=False, binlog=binlog, takes_file=takes)))


def suite_stages(profile: str) -> list[Stage]:
    suite = "engines/iuds"
    run = needs_plugin(lambda: stages.mtr_engine_suite(suite, 600, profile=profile))
    return [_own_suite(profile), Stage(f"mtr: {suite}{_on(profile)}", run)]


def _own_suite(profile: str) -> Stage:
    return Stage(f"mtr: strata{_on(profile)}", needs_plugin(lambda: stages.mtr_own(profile)))


def _mtr_several(profile: str, drawn: Draw | None = None) -> Stage:
    """Those that MariaDB has for Galera's clusters."""
    takes = stages.everything if drawn is None else drawn.takes_on_several
    name = f"mtr: tests for several servers on {profile}{'' if drawn is None else ', drawn'}"
    return Stage(name, needs_plugin(lambda: stages.mtr_several(1800, profile, takes)))


def _on(profile: str) -> str:
    return "" if profile == MONOLITHIC else f" on {profile}"


def _sql_on(profile: str) -> list[Stage]:
    """What `monolithic` goes through in usual_stages(), for longer."""
    seconds = SQL_SECONDS_ALL
    differential = needs_plugin(lambda: stages.differential(SEED, DIFFERENTIAL_STATEMENTS_ALL, seconds, profile))
    return [
        *suite_stages(profile),
        Stage(f"differential on {profile}, {seconds} s", differential),
        Stage(f"isolation on {profile}: histories, {seconds} s", needs_plugin(lambda: stages.isolation(seconds, SEED, profile))),
    ]


def _several(seconds: int) -> Stage:
    """Servers that write the same tables."""
    action = needs_plugin(lambda: stages.isolation_several(seconds, SEED, SEVERAL_SERVERS, SEVERAL_FAULTS))
    return Stage(f"isolation on {SEVERAL_SERVERS} servers: histories with faults, {seconds} s", action)


def _stress(seconds: int, seed: int, kills: bool) -> Stage:
    name = "stress with kills" if kills else "stress"
    return Stage(f"{name}, {seconds} s, seed {seed}", needs_plugin(lambda: stages.stress(seconds, seed, kills)))


def _differential_several(seconds: int, seed: int) -> Stage:
    run = needs_plugin(lambda: stages.differential_several(seed, DIFFERENTIAL_STATEMENTS_ALL, seconds, SEVERAL_SERVERS))
    return Stage(f"differential on {SEVERAL_SERVERS} servers, {seconds} s, seed {seed}", run)


def _crash_on(profile: str) -> Stage:
    """With the binary log on; without it the drawn share is enough. Several servers have one each, and are not in that share."""
    several = profile in OF_SEVERAL_WRITERS
    limit_s, binlog = (30, "draw") if several else (15, "on")
    limit_s *= CLUSTER_FAULTS_ALL
    action = needs_plugin(lambda: stages.crash_on_clusters(CLUSTER_FAULTS_ALL, SEED, limit_s, binlog, profile))
    return Stage(f"crash campaign on {profile}, {CLUSTER_FAULTS_ALL} faults, binlog {binlog}", action)


def check_stages() -> list[Stage]:
    return [Stage("checks", stages.quick_checks), Stage("tool tests", stages.tool_tests)]


def mtr_stages(names: list[str], profile: str, record: bool) -> list[Stage]:
    """Of a build that is there: who changes a test waits for nothing else."""
    run = needs_plugin(lambda: stages.mtr_named(names, profile, record))
    return [Stage(f"mtr: {' '.join(names)}{_on(profile)}", run)]


def fuzz_stages(seconds: int) -> list[Stage]:
    return [Stage(f"fuzzing, {seconds} s each", lambda: stages.fuzz(seconds))]


def spin_stages() -> list[Stage]:
    return [Stage("protocol models, spin", stages.spin)]


def drawn_for(commit: str | None) -> Draw:
    """Says what a run needs to be repeated."""
    drawn = make_draw(commit or commit_here())
    console.print(f"drawn from commit {drawn.commit}; again: {drawn.again()}", markup=False)
    return drawn


def test(chosen: list[Stage]) -> int:
    setup_cmd.ensure_setup()
    started = time.monotonic()
    results: list[tuple[Stage, StageResult]] = []
    for number, stage in enumerate(chosen, 1):
        console.print(f"[{number}/{len(chosen)}] {stage.name} ...", markup=False)
        results.append((stage, _run(stage)))
    _print_summary(results, time.monotonic() - started)
    passed = sum(result.passed for _, result in results)
    failed = sum(result.failed for _, result in results)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if failed == 0 and passed > 0 else 1


def _run(stage: Stage) -> StageResult:
    began = time.monotonic()
    try:
        result = stage.action()
    except Exception as error:  # A broken stage fails; the others still run.
        result = StageResult(failed=1, details=[f"{type(error).__name__}: {error}"])
    result.seconds = time.monotonic() - began
    outcome = f"skipped: {result.skipped}" if result.skipped else f"{result.passed} passed, {result.failed} failed"
    console.print(f"      {outcome} ({result.seconds:.0f} s)", markup=False)
    for detail in result.details:
        console.print("\n".join(f"      | {line}" for line in detail.splitlines()), markup=False)
    if result.failed and result.log:
        console.print(f"      whole output: {paths.relative(result.log)}", markup=False)
    return result


def _print_summary(results: list[tuple[Stage, StageResult]], seconds: float) -> None:
    table = Table(title="Summary", title_justify="left")
    for heading in ("stage", "passed", "failed", "seconds", ""):
        table.add_column(heading, justify="left" if heading in ("stage", "") else "right")
    for stage, result in results:
        failed = f"[red]{result.failed}[/]" if result.failed else "0"
        note = f"skipped: {result.skipped}" if result.skipped else ""
        table.add_row(stage.name, str(result.passed), failed, f"{result.seconds:.0f}", note)
    table.add_section()
    table.add_row("all", "", "", f"{seconds:.0f}", "")
    console.print(table)


def soak(seconds: float, seed: int) -> int:
    setup_cmd.ensure_setup()
    command = [str(part) for part in stages.soak_command(seconds, seed)]
    os.execv(command[0], command)


def replication(rounds: int, seed: int) -> int:
    """Primary and replica killed in turns by themselves, a line for each round."""
    setup_cmd.ensure_setup()
    command = [str(part) for part in stages.replication_command(rounds, seed)]
    os.execv(command[0], command)


def crash(runs: int | None, seed: int, extra: list[str]) -> int:
    """The campaign by itself, its lines as they come."""
    setup_cmd.ensure_setup()
    command = [str(part) for part in stages.crash_command(runs, seed, *extra)]
    os.execv(command[0], command)


def differential(statements: int, seed: int, extra: list[str]) -> int:
    """STRATA against InnoDB by itself, its lines as they come."""
    setup_cmd.ensure_setup()
    command = [str(part) for part in stages.differential_command(statements, seed, *extra)]
    os.execv(command[0], command)


def stress(seconds: float, seed: int, extra: list[str]) -> int:
    """Statements of every kind on several servers by themselves, a line for each run."""
    setup_cmd.ensure_setup()
    command = [str(part) for part in stages.stress_command(seconds, seed, *extra)]
    os.execv(command[0], command)


def isolation(seconds: float, seed: int, extra: list[str]) -> int:
    """Histories at every isolation level by themselves, their lines as they come."""
    setup_cmd.ensure_setup()
    command = [str(part) for part in stages.isolation_command(seconds, seed, *extra)]
    os.execv(command[0], command)
