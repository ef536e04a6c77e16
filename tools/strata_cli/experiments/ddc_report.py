"""What an experiment of ddc.py leaves: JSON with everything measured, a plot, a page, and sentences beside the paper's."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .. import paths
from ..bench import results, servers
from ..shell import StrataError, console
from .ddc import LOCAL, SHARES, TITLE, Experiment, Plan, Result, Row, rows_of
from .report import draw_ratios, sentence

MIB = 1 << 20
NAME_WIDTH = 40


def scale(result: Result) -> str:
    plan = result.plan
    sizes = ", ".join(f"{share} = {result.local_bytes(share) / MIB:.1f} MiB" for share in SHARES)
    return (
        f"Scale: TPC-H {plan.scale:g}, a database of {result.data_bytes / MIB:,.0f} MiB with its indexes; local: {sizes};"
        f" a memory node on the same machine, link {plan.link}; one run of each. Far are PostgreSQL's shared buffers, which hold"
        " the whole database; what its processes allocate for themselves is local."
    )


def content(experiment: Experiment, result: Result) -> dict[str, Any]:
    found = experiment.findings(result) if result.is_whole() else []
    return {
        "experiment": result.plan.name,
        "title": experiment.title,
        "paper": f"{TITLE}: {experiment.paper}",
        "commit": results.commit(),
        "machine": servers.machine(),
        "settings": asdict(result.plan),
        "data_bytes": result.data_bytes,
        "scale": scale(result),
        "findings": [{**asdict(one), "agrees": one.agrees, "sentence": sentence(one)} for one in found],
        "rows": rows_of(result),
    }


def save(experiment: Experiment, result: Result, file: Path) -> None:
    results.put(content(experiment, result), file)


def read(plan: Plan, file: Path) -> tuple[Result, str]:
    """What save() wrote, and the commit that it is of."""
    try:
        said = json.loads(file.read_text())
        if said["experiment"] != plan.name:
            raise StrataError(f"{file} holds {said['experiment']}, not {plan.name}")
        settings = {**said["settings"], "queries": tuple(said["settings"]["queries"])}
        return Result(replace(plan, **settings), said["data_bytes"], [Row(**row) for row in said["rows"]]), said["commit"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StrataError(f"{file} cannot be read as an experiment's result: {error!r}") from error


def publish(experiment: Experiment, result: Result, commit: str, plot_file: Path, page: Path | None) -> None:
    plot_file.parent.mkdir(parents=True, exist_ok=True)
    plot(experiment, result, plot_file)
    if page is not None:
        page.write_text(markdown(experiment, result, commit, plot_file))
    console.print(f"{experiment.title} ({experiment.paper})")
    console.print(scale(result), markup=False)
    for one in experiment.findings(result):
        console.print(sentence(one), markup=False)
    console.print(f"written: {paths.relative(plot_file.resolve())}")


def _names(result: Result) -> list[str]:
    return list(dict.fromkeys(row.query for row in result.rows))


def markdown(experiment: Experiment, result: Result, commit: str, plot_file: Path) -> str:
    lines = [f"# {experiment.title}", "", f'"{TITLE}", {experiment.paper}. {scale(result)} Commit: {commit}.', ""]
    lines += [f"![{experiment.title}]({plot_file.name})", ""]
    lines += [f"- {sentence(one)}" for one in experiment.findings(result)]
    lines += ["", f"| query | {LOCAL}, s |" + "".join(f" {share} local, s (MiB fetched) |" for share in SHARES)]
    lines += ["| --- | --- |" + " --- |" * len(SHARES)]
    for name in _names(result):
        cells = [f"{result.seconds(LOCAL, name):.3f}"]
        for share in SHARES:
            fetched = [row.remote_bytes for row in result.rows if (row.setup, row.query) == (share, name)]
            cells.append(f"{result.seconds(share, name):.3f} ({sum(fetched) / len(fetched) / MIB:,.0f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(experiment: Experiment, result: Result, file: Path) -> None:
    """How much slower each query is, and our ratios beside the paper's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5))
    names = _names(result)
    width = 0.8 / len(SHARES)
    for number, share in enumerate(SHARES):
        places = [place + (number - 1) * width for place in range(len(names))]
        left.bar(places, [result.slowdown(share, name) for name in names], width, label=f"{share} local")
    left.axhline(1.0, color="grey", linewidth=0.7)
    left.set_xticks(range(len(names)), names, rotation=60, fontsize="x-small")
    left.set_yscale("log", base=2)
    left.yaxis.set_major_formatter("{x:g}")
    left.set_ylabel("time, to all local")
    left.legend(fontsize="x-small")
    draw_ratios(right, experiment.findings(result), NAME_WIDTH)
    figure.suptitle(
        f"{experiment.title} ({experiment.paper}); TPC-H {result.plan.scale:g}, link {result.plan.link}", fontsize="medium"
    )
    figure.tight_layout()
    figure.savefig(file, dpi=130)
    pyplot.close(figure)
