"""What an experiment leaves: JSON with everything measured, a plot, and sentences beside the paper's."""

import json
from dataclasses import asdict
from pathlib import Path

from .. import paths
from ..bench import servers
from ..bench.servers import MIB
from ..shell import console
from .ladder import Result
from .openaurora import Experiment, Finding, waited_bytes


def scale(result: Result) -> str:
    plan = result.plan
    sizes = ", ".join(f"{pool.bytes / MIB:,.0f}" for pool in result.pools)
    hits = ", ".join(f"{pool.measured:.1%}" for pool in result.pools)
    return (
        f"Scale: {plan.tables} tables of {plan.rows:,} rows ({result.data_bytes / MIB:,.0f} MiB), {plan.threads} clients,"
        f" three storage nodes, link {plan.link} (modelled), buffers of {sizes} MiB with measured hit ratios of {hits};"
        f" {plan.repeats} x {plan.runs} runs of {plan.seconds} s, medians; all processes on one machine."
    )


def sentence(finding: Finding) -> str:
    if finding.paper == 1:
        agrees = "similar here, too" if finding.agrees else "not similar here"
    else:
        agrees = "the same direction" if finding.agrees else "the other direction"
    return f"{finding.what}: {finding.ours:.2f} here, {finding.paper:.2f} in the paper; {agrees}."


def publish(experiment: Experiment, result: Result, json_file: Path, plot_file: Path) -> None:
    findings = experiment.findings(result)
    for file in (json_file, plot_file):
        file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(as_json(experiment, result, findings), indent=2) + "\n")
    plot(experiment, result, plot_file)
    console.print(f"{experiment.title} ({experiment.paper})")
    console.print(scale(result))
    for finding in findings:
        console.print(sentence(finding))
    for file in (json_file, plot_file):
        console.print(f"written: {paths.relative(file.resolve())}")


def as_json(experiment: Experiment, result: Result, findings: list[Finding]) -> dict[str, object]:
    return {
        "experiment": result.plan.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "commit": servers.commit(),
        "machine": servers.machine(),
        "settings": result.plan.settings(),
        "scale": scale(result),
        "pools": [asdict(pool) for pool in result.pools],
        "findings": [{**asdict(finding), "sentence": sentence(finding)} for finding in findings],
        "points": [
            {
                "variant": point.variant,
                "hit_ratio": point.hit_ratio,
                "load": point.load,
                "transactions_per_s": point.value,
                "runs": point.tps,
                "waited_log_bytes_per_page": waited_bytes(point),
                "counters": point.counters,
            }
            for point in result.points
        ],
    }


def plot(experiment: Experiment, result: Result, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    loads = list(dict.fromkeys(point.load for point in result.points))
    figure, all_axes = pyplot.subplots(1, len(loads), figsize=(4.6 * len(loads), 3.4), squeeze=False)
    names = [f"{pool.bytes / MIB:,.0f} MiB\n{pool.measured:.1%}" for pool in result.pools]
    width = 0.8 / len(result.plan.variants)
    for axes, load in zip(all_axes[0], loads, strict=True):
        for number, variant in enumerate(result.plan.variants):
            places = [place + (number - (len(result.plan.variants) - 1) / 2) * width for place in range(len(names))]
            values = [result.value(variant.label, pool.target, load) for pool in result.pools]
            axes.bar(places, values, width, label=variant.label)
        axes.set_xticks(range(len(names)), names)
        axes.set_title(load)
        axes.set_ylabel("transactions/s")
        axes.set_xlabel("buffer, hit ratio")
    all_axes[0][0].legend(fontsize="small")
    figure.suptitle(f"{experiment.title} ({experiment.paper})", fontsize="medium")
    figure.tight_layout()
    figure.savefig(file, dpi=130)
