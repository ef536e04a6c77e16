"""python -m isolation --seconds N --seed S: histories of concurrent clients, checked; ends with `N passed, M failed`."""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from fusion_cluster import PROFILES
from strata_cli import galera_cluster, paths
from strata_cli.profile_list import MONOLITHIC
from strata_cli.shell import end_cleanly_on_sigterm
from strata_cli.storage_beneath import storage_beneath

from .campaign import KINDS, Campaign, Plan, Totals, make_plan
from .checker import Report, check
from .control import GaleraCampaign
from .faults import KINDS as FAULTS
from .history import load
from .several import SeveralCampaign

SEVERAL = (*PROFILES, galera_cluster.PROFILE)
FAMILY_EVERY = 5  # histories; every kind comes to it, as it divides none of their numbers


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of client work and checking, all histories together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="begin with this history of the seed")
    parser.add_argument("--history-seconds", type=float, default=0, help="of one history; without, 5, or 15 with faults")
    parser.add_argument("--clients", type=int, default=0, help="in every history; without, the seed chooses 4 to 16")
    parser.add_argument("--levels", default=",".join(KINDS), help="in turn")
    parser.add_argument("--families", action="store_true", help="only histories of parents and children; else every fifth")
    parser.add_argument("--no-kill", action="store_true", help="never kill -9 the server in the middle")
    parser.add_argument("--engine", default="STRATA")
    parser.add_argument("--preset", default="release")
    parser.add_argument(
        "--profile",
        default=MONOLITHIC,
        help="under which the server runs, with nodes of its own; galera: a control, which passes if anomalies are found",
    )
    parser.add_argument(
        "--servers", type=int, default=1, help=f"that write the same tables; more than one only with {' or '.join(SEVERAL)}"
    )
    parser.add_argument("--faults", type=int, default=0, help="on several servers: so many in each history")
    parser.add_argument("--fault-kinds", default=",".join(FAULTS), help="on several servers: that they are drawn from")
    parser.add_argument("--server-option", action="append", default=[])
    parser.add_argument("--check", type=Path, help="only check this recorded history")
    arguments = parser.parse_args()
    if (arguments.profile in SEVERAL) != (arguments.servers > 1):
        parser.error(f"several servers write the same tables with --profile {' or '.join(SEVERAL)}, and only so")
    if arguments.faults and arguments.profile not in PROFILES:
        parser.error(f"--faults strikes several servers of --profile {' or '.join(PROFILES)}; one server is killed by the seed")
    arguments.history_seconds = arguments.history_seconds or (15.0 if arguments.faults else 5.0)
    return arguments


def describe(permitted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(permitted.items())) or "none"


def check_one(path: Path) -> int:
    report = check(load(path))
    for problem in report.problems:
        print(problem)
    print(f"permitted cycles: {describe(report.permitted)}")
    print(f"{int(report.ok)} passed, {int(not report.ok)} failed")
    return 0 if report.ok else 1


def main() -> int:
    end_cleanly_on_sigterm()
    arguments = parse()
    if arguments.check:
        return check_one(arguments.check)
    kinds = tuple(arguments.levels.split(","))
    # InnoDB shows a commit before it is durable: after kill -9 somebody has seen what is gone. Strata does not (src/txn, T1).
    kill = not arguments.no_kill and arguments.engine.upper() == "STRATA"
    of = arguments.engine.lower() if arguments.servers == 1 else arguments.profile
    folder = paths.BUILD / "isolation" / f"{of}-{arguments.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.profile == galera_cluster.PROFILE:
        return _control(arguments, folder, kinds)
    several = arguments.servers > 1
    totals = _on_several(arguments, folder, kinds) if several else _on_one(arguments, folder, kinds, kill)
    if not totals.failed and not any(folder.iterdir()):
        folder.rmdir()
    _print_totals(totals)
    print(f"{totals.passed} passed, {totals.failed} failed", flush=True)
    return 0 if totals.failed == 0 and totals.passed > 0 else 1


def _print_totals(totals: Totals) -> None:
    print(f"{totals.committed} transactions committed, {totals.aborted} not, {totals.unknown} of unknown outcome; ", end="")
    print(f"{totals.appends} appends, {totals.reads} reads; permitted cycles: {describe(totals.permitted)}")


def _control(arguments: argparse.Namespace, folder: Path, kinds: tuple[str, ...]) -> int:
    """Passes if the checker has found anomalies, and all servers worked to the end: a checker that finds none here proves nothing
    where it finds none elsewhere."""
    options = tuple(arguments.server_option)
    campaign = GaleraCampaign(folder, arguments.servers, preset=arguments.preset, options=options)
    totals = _histories(arguments, campaign, kinds, kill=False)
    _print_totals(totals)
    print(f"{campaign.certification_failures} commits refused by certification, ", end="")
    print(f"{campaign.brute_force_aborts} transactions ended for the sake of another server's")
    print(f"{totals.failed} of {totals.failed + totals.passed} histories show what their levels forbid:")
    for name, count in campaign.found.most_common():
        print(f"  {name}: in {count}")
    for text in campaign.broken:
        print(f"  the control itself failed: {text}")
    passed = bool(campaign.found) and not campaign.broken
    print(f"{int(passed)} passed, {int(not passed)} failed", flush=True)
    return 0 if passed else 1


def _on_one(arguments: argparse.Namespace, folder: Path, kinds: tuple[str, ...], kill: bool) -> Totals:
    with storage_beneath(arguments.profile, folder / "cluster", arguments.preset) as options:
        campaign = Campaign(folder, arguments.engine, arguments.preset, (*options, *arguments.server_option))
        return _histories(arguments, campaign, kinds, kill)


def _on_several(arguments: argparse.Namespace, folder: Path, kinds: tuple[str, ...]) -> Totals:
    campaign = SeveralCampaign(
        folder,
        arguments.servers,
        seed=f"{arguments.seed}/{arguments.first}",
        preset=arguments.preset,
        options=tuple(arguments.server_option),
        kinds=arguments.fault_kinds.split(","),
        profile=arguments.profile,
    )
    totals = _histories(arguments, campaign, kinds, kill=False)
    struck = ", ".join(f"{kind} {count}" for kind, count in sorted(campaign.struck.items())) or "none"
    print(
        f"faults: {struck}; {campaign.fenced} servers fenced and started again; {campaign.refused.total()} statements refused;"
        f" the machine stood still {campaign.stalls} times"
    )
    for text, count in campaign.refused.most_common(8):
        print(f"  refused {count} times: {text}")
    return totals


def _histories(arguments: argparse.Namespace, campaign: Campaign, kinds: tuple[str, ...], kill: bool) -> Totals:
    totals = Totals()
    campaign.start()
    try:
        deadline = time.monotonic() + arguments.seconds
        number = arguments.first
        while time.monotonic() < deadline:
            plan = make_plan(arguments.seed, number, kinds, arguments.clients, kill, arguments.faults)
            seconds = min(arguments.history_seconds, max(1.0, deadline - time.monotonic()))
            if arguments.families or number % FAMILY_EVERY == FAMILY_EVERY - 1:
                _family(campaign, plan, seconds, totals)
            else:
                report = campaign.one(plan, seconds)
                totals.add(report)
                _print_one(plan, report)
            number += 1
    finally:
        campaign.stop()
    return totals


def _family(campaign: Campaign, plan: Plan, seconds: float, totals: Totals) -> None:
    report = campaign.family(plan, seconds)
    totals.passed += report.ok
    totals.failed += not report.ok
    totals.committed += report.committed
    totals.aborted += report.aborted
    totals.unknown += report.unknown
    print(
        f"seed {plan.seed}, families: {'ok' if report.ok else 'FAILED'}, {plan.kind}, {plan.clients} clients, {_blows(plan)},"
        f" {report.committed} committed, {report.aborted} not, {report.refused} statements refused, {report.looks} looks",
        flush=True,
    )


def _blows(plan: Plan) -> str:
    return f"{plan.faults} faults" if plan.faults else f"{plan.kills} kills"


def _print_one(plan: Plan, report: Report) -> None:
    print(
        f"seed {plan.seed}: {'ok' if report.ok else 'FAILED'}, {plan.kind}, {plan.clients} clients, {_blows(plan)},"
        f" {report.committed} committed,"
        f" {report.aborted} not, {report.reads} reads; permitted cycles: {describe(report.permitted)}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
