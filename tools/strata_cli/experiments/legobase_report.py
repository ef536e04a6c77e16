"""What an experiment of legobase.py leaves: JSON with everything measured, a plot, and sentences beside the paper's. All of it
can be made again from the JSON (`read`)."""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from .. import paths
from ..bench import results
from ..bench.servers import MIB
from ..shell import StrataError, console
from .legobase import ALL_LABEL, MOST_INTENSIVE, NO_SWAP, NOT_SHOWN, TITLE, TPCC, TPCH, Bar, Experiment, Plan, Result, Run
from .loads import load_of
from .openaurora import Finding
from .report import STORAGE_NODES, draw_ratios
from .report import sentence as ratio_sentence

CAPTION_WIDTH, NAME_WIDTH = 150, 44  # characters
# Of the paper's Figure 12: most queries, and the two that are slowed most.
MOST_SLOWED, MOST_SLOWED_MAX, WORST_SLOWED = 1.0761, 1.627, 2.0


def sentence(finding: Finding | Bar) -> str:
    if isinstance(finding, Finding):
        return ratio_sentence(finding)
    unit = f" {finding.unit}" if finding.unit else ""
    said = [f"{finding.what}: {finding.ours:.2f}{unit} here"]
    if finding.paper is not None:
        said.append(f"{finding.paper:.2f}{unit} in the paper")
    if finding.goal is not None and finding.goal != finding.paper:
        said.append(f"at {'least' if finding.more_is_better else 'most'} {finding.goal:.2f}{unit} wanted")
    return f"{', '.join(said)}; {'reached' if finding.agrees else 'not reached'}."


def scale(result: Result) -> str:
    plan = result.plan
    data = {
        TPCC: f"{plan.warehouses} warehouses",
        TPCH: f"scale {plan.scale:g}",
    }.get(plan.load, f"{plan.tables} tables of {plan.rows:,} rows")
    clients = ", ".join(str(phase.threads) for phase in plan.phases) or str(plan.threads)
    clients += " client" if clients == "1" else " clients"
    counts = [len(result.of(setup.label)) for setup in plan.setups] if result.is_whole() else [0]
    seconds = f"{plan.seconds} s each" + (", all queries again and again" if plan.load == TPCH else "")
    links = " and ".join(dict.fromkeys(plan.link_of(setup) for setup in plan.setups))
    moved = f" Cores of the compute node: at most {plan.most_cores:g}." if plan.phases else ""
    return (
        f"Scale: {plan.load}, {data} ({result.data_bytes / MIB:,.0f} MiB), {clients}, {seconds},"
        f" a memory node of {plan.memory} reached over shared memory, three storage nodes, link {links};"
        f" percentages are of the {result.touched_bytes / MIB:,.0f} MiB that the load touches;"
        f" medians of {min(counts)} runs; {_machine(result)}.{moved}"
    )


def _machine(result: Result) -> str:
    return f"all processes and the load on one machine with {result.machine['cores']} cores"


def remarks(result: Result) -> list[str]:
    """What has to be known before any figure is looked at, and what is missing."""
    said = [emulation(result)] if result.plan.wish().dilated else []
    said += result.notes
    said += [result.too_large_pool()]
    if result.plan.crashes:
        said.append(NO_SWAP)
    return [each for each in said if each]


def emulation(result: Result) -> str:
    plan, wish = result.plan, result.plan.wish()
    void = [run.void for run in result.runs if run.void]
    voided = f"{len(void)} of {len(result.runs)} runs are VOID, such as: {void[0]}." if void else "No run is void."
    costs = [run.costs or {} for run in result.runs]
    late, cores = (max((cost.get(name, 0.0) for cost in costs), default=0.0) for name in ("late_share", "machine_cores"))
    same = (
        "Whether the same server gives the same figures in slower time was not measured before."
        if result.same_figures is None
        else f"The same server's figures in slower time differed by at most {result.same_figures:.1%}."
    )
    return (
        f"Emulated: a compute node of {wish.cores_of('compute')} cores, a memory node of {wish.cores_of('memory')},"
        f" {STORAGE_NODES} storage nodes of {wish.cores_of('storage')}, clients on {wish.cores_of('client')}, time dilated by"
        f" {plan.dilation:g}; all figures in emulated time, link {plan.link}. At most {cores:.2f} of"
        f" {result.machine['cores']} real cores were used by all programs, and {late:.1%} of the time for which emulated cores"
        f" were busy was late. {voided} {same}"
    )


def publish(experiment: Experiment, result: Result, json_file: Path, plot_file: Path, page: Path | None = None) -> None:
    save(experiment, result, json_file)
    plot_file.parent.mkdir(parents=True, exist_ok=True)
    plot(experiment, result, plot_file)
    if page is not None:
        page.write_text(markdown(experiment, result, plot_file))
    console.print(f"{experiment.title} ({experiment.paper})")
    for said in (*remarks(result), scale(result)):
        console.print(said, markup=False)
    for finding in experiment.findings(result):
        console.print(sentence(finding), markup=False)
    console.print(f"written: {paths.relative(json_file.resolve())}, {paths.relative(plot_file.resolve())}")


def save(experiment: Experiment, result: Result, json_file: Path) -> None:
    results.put(as_json(experiment, result), json_file)


def as_json(experiment: Experiment, result: Result) -> dict[str, object]:
    findings = experiment.findings(result)
    return {
        "experiment": result.plan.name,
        "title": experiment.title,
        "paper": f"{TITLE}: {experiment.paper}",
        "commits": result.commits,
        "machine": result.machine,
        "settings": result.plan.settings(),
        "setups": [asdict(setup) | {"local_bytes": result.local_bytes(setup)} for setup in result.plan.setups],
        "scale": scale(result),
        "remarks": remarks(result),
        "notes": result.notes,
        "data_bytes": result.data_bytes,
        "touched_bytes": result.touched_bytes,
        "same_figures_deviation_max": result.same_figures,
        "unit": load_of(result.plan).unit,
        "findings": [{**asdict(finding), "agrees": finding.agrees, "sentence": sentence(finding)} for finding in findings],
        "runs": [asdict(run) for run in result.runs],
    }


def read(plan: Plan, json_file: Path) -> Result:
    """What save() wrote."""
    try:
        said: dict[str, Any] = json.loads(json_file.read_text())
        if said["experiment"] != plan.name:
            raise StrataError(f"{json_file} holds {said['experiment']}, not {plan.name}")
        if [setup["label"] for setup in said["setups"]] != [setup.label for setup in plan.setups]:
            raise StrataError(f"{json_file}: its setups are not those of now")
        plan = replace(plan, **said["settings"])
        runs = [Run(**run) for run in said["runs"]]
        result = Result(plan, said["data_bytes"], said["touched_bytes"], runs, said["commits"], said["machine"])
        result.notes, result.same_figures = said["notes"], said["same_figures_deviation_max"]
        return result
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StrataError(f"{json_file} cannot be read as an experiment's result: {error!r}") from error


def markdown(experiment: Experiment, result: Result, plot_file: Path) -> str:
    """All of it as a page, beside the plot."""
    lines = [f"# {experiment.title}", ""]
    for said in remarks(result):
        lines += [said, ""]
    source = f'"{TITLE}", {experiment.paper}'
    lines += [f"{source}. {scale(result)} Commits: {', '.join(result.commits)}.", ""]
    lines += [f"![{experiment.title}]({plot_file.name})", ""]
    lines += [f"- {sentence(finding)}" for finding in experiment.findings(result)]
    unit = load_of(result.plan).unit
    lines += ["", f"| setup | local MiB | {unit} | 99th percentile, ms | costs of a transaction, and what happened when |"]
    lines += ["| --- | --- | --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in _rows(result))]
    if result.plan.load == TPCH:
        lines += ["", *_queries(result)]
    return "\n".join(lines) + "\n"


def _rows(result: Result) -> Iterator[tuple[str, ...]]:
    local = {setup.label: result.local_bytes(setup) for setup in result.plan.setups}
    for run in result.runs:
        said = {**(run.marks or {}), **(run.costs or {})}
        facts = ", ".join(f"{name.replace('_', ' ')} {value:,.2f}" for name, value in said.items())
        facts += f", VOID: {run.void}" if run.void else ""
        p99 = "" if run.p99_ms is None else f"{run.p99_ms:,.1f}"
        yield run.setup, f"{local[run.setup] / MIB:,.0f}", f"{run.tps:,.1f}", p99, facts


def _queries(result: Result) -> Iterator[str]:
    labels = _measured_labels(result)
    yield "Seconds of each query, and pages that it read from beyond the local pool; medians:"
    yield ""
    yield f"| query | {' | '.join(labels)} |"
    yield f"| --- |{' --- |' * len(labels)}"
    for name in result.of(labels[0])[0].queries or {}:
        cells = []
        for label in labels:
            runs = result.of(label)
            took_s, gets = (median((of or {}).get(name, 0.0) for of in column) for column in _columns(runs))
            cells.append(f"{took_s:.3f} s, {gets:,.0f}")
        yield f"| {name} | {' | '.join(cells)} |"


def _columns(runs: list[Run]) -> tuple[list[dict[str, float] | None], list[dict[str, float] | None]]:
    return [run.queries for run in runs], [run.gets for run in runs]


def _measured_labels(result: Result) -> list[str]:
    measured = {run.setup for run in result.runs}
    return [setup.label for setup in result.plan.setups if setup.label in measured]


def caption_of(experiment: Experiment, result: Result) -> str:
    """How it was measured, in few words: dilation and cores, or what stands for them; and of whom the other values are."""
    said = " ".join(remarks(result))
    if not result.plan.wish().dilated:
        said = f"Not dilated: {_machine(result)}, in real time. {said}"
    drawn = (
        "Lines: the last run." if any(run.series for run in result.runs) else "Bars: medians; lines: least and most of the runs."
    )
    return f'{said.strip()} {drawn} Dashed: the paper\'s, "{TITLE}", {experiment.paper}.'


def plot(experiment: Experiment, result: Result, file: Path) -> None:
    """What was measured, with the least and the most of the runs, and a part that sets our values beside the paper's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    findings = experiment.findings(result)
    labels = _measured_labels(result)
    with_p99 = any(run.p99_ms for run in result.runs)
    parts = 1 + with_p99 + bool(findings)
    figure, all_axes = pyplot.subplots(1, parts, figsize=(6.4 * parts, 5.2), squeeze=False)
    axes = list(all_axes[0])
    unit = load_of(result.plan).unit + (" of emulated time" if result.plan.wish().dilated else "")
    if any(run.series for run in result.runs):
        _plot_series(axes[0], result, labels)
        axes[0].set_ylabel(unit)
    elif result.plan.load == TPCH:
        _plot_queries(axes[0], result, labels)
    else:
        _plot_bars(axes[0], [[run.tps for run in result.of(label)] for label in labels], labels)
        axes[0].set_ylabel(unit)
    if with_p99:
        _plot_bars(axes[1], [[run.p99_ms or 0.0 for run in result.of(label)] for label in labels], labels)
        axes[1].set_ylabel("99th percentile, ms")
    if findings:
        draw_ratios(axes[-1], findings, NAME_WIDTH)
    figure.suptitle(f"{experiment.title} ({experiment.paper})", fontsize="medium")
    caption = "\n".join(textwrap.wrap(caption_of(experiment, result), round(CAPTION_WIDTH * parts / 2)))
    figure.text(0.01, 0.01, caption, fontsize="x-small", va="bottom")
    figure.tight_layout(rect=(0, 0.04 + 0.03 * (caption.count("\n") + 1), 1, 1))
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def _plot_series(axes: Any, result: Result, labels: list[str]) -> None:
    """The last run of each; what was done to it as lines upright."""
    for label in labels:
        run = result.of(label)[-1]
        axes.plot(range(1, len(run.series or []) + 1), run.series or [], label=label)
    for name, value in (result.of(labels[0])[-1].marks or {}).items():
        if name == "crash_s" or name.endswith("_ends_s"):
            axes.axvline(value, linestyle=":", color="grey")
    axes.set_xlabel("seconds")
    axes.legend(fontsize="x-small", loc="upper right")


def _plot_queries(axes: Any, result: Result, labels: list[str]) -> None:
    """Each query's time beside that of all local; dashed, how much slower the paper's are."""
    queries = list(result.of(labels[0])[0].queries or {})
    others = [label for label in labels if label != ALL_LABEL]
    if ALL_LABEL not in labels or not others:
        return
    width = 0.8 / len(others)
    for number, label in enumerate(others):
        ratios = [_ratios(result, label, name) for name in queries]
        values = [median(each) for each in ratios]
        errors = _errors(ratios)
        places = [place + (number - (len(others) - 1) / 2) * width for place in range(len(queries))]
        axes.bar(places, values, width, yerr=errors, capsize=1, label=label, error_kw={"linewidth": 0.7})
    shown = [(place, name) for place, name in enumerate(queries) if name not in NOT_SHOWN]
    most = [place for place, name in shown if name not in MOST_INTENSIVE]
    others_slowed = {MOST_SLOWED: most, MOST_SLOWED_MAX: most}
    worst = [place for place, name in shown if name in MOST_INTENSIVE]
    for slower, places_of in {**others_slowed, WORST_SLOWED: worst}.items():
        ends = [place - 0.45 for place in places_of], [place + 0.45 for place in places_of]
        axes.hlines([slower] * len(places_of), *ends, linestyles="--", colors="tab:red", linewidth=1)
    axes.axhline(1.0, color="grey", linewidth=0.7)
    axes.set_xticks(range(len(queries)), [name[1:] for name in queries], fontsize="x-small")
    axes.set_xlabel("query (dashed: the paper's, at most and, of most, at least; 10 % local)")
    axes.set_ylabel("latency, to all local")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(fontsize="x-small", loc="upper right")


def _ratios(result: Result, label: str, query: str) -> list[float]:
    pairs = zip(result.of(label), result.of(ALL_LABEL), strict=False)
    return [(one.queries or {})[query] / (base.queries or {})[query] for one, base in pairs]


def _errors(values: list[list[float]]) -> list[list[float]]:
    return [[median(each) - min(each) for each in values], [max(each) - median(each) for each in values]]


def _plot_bars(axes: Any, values: list[list[float]], labels: list[str]) -> None:
    axes.bar(range(len(labels)), [median(each) for each in values], yerr=_errors(values), capsize=3)
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right", fontsize="small")
