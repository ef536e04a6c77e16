"""What an experiment of legobase.py leaves: JSON with everything measured, a plot, and sentences beside the paper's. All of it
can be made again from the JSON (`read`)."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from .. import paths
from ..bench import results
from ..bench.servers import MIB
from ..shell import StrataError, console
from .legobase import TPCC, Bar, Experiment, Plan, Result, Run
from .openaurora import Finding
from .report import sentence as ratio_sentence


def sentence(finding: Finding | Bar) -> str:
    if isinstance(finding, Finding):
        return ratio_sentence(finding)
    unit = f" {finding.unit}" if finding.unit else ""
    agrees = "reached" if finding.agrees else "not reached"
    return f"{finding.what}: {finding.ours:.2f}{unit} here, {finding.paper:.2f}{unit} in the paper; {agrees}."


def scale(result: Result) -> str:
    plan = result.plan
    data = f"{plan.warehouses} warehouses" if plan.load == TPCC else f"{plan.tables} tables of {plan.rows:,} rows"
    clients = ", ".join(str(phase.threads) for phase in plan.phases) or str(plan.threads)
    counts = [len(result.of(setup.label)) for setup in plan.setups] if result.is_whole() else [0]
    return (
        f"Scale: {plan.load}, {data} ({result.data_bytes / MIB:,.0f} MiB), {clients} clients, {plan.seconds} s each,"
        f" a memory node of {plan.memory} reached over shared memory, three storage nodes, link {plan.link};"
        f" medians of {min(counts)} runs; all processes and the load on one machine with {result.machine['cores']} cores."
    )


def publish(experiment: Experiment, result: Result, json_file: Path, plot_file: Path, page: Path | None = None) -> None:
    save(experiment, result, json_file)
    plot_file.parent.mkdir(parents=True, exist_ok=True)
    plot(experiment, result, plot_file)
    if page is not None:
        page.write_text(markdown(experiment, result, plot_file))
    console.print(f"{experiment.title} ({experiment.paper})")
    console.print(scale(result))
    for finding in experiment.findings(result):
        console.print(sentence(finding))
    console.print(f"written: {paths.relative(json_file.resolve())}, {paths.relative(plot_file.resolve())}")


def save(experiment: Experiment, result: Result, json_file: Path) -> None:
    results.put(as_json(experiment, result), json_file)


def as_json(experiment: Experiment, result: Result) -> dict[str, object]:
    findings = experiment.findings(result)
    return {
        "experiment": result.plan.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "commits": result.commits,
        "machine": result.machine,
        "settings": result.plan.settings(),
        "setups": [asdict(setup) for setup in result.plan.setups],
        "scale": scale(result),
        "data_bytes": result.data_bytes,
        "findings": [{**asdict(finding), "agrees": finding.agrees, "sentence": sentence(finding)} for finding in findings],
        "runs": [asdict(run) for run in result.runs],
    }


def read(plan: Plan, json_file: Path) -> Result:
    """What save() wrote."""
    try:
        said: dict[str, Any] = json.loads(json_file.read_text())
        if said["experiment"] != plan.name:
            raise StrataError(f"{json_file} holds {said['experiment']}, not {plan.name}")
        plan = replace(plan, **said["settings"])
        runs = [Run(**run) for run in said["runs"]]
        return Result(plan, said["data_bytes"], runs, said["commits"], said["machine"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StrataError(f"{json_file} cannot be read as an experiment's result: {error!r}") from error


def markdown(experiment: Experiment, result: Result, plot_file: Path) -> str:
    """All of it as a page, beside the plot."""
    lines = [f"# {experiment.title}", "", f"{experiment.paper}. {scale(result)} Commits: {', '.join(result.commits)}.", ""]
    lines += [f"![{experiment.title}]({plot_file.name})", ""]
    lines += [f"- {sentence(finding)}" for finding in experiment.findings(result)]
    lines += ["", "| setup | transactions/s | 99th percentile, ms | marks |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(result)]
    return "\n".join(lines) + "\n"


def _rows(result: Result) -> Iterator[tuple[str, str, str, str]]:
    for run in result.runs:
        marks = ", ".join(f"{name} {value:,.2f}" for name, value in (run.marks or {}).items())
        yield run.setup, f"{run.tps:,.0f}", "" if run.p99_ms is None else f"{run.p99_ms:,.1f}", marks


def plot(experiment: Experiment, result: Result, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.0))
    labels = [setup.label for setup in result.plan.setups if any(run.setup == setup.label for run in result.runs)]
    if any(run.series for run in result.runs):
        _plot_series(axes, result, labels)
    else:
        _plot_bars(axes, result, labels)
    axes.set_ylabel("transactions/s")
    findings = experiment.findings(result)
    caption = "; ".join(f"{finding.what}: {finding.ours:.2f} (paper {finding.paper:.2f})" for finding in findings)
    figure.suptitle(f"{experiment.title} ({experiment.paper})", fontsize="medium")
    cores = f"{result.machine['cores']} cores for everything, no dilation"
    figure.text(0.5, 0.01, f"{cores}. {caption}", ha="center", va="bottom", fontsize=6, wrap=True)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def _plot_series(axes: Any, result: Result, labels: list[str]) -> None:
    """The last run of each; what was done to it as lines upright."""
    for label in labels:
        run = result.of(label)[-1]
        axes.plot(range(1, len(run.series or []) + 1), run.series or [], label=label)
    for name, value in (result.of(labels[0])[-1].marks or {}).items():
        if name == "crash_s":
            axes.axvline(value, linestyle=":", color="grey")
    for number in range(1, len(result.plan.phases)):
        axes.axvline(number * result.plan.seconds, linestyle=":", color="grey")
    axes.set_xlabel("seconds")
    axes.legend(fontsize="small")


def _plot_bars(axes: Any, result: Result, labels: list[str]) -> None:
    rates = [[run.tps for run in result.of(label)] for label in labels]
    values = [median(each) for each in rates]
    errors = [[value - min(each) for value, each in zip(values, rates, strict=True)]]
    errors.append([max(each) - value for value, each in zip(values, rates, strict=True)])
    axes.bar(range(len(labels)), values, yerr=errors, capsize=3)
    axes.set_xticks(range(len(labels)), labels, rotation=20, ha="right", fontsize="small")
