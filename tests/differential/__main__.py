"""python -m differential --statements N --seed S [--minimise]: ends with `N passed, M failed`, counting cases."""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from strata_cli import paths
from strata_cli.profile_list import MONOLITHIC, OF_SEVERAL_WRITERS
from strata_cli.shell import end_cleanly_on_sigterm
from strata_cli.storage_beneath import storage_beneath

from .excused import Excuses
from .minimise import Minimiser
from .report import read_case, write_case
from .run import Failure, replay, run_case
from .several import LeaseLost, SeveralTarget
from .step import Step
from .target import SMALL_POOL, Target

CASE_STATEMENTS = 300
CASES_PER_SEED = 1_000_000
FAILURES_MOST = 20
PROGRESS_S = 60.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--statements", type=int, default=20_000, help="stop after about so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first-case", type=int, default=0, help="start at this case of the seed")
    parser.add_argument("--minimise", action="store_true", help="shrink what fails")
    parser.add_argument("--replay", type=Path, help="run the statements of this file instead")
    parser.add_argument("--long-keys", action="store_true", help="long keys, and unique keys that are hashes, in every case")
    parser.add_argument("--families", action="store_true", help="tables that refer to each other, in every case")
    parser.add_argument("--preset", default="release")
    parser.add_argument("--profile", default=MONOLITHIC, help="under which the server runs; storage nodes are started for it")
    parser.add_argument("--servers", type=int, default=1, help=f"with {' or '.join(OF_SEVERAL_WRITERS)}: so many")
    parser.add_argument("--engine", default="STRATA", help="the engine compared with InnoDB")
    parser.add_argument("--small-pool", action="store_true", help="little memory: pages come and go")
    parser.add_argument("--time-limit-s", type=float, default=0, help="start no further case after this time")
    parser.add_argument("--failures", type=int, default=FAILURES_MOST, help="stop after so many failing cases")
    parser.add_argument("--folder", type=Path, help="where to work; build/differential/<seed> without")
    arguments = parser.parse_args()
    if (arguments.servers > 1) != (arguments.profile in OF_SEVERAL_WRITERS):
        parser.error(f"several servers write the same tables with --profile {' or '.join(OF_SEVERAL_WRITERS)}, and only so")
    return arguments


class Campaign:
    def __init__(self, arguments: argparse.Namespace, folder: Path, options: tuple[str, ...]) -> None:
        self._arguments = arguments
        self._folder = folder
        self._excuses = Excuses()
        options += SMALL_POOL if arguments.small_pool else ()
        self._target = (
            Target(folder, arguments.preset, (arguments.engine, "InnoDB"), options)
            if arguments.servers == 1
            else SeveralTarget(folder, arguments.preset, arguments.servers, arguments.small_pool, arguments.profile)
        )
        self._given_up = 0
        self._codes: Counter[int] = Counter()
        self._statements = self._refused = self._passed = self._failed = 0

    def run(self) -> int:
        self._target.start()
        try:
            if self._arguments.replay:
                return self._replay_file(self._arguments.replay)
            return self._run_cases()
        finally:
            self._target.stop(keep=self._target.crashes > 0)

    def _run_cases(self) -> int:
        arguments = self._arguments
        began = last = time.monotonic()
        case = arguments.first_case
        while self._statements < arguments.statements and self._failed < arguments.failures:
            now = time.monotonic()
            if arguments.time_limit_s and now - began > arguments.time_limit_s:
                print("time limit: no further case", flush=True)
                break
            if now - last > PROGRESS_S:
                last = now
                self._print_rate(now - began)
            self._one(case)
            case += 1
        self._print_rate(time.monotonic() - began)
        excused = ", ".join(f"{name} {count}" for name, count in self._excuses.used.items()) or "none"
        if self._given_up:
            print(f"{self._given_up} cases given up: a server had no lease, on a machine that was too busy", flush=True)
        print(f"refused alike: {self._refused} ({self._codes.most_common(12)}); excused differences: {excused}")
        print(f"{self._passed} passed, {self._failed} failed", flush=True)
        return 0 if self._failed == 0 and self._passed > 0 else 1

    def _print_rate(self, seconds: float) -> None:
        rate = self._statements / max(seconds, 0.001)
        print(f"{self._statements} statements, {rate:.0f}/s, {self._passed} cases passed, {self._failed} failed", flush=True)

    def _one(self, case: int) -> None:
        seed = self._arguments.seed * CASES_PER_SEED + case
        arguments = self._arguments
        kind = {"long_keys": arguments.long_keys, "families": arguments.families}
        try:
            result = run_case(self._target.pair, self._excuses, seed, CASE_STATEMENTS, servers=arguments.servers, **kind)
        except LeaseLost:
            assert isinstance(self._target, SeveralTarget)
            self._given_up += 1
            self._target.recover()
            return
        self._statements += result.statements
        self._refused += result.refused
        self._codes.update(result.error_codes)
        if result.failure is None:
            self._passed += 1
            return
        self._failed += 1
        self._report(case, result.failure)

    def _report(self, case: int, failure: Failure) -> None:
        if any(difference.kind == "lost" for difference in failure.differences):
            (self._folder / f"case-{case}.log").write_text(self._target.log_tail() + "\n")
        statements = len(failure.steps)
        if self._arguments.minimise:
            failure = self._minimised(failure)
        path = self._folder / f"case-{case}.sql"
        servers = self._arguments.servers
        options = f" --profile {self._arguments.profile} --servers {servers}" if servers > 1 else ""
        write_case(path, failure, f"seed {self._arguments.seed}, case {case}", options)
        print(f"case {case}: FAILED at statement {statements}, {len(failure.steps)} in {paths.relative(path)}", flush=True)
        print(f"  {failure.steps[-1].sql[:300]}")
        for difference in failure.differences:
            print("\n".join(f"  {line[:400]}" for line in str(difference).splitlines()), flush=True)

    def _minimised(self, failure: Failure) -> Failure:
        def fails(steps: list[Step]) -> bool:
            again = replay(self._target.pair, self._excuses, steps)
            return again is not None and len(again.steps) == len(steps) and again.signature == failure.signature

        minimiser = Minimiser(fails)
        if not fails(failure.steps):
            print("  not the same when run again: kept whole", flush=True)
            return failure
        steps = minimiser.minimise(failure.steps)
        return replay(self._target.pair, self._excuses, steps) or failure

    def _replay_file(self, path: Path) -> int:
        failure = replay(self._target.pair, self._excuses, read_case(path))
        if failure is None:
            print("no difference\n1 passed, 0 failed")
            return 0
        print(f"differs at statement {len(failure.steps)}: {failure.steps[-1].sql}")
        for difference in failure.differences:
            print(difference)
        print("0 passed, 1 failed")
        return 1


def main() -> int:
    end_cleanly_on_sigterm()
    arguments = parse()
    folder = arguments.folder or paths.BUILD / "differential" / str(arguments.seed)
    folder.mkdir(parents=True, exist_ok=True)
    profile = arguments.profile if arguments.servers == 1 else MONOLITHIC  # several have storage of their own
    with storage_beneath(profile, folder / "cluster", arguments.preset) as options:
        return Campaign(arguments, folder, options).run()


if __name__ == "__main__":
    sys.exit(main())
