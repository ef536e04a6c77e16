"""python -m crash --runs N --seed S: the campaign. Ends with `N passed, M failed`."""

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pymysql
from strata_cli import paths

from .plan import make_plan
from .run import Failure, Run, RunResult
from .session import Refused, ServerGone


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
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="run i uses seed + i")
    parser.add_argument("--engine", default="STRATA")
    parser.add_argument("--preset", default="release")
    parser.add_argument("--power-loss", action="store_true", help="every run, not one in three")
    parser.add_argument("--no-faults", action="store_true", help="kill -9 at random times only")
    parser.add_argument("--fault", help="only this fault point")
    parser.add_argument("--time-limit-s", type=float, default=0, help="start no further run after this time")
    parser.add_argument("--server-option", action="append", default=[], help="for mariadbd; may be repeated")
    return parser.parse_args()


def reproduce(arguments: argparse.Namespace, seed: int) -> str:
    command = f"./strata test --crash --runs 1 --seed {seed}"
    command += " --power-loss" if arguments.power_loss else ""
    command += f" --fault {arguments.fault}" if arguments.fault else ""
    return command + (f" --engine {arguments.engine}" if arguments.engine.upper() != "STRATA" else "")


def main() -> int:
    arguments = parse()
    strata = arguments.engine.upper() == "STRATA"
    points = fault_points(arguments.preset) if strata and not arguments.no_faults else []
    if arguments.fault:
        points = [arguments.fault]
    passed, failed, struck = 0, 0, set[str]()
    started = time.monotonic()
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        if arguments.time_limit_s and time.monotonic() - started > arguments.time_limit_s:
            print(f"time limit: {arguments.seed + arguments.runs - seed} runs not started", flush=True)
            break
        if _one(arguments, seed, points, struck):
            passed += 1
        else:
            failed += 1
    if points:
        print(
            f"fault points struck: {len(struck)} of {len(points)}; not struck: {', '.join(sorted(set(points) - struck)) or '-'}"
        )
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if failed == 0 and passed > 0 else 1


def _one(arguments: argparse.Namespace, seed: int, points: list[str], struck: set[str]) -> bool:
    folder = Path(paths.BUILD / "crash" / f"run-{seed}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    strata = arguments.engine.upper() == "STRATA"
    plan = make_plan(seed, points, force_power_loss=arguments.power_loss)
    kind = "power loss" if plan.power_loss and strata else "kill -9"
    faults = [f for r in plan.rounds for f in (r.fault, r.recovery_fault) if f]
    run = Run(plan, folder, arguments.engine, arguments.preset, tuple(arguments.server_option))
    began = time.monotonic()
    try:
        result: RunResult = run.execute()
    except (Failure, Refused, ServerGone, AssertionError, pymysql.MySQLError, OSError) as error:
        print(f"seed {seed}: FAILED ({kind}, {', '.join(faults) or 'random time'})\n{error}", flush=True)
        print(f"  data kept in {paths.relative(folder)}; again: {reproduce(arguments, seed)}", flush=True)
        return False
    finally:
        struck |= run.result.struck
    hit = ", ".join(sorted(result.struck)) or "random time"
    hit += f"; {result.sectors_lost} sectors lost" if result.sectors_lost else ""
    print(
        f"seed {seed}: ok  {kind:<10} {result.rounds} rounds {result.transactions:>5} transactions"
        f" {time.monotonic() - began:4.1f} s  recovery <= {result.start_s_max:.1f} s  {hit}",
        flush=True,
    )
    shutil.rmtree(folder)
    return True


if __name__ == "__main__":
    sys.exit(main())
