"""What an experiment leaves: JSON with everything measured, a plot, sentences beside the paper's, and a table of what a
transaction took, which says why. All of it can be made again from the JSON (`read`).
"""

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from .. import paths
from ..bench import results
from ..bench.servers import MIB
from ..shell import StrataError, console
from .ladder import LIGHT, Plan, Point, Pool, Result
from .openaurora import HARDLY, TITLE, Experiment, Finding, waited_bytes

EXPLAINED = (
    "Per transaction (pages made: by all storage nodes), but for the last three: log waited for per page asked for,"
    " what compute sends to all storage nodes, CPU time of the cluster"
)
TABLE_WIDTH = 170
STORAGE_NODES = 3
VALIDITY = ("void", "late_share_max", "cores_used_max")  # of a point, where time is dilated
NAME_WIDTH = 26
CAPTION_WIDTH = 46  # characters for each part of a figure
# What a transaction took, and the last three: name, and how it is computed of a point.
COSTS: dict[str, Callable[[Point], float]] = {
    "log_bytes": lambda point: point.per_transaction("log_bytes"),
    "of_it_images": lambda point: point.per_transaction("log_image_bytes"),
    "pages_read": lambda point: point.per_transaction("cluster_pages_read"),
    "page_wait_us": lambda point: point.per_transaction("cluster_get_page_wait_us"),
    "pages_written": lambda point: point.per_transaction("cluster_pages_written"),
    "pages_made": lambda point: point.per_transaction("storage_replay_pages_made_total"),
    "frame_waits": lambda point: point.per_transaction("buffer_pool_free_waits"),
    "log_sync_us": lambda point: point.per_transaction("log_sync_us"),
    "compute_cpu_us": lambda point: point.per_transaction("compute_cpu_us"),
    "storage_cpu_us": lambda point: point.per_transaction("storage_cpu_us"),
    "waited_log_bytes_per_page": waited_bytes,
    "sent_mb_per_s": lambda point: point.per_second("cluster_log_bytes_sent", "cluster_page_bytes_written") / 1e6,
    "cores": lambda point: point.per_second("compute_cpu_us", "storage_cpu_us") / 1e6,
}


def scale(result: Result) -> str:
    plan = result.plan
    sizes = ", ".join(f"{pool.bytes / MIB:,.0f}" for pool in result.pools)
    hits = ", ".join(f"{pool.measured:.1%}" for pool in result.pools)
    runs = ", ".join(f"{load} {count} of {_seconds(plan, load)} s" for load, count in _runs(result).items())
    return (
        f"Scale: {plan.tables} tables of {plan.rows:,} rows ({result.data_bytes / MIB:,.0f} MiB), {plan.threads} clients,"
        f" three storage nodes, link {plan.link} (modelled), a checkpoint every {plan.checkpoint_s} s;"
        f" buffers of {sizes} MiB with measured hit ratios of {hits}; medians of runs: {runs};"
        f" all processes on one machine with {result.machine['cores']} cores,"
        f" of which other programs took {_others(result):.0%} of one meanwhile."
    )


def emulation(result: Result) -> str:
    """What has to be known of emulated nodes before any figure is looked at; empty where there are none."""
    plan = result.plan
    if result.undilated_because:
        return f"Not dilated, although it was to be: {result.undilated_because}; all figures in real time."
    if not plan.wish().dilated:
        return ""
    cores = plan.cores
    void = [why for point in result.points for why in point.void]
    runs = sum(len(point.tps) for point in result.points)
    voided = f" {len(void)} of {runs} runs are VOID, such as: {void[0]}." if void else f" None of {runs} runs is void."
    return (
        f"Emulated: a compute node of {cores['compute']} cores, {STORAGE_NODES} storage nodes of {cores['storage']},"
        f" clients on {cores['client']}, time dilated by {plan.dilation:g}; all figures in emulated time, link {plan.link}."
        f" At most {_most_cores(result):.2f} of {result.machine['cores']} real cores were used by all programs, and"
        f" {_latest(result):.1%} of the time for which emulated cores were busy was late.{voided}"
        f" {sameness(result.same_figures)}."
    )


def sameness(deviation: float | None) -> str:
    """How far figures of slower time can be relied on: by how much they differed before."""
    if deviation is None:
        return "Whether the same server gives the same figures in slower time was not measured before"
    return f"The same server's figures in slower time differed by at most {deviation:.1%}"


def _most_cores(result: Result) -> float:
    return max((point.cores_used_max for point in result.points), default=0.0)


def _latest(result: Result) -> float:
    return max((point.late_share_max for point in result.points), default=0.0)


def _facts_of_emulation(result: Result) -> dict[str, object]:
    said = emulation(result)
    if not said:
        return {}
    facts: dict[str, object] = {"statement": said}
    if result.undilated_because:
        facts["because"] = result.undilated_because
    else:
        facts |= {
            "dilation": result.plan.dilation,
            "cores": dict(result.plan.cores),
            "storage_nodes": STORAGE_NODES,
            "link": result.plan.link,
            "disk": "real",
            "real_cores_used_max": _most_cores(result),
            "late_share_max": _latest(result),
            "same_figures_deviation_max": result.same_figures,
            "void_runs": sum(len(point.void) for point in result.points),
        }
    return {"emulation": facts}


def _others(result: Result) -> float:
    """Cores that were busy with something else while it was measured, on average. Of real time."""
    elapsed_us = result.plan.dilation * sum(point.counters.get("elapsed_us", 0) for point in result.points)
    return sum(point.counters.get("others_cpu_us", 0) for point in result.points) / max(elapsed_us, 1)


def _seconds(plan: Plan, load: str) -> int:
    return plan.light_seconds if load == LIGHT else plan.seconds


def _runs(result: Result) -> dict[str, str]:
    """Of a point, at least and at most."""
    found = {}
    for load in result.plan.all_loads:
        counts = [len(point.tps) for point in result.points if point.load == load and point.tps]
        if counts:
            found[load] = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return found


def sentence(finding: Finding) -> str:
    if finding.paper == 1:
        agrees = "similar here, too" if finding.agrees else "not similar here"
    elif finding.at_most(HARDLY):
        agrees = "hardly any difference here"
    else:
        agrees = "the same direction" if finding.agrees else "the other direction"
    return f"{finding.what}: {finding.ours:.2f} here, {finding.paper:.2f} in the paper; {agrees}."


def publish(experiment: Experiment, result: Result, json_file: Path, plot_file: Path, page: Path | None = None) -> None:
    save(experiment, result, json_file)
    show(experiment, result, plot_file, page)
    console.print(f"written: {paths.relative(json_file.resolve())}")


def show(experiment: Experiment, result: Result, plot_file: Path, page: Path | None = None) -> None:
    plot_file.parent.mkdir(parents=True, exist_ok=True)
    plot(experiment, result, plot_file)
    if page is not None:
        page.write_text(markdown(experiment, result, plot_file))
    console.print(f"{experiment.title} ({experiment.paper})")
    if said := emulation(result):
        console.print(said)
    console.print(scale(result))
    for finding in experiment.findings(result):
        console.print(sentence(finding))
    Console(width=TABLE_WIDTH, highlight=False).print(costs(result))
    console.print(f"written: {paths.relative(plot_file.resolve())}")


def costs(result: Result) -> Table:
    out = Table(box=None, header_style="bold", title=EXPLAINED)
    for column in ("hits", "load", "variant", "tx/s"):
        out.add_column(column, no_wrap=True)
    for name in COSTS:
        out.add_column(name.replace("_", " "), justify="right")
    for row in _rows(result):
        out.add_row(*row)
    return out


def _rows(result: Result) -> Iterator[tuple[str, ...]]:
    for pool in result.pools:
        for load in result.plan.all_loads:
            for point in result.points:
                if (point.hit_ratio, point.load) == (pool.target, load) and point.tps:
                    costs = (_number(cost(point)) for cost in COSTS.values())
                    yield (f"{pool.measured:.1%}", load, point.variant, f"{point.value:,.0f}", *costs)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def markdown(experiment: Experiment, result: Result, plot_file: Path) -> str:
    """All of it as a page, beside the plot."""
    head = ("hits", "load", "variant", "transactions/s", *(name.replace("_", " ") for name in COSTS))
    lines = [f"# {experiment.title}", ""]
    lines += [said, ""] if (said := emulation(result)) else []
    lines += [f"{experiment.paper}. {scale(result)} Commits: {', '.join(result.commits)}.", ""]
    lines += [f"![{experiment.title}]({plot_file.name})", ""]
    lines += [f"- {sentence(finding)}" for finding in experiment.findings(result)]
    lines += ["", f"{EXPLAINED}:", "", _cells(head), _cells("---" for _ in head)]
    lines += [_cells(row) for row in _rows(result)]
    return "\n".join(lines) + "\n"


def _cells(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def save(experiment: Experiment, result: Result, json_file: Path) -> None:
    results.put(as_json(experiment, result), json_file)


def as_json(experiment: Experiment, result: Result) -> dict[str, object]:
    return {
        "experiment": result.plan.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "commits": result.commits,
        "machine": result.machine,
        "settings": result.plan.settings(),
        "variants": [asdict(variant) for variant in result.plan.variants],
        **_facts_of_emulation(result),
        "scale": scale(result),
        "data_bytes": result.data_bytes,
        "pools": [asdict(pool) for pool in result.pools],
        "findings": [{**asdict(finding), "sentence": sentence(finding)} for finding in experiment.findings(result)],
        "points": [
            {
                "variant": point.variant,
                "hit_ratio": point.hit_ratio,
                "load": point.load,
                "transactions_per_s": point.value,
                "runs": point.tps,
                "transactions": point.transactions,
                "costs": {name: cost(point) for name, cost in COSTS.items()},
                "counters": point.counters,
                **_validity_of(result, point),
            }
            for point in result.points
            if point.tps
        ],
    }


def _validity_of(result: Result, point: Point) -> dict[str, object]:
    if not result.plan.wish().dilated:
        return {}
    return {name: getattr(point, name) for name in VALIDITY}


def read(plan: Plan, json_file: Path) -> Result:
    """What save() wrote, to be shown again or added to."""
    try:
        said = json.loads(json_file.read_text())
        if said["experiment"] != plan.name:
            raise StrataError(f"{json_file} holds {said['experiment']}, not {plan.name}")
        plan = replace(plan, **said["settings"])
        if said["variants"] != json.loads(json.dumps([asdict(variant) for variant in plan.variants])):
            raise StrataError(f"{json_file}: its variants are not those of now")
        result = Result(plan, said["data_bytes"], [], [], said["commits"], said["machine"])
        said_of_emulation = said.get("emulation", {})
        if "dilation" not in said_of_emulation:
            result.undilated_because = said_of_emulation.get("because", "")
        result.same_figures = said_of_emulation.get("same_figures_deviation_max")
        for pool in said["pools"]:
            result.add_pool(Pool(**pool))
        for point in said["points"]:
            _fill(result, point)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StrataError(f"{json_file} cannot be read as an experiment's result: {error!r}") from error
    return result


def _fill(result: Result, said: dict[str, Any]) -> None:
    for point in result.points:
        if (point.variant, point.hit_ratio, point.load) == (said["variant"], said["hit_ratio"], said["load"]):
            point.tps, point.transactions, point.counters = said["runs"], said["transactions"], said["counters"]
            for name in VALIDITY:
                setattr(point, name, said.get(name, getattr(point, name)))


def plot(experiment: Experiment, result: Result, file: Path) -> None:
    """A part for each load, bars with the least and the most of several runs, and one that sets our ratios beside the paper's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    loads = result.plan.all_loads
    findings = experiment.findings(result)
    parts = len(loads) + bool(findings)
    figure, all_axes = pyplot.subplots(1, parts, figsize=(4.6 * parts, 4.4), squeeze=False)
    for axes, load in zip(all_axes[0], loads, strict=False):
        _draw_load(axes, result, load)
    all_axes[0][0].legend(fontsize="small")
    if findings:
        draw_ratios(all_axes[0][-1], findings)
    figure.suptitle(f"{experiment.title} ({experiment.paper})", fontsize="medium")
    caption = "\n".join(textwrap.wrap(caption_of(experiment, result), CAPTION_WIDTH * parts))
    figure.text(0.01, 0.01, caption, fontsize="x-small", va="bottom")
    figure.tight_layout(rect=(0, 0.04 + 0.035 * (caption.count("\n") + 1), 1, 1))
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def caption_of(experiment: Experiment, result: Result) -> str:
    """How it was measured, in few words: dilation and cores, or what stands for them; and of whom the other values are."""
    said = emulation(result) or f"Not dilated: all processes share {result.machine['cores']} cores, in real time."
    source = f'"{TITLE}", {experiment.paper}'
    return f"{said} Bars: medians; lines: least and most of several runs. Dashed: the paper's, {source}."


def _draw_load(axes: Any, result: Result, load: str) -> None:
    pools = [pool for pool in result.pools if result.has(pool.target)]
    names = [f"{pool.bytes / MIB:,.0f} MiB\n{pool.measured:.1%}" for pool in pools]
    count = len(result.plan.variants)
    width = 0.8 / count
    for number, variant in enumerate(result.plan.variants):
        places = [place + (number - (count - 1) / 2) * width for place in range(len(names))]
        points = [result.point(variant.label, pool.target, load) for pool in pools]
        values = [point.value for point in points]
        below = [point.value - min(point.tps) for point in points]
        above = [max(point.tps) - point.value for point in points]
        axes.bar(places, values, width, label=variant.label, yerr=(below, above), capsize=3, ecolor="black")
    axes.set_xticks(range(len(names)), names)
    axes.set_title(load)
    axes.set_ylabel("transactions/s" + (" of emulated time" if result.plan.wish().dilated else ""))
    axes.set_xlabel("buffer, hit ratio")


class Compared(Protocol):
    """Ours, the paper's if it has one, and the least and the most of our runs if they are known."""

    @property
    def what(self) -> str: ...
    @property
    def ours(self) -> float: ...
    @property
    def paper(self) -> float | None: ...
    @property
    def least(self) -> float | None: ...
    @property
    def most(self) -> float | None: ...


def draw_ratios(axes: Any, findings: Sequence[Compared], name_width: int = NAME_WIDTH) -> None:
    """Ours, with the least and the most of the runs, and a dashed line across each for the paper's."""
    names = ["\n".join(textwrap.wrap(finding.what, name_width)) for finding in findings]
    places = range(len(findings))
    below = [max(0.0, finding.ours - (finding.ours if finding.least is None else finding.least)) for finding in findings]
    above = [max(0.0, (finding.ours if finding.most is None else finding.most) - finding.ours) for finding in findings]
    ours = [finding.ours for finding in findings]
    axes.barh(places, ours, 0.6, xerr=(below, above), capsize=2, color="tab:gray", label="here")
    named = False
    rights = []
    for place, finding in zip(places, findings, strict=True):
        right, said = finding.ours + above[place], f" {finding.ours:.2f}"
        if finding.paper is not None:
            label = None if named else "paper"
            named = True
            axes.plot([finding.paper] * 2, [place - 0.4, place + 0.4], "--", color="tab:red", linewidth=2, label=label)
            right, said = max(right, finding.paper), f"{said} (paper {finding.paper:.2f})"
        rights.append(right)
        axes.text(right, place, said, va="center", fontsize="x-small")
    axes.set_yticks(places, names, fontsize="x-small")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * max(*rights, 0.01))
    axes.set_title("ratios, and seconds" if any(getattr(finding, "unit", "") for finding in findings) else "ratios")
    axes.legend(fontsize="small", loc="lower right")
