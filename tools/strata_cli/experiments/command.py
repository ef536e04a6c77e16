"""`./strata experiment NAME`: what its options mean for the experiments of each paper, and which of them each takes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import dilation
from ..bench import profiles, results
from ..shell import StrataError, console
from . import ddc, ddc_report, deployments, ladder, legobase, legobase_report, polardbmp, polardbmp_course, polardbmp_report
from . import report as experiment_report
from .comparisons import Experiment, P, S
from .openaurora import EXPERIMENTS
from .result_page import Pages


@dataclass(frozen=True)
class Files:
    json: Path
    plot: Path
    page: Path | None


@dataclass(frozen=True)
class Options:
    """As they were given; None: not."""

    repeats: int
    add: bool
    show: bool
    quick: bool
    hit_ratios: str | None
    nodes: str | None
    shared: str | None
    rows: int | None
    warehouses: int | None
    scale: float | None
    threads: int | None
    seconds: int | None
    link: str | None
    dilated: float | None
    cores: str | None
    lock: Path | None

    def changes(self) -> dict[str, Any]:
        """Of a plan, whichever it is."""
        wishes = {"rows": self.rows, "threads": self.threads, "seconds": self.seconds}
        wishes["link"] = self.link and profiles.chosen_link(self.link)  # type: ignore[assignment]
        wanted: dict[str, Any] = {wish: value for wish, value in wishes.items() if value is not None}
        return wanted | dilation.parse(self.dilated, self.cores).settings()


def titles() -> dict[str, str]:
    of_papers = (EXPERIMENTS, legobase.EXPERIMENTS, polardbmp.EXPERIMENTS, ddc.EXPERIMENTS)
    return {name: f"{one.title} ({one.paper})" for experiments in of_papers for name, one in experiments.items()}


def run(name: str, options: Options, files: Files) -> None:
    known = titles()
    if name == "list":
        for each, title in known.items():
            console.print(f"{each:24} {title}", highlight=False)
        return
    if name not in known:
        raise StrataError(f"there is no experiment '{name}'; there is {', '.join(known)}")
    if name not in polardbmp.EXPERIMENTS and (options.nodes, options.shared) != (None, None):
        raise StrataError("--nodes and --shared are for the experiments of PolarDB-MP")
    if name in ddc.EXPERIMENTS:
        _ddc(ddc.EXPERIMENTS[name], options, files)
    elif name in legobase.EXPERIMENTS:
        _legobase(legobase.EXPERIMENTS[name], options, files)
    elif name in polardbmp.EXPERIMENTS:
        _polardbmp(polardbmp.EXPERIMENTS[name], options, files)
    else:
        _openaurora(name, options, files)


def _openaurora(name: str, options: Options, files: Files) -> None:
    if options.warehouses is not None or options.scale is not None or options.quick:
        raise StrataError("--warehouses, --scale and --quick are for the experiments of LegoBase")
    chosen, wanted = EXPERIMENTS[name], options.changes()
    before = experiment_report.read(chosen.plan, files.json) if options.add or options.show else None
    if before is not None and wanted:
        raise StrataError("what is added to, or shown, has its settings already: give none")
    if options.show and before is not None:
        experiment_report.publish(chosen, before, files.json, files.plot, files.page)
        return
    results.accepted(files.json)
    plan = before.plan if before is not None else replace(chosen.plan, **wanted)
    course = ladder.Course(
        ladder.chosen_hit_ratios(plan, options.hit_ratios),
        options.repeats,
        before,
        options.lock,
        keep=lambda result: experiment_report.save(chosen, result, files.json),
    )
    experiment_report.publish(chosen, ladder.run(plan, course), files.json, files.plot, files.page)


def _ddc(chosen: ddc.Experiment, options: Options, files: Files) -> None:
    others = (
        options.hit_ratios, options.rows, options.warehouses, options.threads, options.seconds, options.dilated, options.cores,
        options.lock,
    )  # fmt: skip
    if options.add or options.repeats != 1 or any(wish is not None for wish in others):
        raise StrataError("the experiments with far memory take --scale, --link, --quick, --show, --json, --plot and --page")
    wanted = options.changes() | ({"scale": options.scale} if options.scale is not None else {})
    if options.show:
        _refuse_changes(wanted, options)
        result, commit = ddc_report.read(chosen.plan, files.json)
    else:
        results.accepted(files.json)
        plan = replace(chosen.plan.shortened() if options.quick else chosen.plan, **wanted)
        result = ddc.run(plan, lambda so_far: ddc_report.save(chosen, so_far, files.json))
        commit = results.commit()
    ddc_report.publish(chosen, result, commit, files.plot, files.page)


def _legobase(chosen: legobase.Experiment, options: Options, files: Files) -> None:
    _only_openaurora(options)
    sizes = {"warehouses": options.warehouses, "scale": options.scale}
    wanted = options.changes() | {wish: value for wish, value in sizes.items() if value is not None}
    _compared(chosen, wanted, options, files, legobase_report.PAGES, deployments.run)


def _polardbmp(chosen: polardbmp.Experiment, options: Options, files: Files) -> None:
    _only_openaurora(options)
    if options.scale is not None:
        raise StrataError("--scale is for the experiments of LegoBase")
    if options.warehouses is not None and polardbmp.TPCC not in chosen.plan.loads:
        raise StrataError("--warehouses is for experiments with TPC-C")
    lists = {"nodes": options.nodes, "shared": options.shared}
    wanted = options.changes() | {wish: numbers(wish, text) for wish, text in lists.items() if text is not None}
    wanted |= {"warehouses": options.warehouses} if options.warehouses is not None else {}
    _compared(chosen, wanted, options, files, polardbmp_report.PAGES, polardbmp_course.run)


def _only_openaurora(options: Options) -> None:
    if options.hit_ratios is not None or options.add:
        raise StrataError("--hit-ratios and --add are for the experiments of OpenAurora")


def _compared(
    chosen: Experiment[P, S],
    wanted: dict[str, Any],
    options: Options,
    files: Files,
    pages: Pages[P, S],
    course: Callable[[P, int, Path | None, Callable[[S], None]], S],
) -> None:
    """Shown, or measured as it is wanted."""
    if options.show:
        _refuse_changes(wanted, options)
        result = pages.read(chosen.plan, files.json)
    else:
        results.accepted(files.json)
        plan = (chosen.plan.shortened() if options.quick else chosen.plan).changed(wanted)
        result = course(plan, options.repeats, options.lock, lambda so_far: pages.save(chosen, so_far, files.json))
    pages.publish(chosen, result, files.json, files.plot, files.page)


def numbers(option: str, text: str) -> tuple[int, ...]:
    """As in 1,2,4."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise StrataError(f"--{option} {text}: numbers with commas between them, as in 1,2,4") from None


def _refuse_changes(wanted: dict[str, Any], options: Options) -> None:
    if wanted or options.quick:
        raise StrataError("what is shown has its settings already: give none")
