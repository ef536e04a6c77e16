"""python -m crash --runs N --seed S: the campaign on one server; with --profile P on clusters. Ends with `N passed, M failed`."""

import argparse
import collections
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
from strata_cli import paths
from strata_cli.profile_list import MONOLITHIC, OF_CLUSTERS, OF_ONE_WRITER, OF_SEVERAL_WRITERS
from strata_cli.shell import end_cleanly_on_sigterm

from .cluster_plan import MEMORY_SETUPS, ClusterPlan, make_cluster_plan
from .cluster_run import ClusterRun
from .errors_plan import ErrorsPlan, error_points, make_errors_plan
from .errors_run import ErrorsRun
from .fusion_plan import FusionPlan, make_fusion_plan
from .fusion_run import FusionRun
from .mirror import Mirror
from .plan import BINLOG, ELSEWHERE, make_plan
from .run import DATABASE, Run, RunResult
from .session import Refused, ServerGone
from .workloads import Failure

EVERY_PROFILE = "every"
FOUND = (Failure, Refused, ServerGone, AssertionError, pymysql.MySQLError, OSError)


def fault_points(preset: str) -> list[str]:
    """From the build's own list, or from the source when it is not built."""
    tool = paths.preset_dir(preset) / "src" / "base" / "strata_fault_points"
    if tool.exists():
        lines = subprocess.run([tool], capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.split("\t")[0] for line in lines if line.strip()]
    source = paths.ROOT / "src" / "base" / "fault_points.def"
    return re.findall(r"^STRATA_FAULT_POINT\((\w+),", source.read_text(), re.MULTILINE) if source.exists() else []


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, help="default: 50; with --faults: as many as they need")
    parser.add_argument("--seed", type=int, default=1, help="run i uses seed + i")
    parser.add_argument("--engine", default="STRATA")
    parser.add_argument("--preset", default="release")
    parser.add_argument("--profile", default=MONOLITHIC, choices=[MONOLITHIC, *OF_CLUSTERS, EVERY_PROFILE])
    parser.add_argument("--faults", type=int, default=0, help="on clusters: so many faults in all, over as many runs as it takes")
    parser.add_argument("--power-loss", action="store_true", help="every run, not one in three")
    parser.add_argument("--no-faults", action="store_true", help="kill -9 at random times only")
    parser.add_argument("--no-ddl", action="store_true", help="on one server: rows only")
    parser.add_argument("--no-xa-rollback", action="store_true", help="on one server: what is prepared is always committed")
    parser.add_argument("--errors", action="store_true", help="on one server: errors without a crash")
    parser.add_argument("--fault", help="only this fault point, or on clusters this kind of fault")
    parser.add_argument(
        "--memory",
        choices=("draw", *MEMORY_SETUPS),
        default="draw",
        help="memory nodes of a cluster: one, two, or two with the same pages",
    )
    parser.add_argument(
        "--binlog", choices=BINLOG, default="draw", help="with a binary log, compared with the tables; draw: by seed"
    )
    parser.add_argument("--plan", action="store_true", help="on clusters: only print what would be done")
    parser.add_argument("--time-limit-s", type=float, default=0, help="start no further run after this time")
    parser.add_argument("--server-option", action="append", default=[], help="for mariadbd; may be repeated")
    return parser.parse_args()


def main() -> int:
    end_cleanly_on_sigterm()
    arguments = parse()
    mirror = Mirror(paths.BUILD / "crash" / f"mirror-{os.getpid()}", DATABASE)
    try:
        if arguments.errors:
            return _with_errors(arguments, mirror)
        if arguments.profile in OF_SEVERAL_WRITERS:
            return _on_several(arguments)
        return _on_one_server(arguments, mirror) if arguments.profile == MONOLITHIC else _on_clusters(arguments, mirror)
    finally:
        mirror.close()


class _Clock:
    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._started = time.monotonic()

    def is_over(self) -> bool:
        return self._limit_s > 0 and time.monotonic() - self._started > self._limit_s


def _finish(passed: int, failed: int) -> int:
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if failed == 0 and passed > 0 else 1


# --- one server ------------------------------------------------------------------------------------------------------


def _on_one_server(arguments: argparse.Namespace, mirror: Mirror) -> int:
    strata = arguments.engine.upper() == "STRATA"
    points = fault_points(arguments.preset) if strata and not arguments.no_faults else []
    points = [arguments.fault] if arguments.fault else [point for point in points if not point.startswith(ELSEWHERE)]
    passed, failed, struck = 0, 0, set[str]()
    clock = _Clock(arguments.time_limit_s)
    runs = arguments.runs or 50
    for seed in range(arguments.seed, arguments.seed + runs):
        if clock.is_over():
            print(f"time limit: {arguments.seed + runs - seed} runs not started", flush=True)
            break
        if _one(arguments, seed, points, struck, mirror):
            passed += 1
        else:
            failed += 1
    if points:
        print(_struck_text(points, struck))
    return _finish(passed, failed)


def _struck_text(points: list[str], struck: set[str]) -> str:
    missed = ", ".join(sorted(set(points) - struck)) or "-"
    return f"fault points struck: {len(struck)} of {len(points)}; not struck: {missed}"


def _reproduce(arguments: argparse.Namespace, seed: int) -> str:
    command = f"./strata test --crash --runs 1 --seed {seed}"
    command += " --errors" if arguments.errors else ""
    command += " --power-loss" if arguments.power_loss else ""
    command += f" --fault {arguments.fault}" if arguments.fault else ""
    command += f" --binlog {arguments.binlog}" if arguments.binlog != "draw" else ""
    return command + (f" --engine {arguments.engine}" if arguments.engine.upper() != "STRATA" else "")


def _with_errors(arguments: argparse.Namespace, mirror: Mirror) -> int:
    points = fault_points(arguments.preset)
    clock = _Clock(arguments.time_limit_s)
    passed, failed, struck = 0, 0, set[str]()
    for seed in range(arguments.seed, arguments.seed + (arguments.runs or 50)):
        plan = make_errors_plan(seed, points, only=arguments.fault, binlog=arguments.binlog)
        if arguments.plan:
            print(f"seed {seed}: {plan.text()}")
            passed += 1
        elif clock.is_over():
            print(f"time limit: the runs from seed {seed} on were not started", flush=True)
            break
        elif _one_with_errors(arguments, plan, struck, mirror):
            passed += 1
        else:
            failed += 1
    print(_struck_text(error_points(points), struck))
    return _finish(passed, failed)


def _one_with_errors(arguments: argparse.Namespace, plan: ErrorsPlan, struck: set[str], mirror: Mirror) -> bool:
    folder = _made_folder(f"run-errors-{plan.seed}")
    run = ErrorsRun(plan, folder, arguments.preset, tuple(arguments.server_option), mirror)
    began = time.monotonic()
    try:
        result = run.execute()
    except FOUND as error:
        print(f"seed {plan.seed}: FAILED {plan.text()}\n{error}", flush=True)
        print(f"  data kept in {paths.relative(folder)}; again: {_reproduce(arguments, plan.seed)}", flush=True)
        return False
    finally:
        struck |= run.result.struck
    print(
        f"seed {plan.seed}: ok  errors {result.transactions:>5} transactions {time.monotonic() - began:4.1f} s"
        f"  {result.turned_away} times turned away; {plan.text()}" + "".join(f"; {note}" for note in result.notes),
        flush=True,
    )
    shutil.rmtree(folder)
    return True


def _made_folder(name: str) -> Path:
    folder = Path(paths.BUILD / "crash" / name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _one(arguments: argparse.Namespace, seed: int, points: list[str], struck: set[str], mirror: Mirror) -> bool:
    folder = _made_folder(f"run-{seed}")
    strata = arguments.engine.upper() == "STRATA"
    plan = make_plan(seed, points, force_power_loss=arguments.power_loss, binlog=arguments.binlog)
    kind = "power loss" if plan.power_loss and strata else "kill -9"
    faults = [f for r in plan.rounds for f in (r.fault, r.recovery_fault) if f]
    extra = tuple(arguments.server_option)
    run = Run(plan, folder, arguments.engine, arguments.preset, extra, not arguments.no_ddl, mirror, not arguments.no_xa_rollback)
    began = time.monotonic()
    try:
        result: RunResult = run.execute()
    except FOUND as error:
        print(
            f"seed {seed}: FAILED ({kind}{', binlog' if plan.binlog else ''}, {', '.join(faults) or 'random time'})\n{error}",
            flush=True,
        )
        print(f"  data kept in {paths.relative(folder)}; again: {_reproduce(arguments, seed)}", flush=True)
        return False
    finally:
        struck |= run.result.struck
    hit = ("binlog; " if plan.binlog else "") + (", ".join(sorted(result.struck)) or "random time")
    hit += f"; {result.sectors_lost} sectors lost" if result.sectors_lost else ""
    print(
        f"seed {seed}: ok  {kind:<10} {result.rounds} rounds {result.transactions:>5} transactions"
        f" {time.monotonic() - began:4.1f} s  recovery <= {result.start_s_max:.1f} s  {hit}",
        flush=True,
    )
    shutil.rmtree(folder)
    return True


# --- clusters --------------------------------------------------------------------------------------------------------


def _on_clusters(arguments: argparse.Namespace, mirror: Mirror) -> int:
    clock = _Clock(arguments.time_limit_s)
    points = fault_points(arguments.preset)
    passed, failed = 0, 0
    struck, kinds = set[str](), collections.Counter[str]()
    for plan in _cluster_plans(arguments, points):
        if arguments.plan:
            print(f"seed {plan.seed}: {plan.text()}")
            passed += 1
        elif clock.is_over():
            print("time limit: the runs from here on were not started", flush=True)
            break
        elif _one_cluster(arguments, plan, struck, kinds, mirror):
            passed += 1
        else:
            failed += 1
    shown = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    print(f"faults: {kinds.total()} ({shown}); fault points struck: {', '.join(sorted(struck)) or '-'}")
    return _finish(passed, failed)


def _cluster_plans(arguments: argparse.Namespace, points: list[str]) -> Iterator[ClusterPlan]:
    """With every profile each seed belongs to one, in turn."""
    profiles = OF_ONE_WRITER if arguments.profile == EVERY_PROFILE else (arguments.profile,)
    left = arguments.faults or None
    runs = arguments.runs or (None if left else 10)
    seeds = itertools.count(arguments.seed) if runs is None else range(arguments.seed, arguments.seed + runs)
    for seed in seeds:
        profile = profiles[seed % len(profiles)]
        plan = make_cluster_plan(
            seed,
            profile,
            points,
            only=arguments.fault,
            force_power_loss=arguments.power_loss,
            faults_max=left,
            binlog=arguments.binlog,
            memory=arguments.memory,
        )
        if not plan.rounds:
            return
        yield plan
        if left is not None:
            left -= plan.faults
            if left <= 0:
                return


def _one_cluster(
    arguments: argparse.Namespace, plan: ClusterPlan, struck: set[str], kinds: "collections.Counter[str]", mirror: Mirror
) -> bool:
    folder = _made_folder(f"run-{plan.profile}-{plan.seed}")
    run = ClusterRun(plan, folder, arguments.preset, mirror)
    began = time.monotonic()
    try:
        result = run.execute()
    except FOUND as error:
        print(f"seed {plan.seed}: FAILED {plan.text()}\n{error}", flush=True)
        print("".join(f"  {note}\n" for note in run.result.notes), end="")
        command = f"./strata test --crash --profile {plan.profile} --runs 1 --seed {plan.seed}"
        command += " --power-loss" if arguments.power_loss else ""
        command += f" --fault {arguments.fault}" if arguments.fault else ""
        command += f" --binlog {arguments.binlog}" if arguments.binlog != "draw" else ""
        command += f" --memory {arguments.memory}" if arguments.memory != "draw" else ""
        print(f"  data and logs kept in {paths.relative(folder)}; again: {command}", flush=True)
        return False
    finally:
        struck |= run.result.struck
        kinds.update(run.result.faults)
    kind = f"power loss, {result.sectors_lost} sectors" if plan.power_loss else "kill -9"
    kind += ", binlog" if plan.binlog else ""
    kind += f", {plan.memory_setup}" if plan.memory_setup else ""
    away = f", {result.turned_away} times turned away" if result.turned_away else ""
    print(
        f"seed {plan.seed}: ok  {plan.profile:<11} {result.transactions:>5} transactions {time.monotonic() - began:4.1f} s"
        f"  {kind}{away}; {', '.join(strike.text() for round_ in plan.rounds for strike in round_.strikes)}"
        + "".join(f"; {note}" for note in result.notes),
        flush=True,
    )
    shutil.rmtree(folder)
    return True


# --- several servers that write the same tables ----------------------------------------------------------------------


def _on_several(arguments: argparse.Namespace) -> int:
    clock = _Clock(arguments.time_limit_s)
    passed, failed, left = 0, 0, arguments.faults or None
    struck, kinds = set[str](), collections.Counter[str]()
    runs = arguments.runs or (None if left else 10)
    for seed in itertools.count(arguments.seed) if runs is None else range(arguments.seed, arguments.seed + runs):
        points = fault_points(arguments.preset)
        plan = make_fusion_plan(
            seed,
            points,
            only=arguments.fault,
            faults_max=left,
            binlog=arguments.binlog,
            profile=arguments.profile,
            memory=arguments.memory,
        )
        if arguments.plan:
            print(f"seed {plan.seed}: {plan.text()}")
            passed += 1
        elif clock.is_over():
            print("time limit: the runs from here on were not started", flush=True)
            break
        elif _one_fusion(arguments, plan, struck, kinds):
            passed += 1
        else:
            failed += 1
        if left is not None and (left := left - plan.faults) <= 0:
            break
    shown = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    print(f"faults: {kinds.total()} ({shown}); fault points struck: {', '.join(sorted(struck)) or '-'}")
    return _finish(passed, failed)


def _one_fusion(arguments: argparse.Namespace, plan: FusionPlan, struck: set[str], kinds: "collections.Counter[str]") -> bool:
    folder = _made_folder(f"run-{plan.profile}-{plan.seed}")
    run = FusionRun(plan, folder, arguments.preset)
    began = time.monotonic()
    try:
        result = run.execute()
    except FOUND as error:
        print(f"seed {plan.seed}: FAILED after {run.result.faults.total()} faults: {plan.text()}\n{error}", flush=True)
        print("".join(f"  {note}\n" for note in run.result.notes), end="")
        command = f"./strata test --crash --profile {plan.profile} --runs 1 --seed {plan.seed}"
        command += f" --memory {arguments.memory}" if arguments.memory != "draw" else ""
        command += f" --fault {arguments.fault}" if arguments.fault else ""
        command += f" --binlog {arguments.binlog}" if arguments.binlog != "draw" else ""
        print(f"  data and logs kept in {paths.relative(folder)}; again: {command}", flush=True)
        return False
    finally:
        struck |= run.result.struck
        kinds.update(run.result.faults)
    print(
        f"seed {plan.seed}: ok  {plan.profile:<11} {result.transactions:>5} transactions {time.monotonic() - began:4.1f} s"
        f"{', binlog' if plan.binlog else ''}, {result.turned_away} times turned away; "
        + ", ".join(strike.text() for round_ in plan.rounds for strike in round_.strikes)
        + "".join(f"; {note}" for note in result.notes),
        flush=True,
    )
    shutil.rmtree(folder)
    return True


if __name__ == "__main__":
    sys.exit(main())
