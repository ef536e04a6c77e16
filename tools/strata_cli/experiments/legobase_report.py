"""The pages, plots and JSON of the experiments of legobase.py."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from ..bench.servers import MIB
from .legobase import ALL_LABEL, MOST_INTENSIVE, NO_SWAP, NOT_SHOWN, TITLE, TPCC, TPCH, Experiment, Result, Run
from .loads import load_of
from .report import draw_ratios
from .result_page import Pages, drawn, emulation, listed

NAME_WIDTH = 44  # characters
# Of the paper's Figure 12: most queries, and the two that are slowed most.
MOST_SLOWED, MOST_SLOWED_MAX, WORST_SLOWED = 1.0761, 1.627, 2.0


def scale(result: Result) -> str:
    plan = result.plan
    data = {
        TPCC: f"{plan.warehouses} warehouses",
        TPCH: f"scale {plan.scale:g}",
    }.get(plan.load, f"{plan.tables} tables of {plan.rows:,} rows")
    clients = ", ".join(str(phase.threads) for phase in plan.phases) or str(plan.threads)
    clients += " client" if clients == "1" else " clients"
    seconds = f"{plan.seconds} s each" + (", all queries again and again" if plan.load == TPCH else "")
    links = " and ".join(dict.fromkeys(plan.link_of(setup) for setup in plan.setups))
    moved = f" Cores of the compute node: at most {plan.most_cores:g}." if plan.phases else ""
    return (
        f"Scale: {plan.load}, {data} ({result.data_bytes / MIB:,.0f} MiB), {clients}, {seconds},"
        f" a memory node of {plan.memory} reached over shared memory, three storage nodes, link {links};"
        f" percentages are of the {result.touched_bytes / MIB:,.0f} MiB that the load touches;"
        f" medians of {result.repeats()} runs; {_machine(result)}.{moved}"
    )


def _machine(result: Result) -> str:
    return f"all processes and the load on one machine with {result.machine['cores']} cores"


def remarks(result: Result) -> list[str]:
    """What has to be known before any figure is looked at, and what is missing."""
    wish = result.plan.wish()
    said = [emulation(result, f"a compute node of {wish.cores_of('compute')} cores")] if wish.dilated else []
    said += result.notes
    said += [result.too_large_pool()]
    if result.plan.crashes:
        said.append(NO_SWAP)
    return [each for each in said if each]


def _table(result: Result) -> Iterator[str]:
    yield f"| setup | local MiB | {_unit(result)} | 99th percentile, ms | costs of a transaction, and what happened when |"
    yield "| --- | --- | --- | --- | --- |"
    yield from (f"| {' | '.join(row)} |" for row in _rows(result))
    if result.plan.load == TPCH:
        yield ""
        yield from _queries(result)


def _unit(result: Result) -> str:
    return load_of(result.plan).unit


def _rows(result: Result) -> Iterator[tuple[str, ...]]:
    local = {setup.label: result.local_bytes(setup) for setup in result.plan.setups}
    for run in result.runs:
        facts = listed({**(run.marks or {}), **(run.costs or {})})
        facts += f", VOID: {run.void}" if run.void else ""
        p99 = "" if run.p99_ms is None else f"{run.p99_ms:,.1f}"
        yield run.setup, f"{local[run.setup] / MIB:,.0f}", f"{run.tps:,.1f}", p99, facts


def _queries(result: Result) -> Iterator[str]:
    labels = result.measured()
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
    findings = experiment.findings(result)
    labels = result.measured()
    with_p99 = any(run.p99_ms for run in result.runs)
    parts = 1 + with_p99 + bool(findings)
    title = f"{experiment.title} ({experiment.paper})"
    with drawn(title, caption_of(experiment, result), file, parts, (6.4, 5.2), 130) as axes:
        unit = _unit(result) + (" of emulated time" if result.plan.wish().dilated else "")
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


PAGES = Pages(TITLE, Result, Run, ("data_bytes", "touched_bytes"), _unit, scale, remarks, _table, plot)
publish, save, read, markdown = PAGES.publish, PAGES.save, PAGES.read, PAGES.markdown
