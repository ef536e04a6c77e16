"""What an experiment of ddc.py leaves: JSON with everything measured, a plot, a page, and sentences beside the paper's."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .. import paths
from ..bench import results, servers
from ..shell import StrataError, console
from .ddc import TITLE
from .ddc_result import MIB, MONETDB, POSTGRESQL, SHARES, Experiment, Plan, Result, Row, Said
from .ddc_sessions import ALL_LOCAL as LOCAL
from .openaurora import Finding
from .report import draw_ratios, sentence

NAME_WIDTH = 40
FAR_PARTS = {
    MONETDB: "Far is what MonetDB allocates in pieces of 16 KiB and more, tables included; code, stacks and the rest are local.",
    POSTGRESQL: "Far are PostgreSQL's shared buffers, which hold the whole database; what each process allocates is local.",
}


def scale(result: Result) -> str:
    plan = result.plan
    data = f"TPC-H {plan.scale:g}, {result.data_bytes / MIB:,.0f} MiB of data"
    if plan.system not in FAR_PARTS:
        return f"Scale: {data}; one machine for all; one run of each."
    sizes = ", ".join(f"{share} = {result.share_bytes(share) / MIB:.1f} MiB" for share in SHARES)
    disk = (
        f" The disk to spill to does {plan.disk_iops:,} reads and writes in a second."
        if "disk" in " ".join(result.setups())
        else ""
    )
    return (
        f"Scale: {data}{' with its indexes' if plan.system == POSTGRESQL else ' as text'}; local: {sizes};"
        f" a memory node on the same machine, link {plan.link}; one run of each. {FAR_PARTS[plan.system]}{disk}"
        " Times are of a machine with other work on it; bytes and faults are not touched by that."
    )


def said(one: Finding | Said) -> str:
    return one.sentence() if isinstance(one, Said) else sentence(one)


def findings(experiment: Experiment, result: Result) -> list[Finding | Said]:
    """Nothing of a result that is not whole yet."""
    try:
        return experiment.findings(result)
    except (LookupError, ValueError, ArithmeticError):
        return []


def content(experiment: Experiment, result: Result) -> dict[str, Any]:
    found = findings(experiment, result)
    return {
        "experiment": result.plan.name,
        "title": experiment.title,
        "paper": f"{TITLE}: {experiment.paper}",
        "commit": results.commit(),
        "machine": servers.machine(),
        "settings": asdict(result.plan),
        "data_bytes": result.data_bytes,
        "scale": scale(result),
        "findings": [{**asdict(one), "agrees": one.agrees, "sentence": said(one)} for one in found],
        "rows": [asdict(row) for row in result.rows],
    }


def save(experiment: Experiment, result: Result, file: Path) -> None:
    results.put(content(experiment, result), file)


def read(plan: Plan, file: Path) -> tuple[Result, str]:
    """What save() wrote, and the commit that it is of."""
    try:
        saved = json.loads(file.read_text())
        if saved["experiment"] != plan.name:
            raise StrataError(f"{file} holds {saved['experiment']}, not {plan.name}")
        settings = {**saved["settings"], "queries": tuple(saved["settings"]["queries"])}
        return Result(replace(plan, **settings), saved["data_bytes"], [Row(**row) for row in saved["rows"]]), saved["commit"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StrataError(f"{file} cannot be read as an experiment's result: {error!r}") from error


def publish(experiment: Experiment, result: Result, commit: str, plot_file: Path, page: Path | None) -> None:
    plot_file.parent.mkdir(parents=True, exist_ok=True)
    plot(experiment, result, plot_file)
    if page is not None:
        page.write_text(markdown(experiment, result, commit, plot_file))
    console.print(f"{experiment.title} ({experiment.paper})")
    console.print(scale(result), markup=False)
    for one in findings(experiment, result):
        console.print(said(one), markup=False)
    console.print(f"written: {paths.relative(plot_file.resolve())}")


def markdown(experiment: Experiment, result: Result, commit: str, plot_file: Path) -> str:
    lines = [f"# {experiment.title}", "", f'"{TITLE}", {experiment.paper}. {scale(result)} Commit: {commit}.', ""]
    lines += [f"![{experiment.title}]({plot_file.name})", ""]
    lines += [f"- {said(one)}" for one in findings(experiment, result)]
    lines += ["", *_table(result)]
    if notes := [f"- {row.query}, {row.setup}: {' '.join(row.note.split())}" for row in result.rows if row.note]:
        lines += ["", "Without a figure:", "", *notes]
    return "\n".join(lines) + "\n"


def _table(result: Result) -> list[str]:
    setups = result.setups()
    far = any(row.remote_bytes or row.faults for row in result.rows)
    told = (
        " In brackets: MiB fetched, faults, and the seconds that would be with each fetched page over RDMA of 25 Gb/s (all local,"
        " and 4.3 us a page)."
        if far
        else ""
    )
    peaks = any(row.peak_bytes for row in result.rows)
    lines = [f"Seconds{', and MiB resident at most' if peaks else ''}.{told}", ""]
    lines += [f"| query | {' | '.join(setups)} |", "| --- |" + " --- |" * len(setups)]
    lines += [f"| {name} | {' | '.join(_cell(result, setup, name) for setup in setups)} |" for name in result.names()]
    return lines


def _cell(result: Result, setup: str, name: str) -> str:
    rows = result.of(setup, name)
    if not rows:
        return "none" if result.note(setup, name) else ""
    out = f"{result.seconds(setup, name):.3f}"
    if rows[0].peak_bytes:
        out += f", {rows[0].peak_bytes / MIB:,.0f} MiB"
    if setup != LOCAL and (rows[0].remote_bytes or rows[0].faults):
        modelled = result.modelled(setup, name)
        wanted = f"; {modelled:.3f} s" if modelled is not None and "disk" not in setup else ""
        out += f" ({result.fetched(setup, name) / MIB:,.1f}; {rows[0].faults:,}{wanted})"
    return out


def _value(result: Result, setup: str, name: str) -> float:
    """What is drawn: peaks where there are, else times, to all local where that was measured."""
    rows = result.of(setup, name)
    if not rows:
        return 0.0
    if rows[0].peak_bytes:
        return rows[0].peak_bytes / MIB
    return result.slowdown(setup, name) if result.has(LOCAL, name) else result.seconds(setup, name)


def plot(experiment: Experiment, result: Result, file: Path) -> None:
    """How much slower each query is, and our ratios beside the paper's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5))
    if any(row.series for row in result.rows):
        _draw_series(left, result)
    else:
        _draw_bars(left, result)
    if ratios := [one for one in findings(experiment, result) if isinstance(one, Finding)]:
        draw_ratios(right, ratios, NAME_WIDTH)
    else:
        right.set_axis_off()
    figure.suptitle(
        f"{experiment.title} ({experiment.paper}); TPC-H {result.plan.scale:g}, link {result.plan.link}", fontsize="medium"
    )
    figure.tight_layout()
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def _draw_series(axes: Any, result: Result) -> None:
    for number, name in enumerate(result.names()):
        for setup, line in zip(result.setups(), ("-", "--", ":", "-."), strict=False):
            series = [row.series for row in result.rows if (row.setup, row.query) == (setup, name)]
            if series and series[0]:
                axes.plot(range(1, len(series[0]) + 1), series[0], line, color=f"C{number}", label=f"{name}, {setup}")
    axes.set_yscale("log")
    axes.set_xlabel("queries")
    axes.set_ylabel("seconds so far")
    axes.legend(fontsize="xx-small")


def _draw_bars(axes: Any, result: Result) -> None:
    names = result.names()
    peaks = any(row.peak_bytes for row in result.rows)
    setups = [setup for setup in result.setups() if peaks or setup != LOCAL] or result.setups()
    width = 0.8 / len(setups)
    for number, setup in enumerate(setups):
        places = [place + (number - (len(setups) - 1) / 2) * width for place in range(len(names))]
        axes.bar(places, [_value(result, setup, name) for name in names], width, label=setup)
    axes.set_xticks(range(len(names)), names, rotation=60, fontsize="x-small")
    if peaks:
        axes.set_ylabel("MiB resident at most")
        return
    relative = any(result.has(LOCAL, name) for name in names)
    if relative:
        axes.axhline(1.0, color="grey", linewidth=0.7)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("time, to all local" if relative else "seconds")
    axes.legend(fontsize="x-small")
