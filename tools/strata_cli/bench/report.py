"""What a comparison says: a table for people, --json for programs, --plot for a figure."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .. import paths
from ..shell import StrataError, console
from . import micro, results, servers
from .comparison import INNODB, STRATA, Row

GOOD, BAD = 1.0, 0.9
TABLE_WIDTH = 130
STOLEN_SHOWN = 0.05
MARKDOWN_HEAD = (
    "| workload | clients | data | STRATA | InnoDB | unit | ratio | spread | p99 | cpu |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def table(rows: Sequence[Row]) -> Table:
    out = Table(box=None, header_style="bold")
    for name in ("workload", "threads", "data", "STRATA", "InnoDB", "ratio", "spread", "p99", "cpu", "unit"):
        left = name in ("workload", "data", "unit", "spread")
        out.add_column(name, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        spread = f"{row.spread[0]:.2f} - {row.spread[1]:.2f}" if row.spread else ""
        out.add_row(
            row.workload,
            str(row.threads),
            row.dataset,
            _shown(row, STRATA),
            _shown(row, INNODB),
            _coloured(row.ratio),
            spread,
            ratio(row.p99_ratio),
            ratio(row.cpu_ratio),
            row.unit,
        )
    return out


def _shown(row: Row, engine: str) -> str:
    return number(row.value(engine)) or row.notes.get(engine, "")


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def ratio(value: float | None) -> str:
    return f"{value:.2f}" if value else ""


def _coloured(ratio: float | None) -> str:
    if ratio is None:
        return ""
    colour = "green" if ratio >= GOOD else "red" if ratio < BAD else "yellow"
    return f"[{colour}]{ratio:.2f}[/]"


def publish(rows: Sequence[Row], settings: dict[str, object], json_file: Path | None, plot_file: Path | None) -> None:
    # Whole columns also where the output is not a terminal, or a narrow one: only a console of its own is as wide.
    Console(highlight=False, width=max(console.width, TABLE_WIDTH)).print(table(rows))
    console.print("ratio: above 1 STRATA is better (STRATA / InnoDB, or InnoDB / STRATA where less is better), medians;")
    console.print("spread: least and greatest ratio of neighbouring runs; p99, cpu: STRATA / InnoDB, less is better")
    stolen = max((row.stolen or 0.0 for row in rows), default=0.0)
    if stolen > STOLEN_SHOWN:
        console.print(f"[yellow]this machine's host gave up to {stolen:.0%} of its CPU time to others: spreads are wide[/]")
    if json_file:
        save(rows, settings, json_file)
        console.print(f"written: {paths.relative(json_file.resolve())}")
    if plot_file:
        _plot(rows, plot_file)
        console.print(f"written: {paths.relative(plot_file.resolve())}")


def save(rows: Sequence[Row], settings: dict[str, object], json_file: Path | None) -> None:
    write([row.as_json() for row in rows], settings, json_file)


def write(rows: Sequence[dict[str, object]], settings: dict[str, object], json_file: Path | None) -> None:
    """After every row: what was measured outlives a run that is cut off."""
    if not json_file:
        return
    results.write(results.measured(rows, settings, servers.machine()), json_file)


def line(row: Row) -> str:
    """A row while the run goes on."""
    values = ", ".join(f"{engine} {_shown(row, engine)}" for engine in (STRATA, INNODB) if _shown(row, engine))
    threads = f", {row.threads} thread{'s' * (row.threads != 1)}" if row.threads else ""
    spread = f" ({row.spread[0]:.2f}-{row.spread[1]:.2f})" if row.spread and row.spread[0] != row.spread[1] else ""
    over = f", ratio {row.ratio:.2f}{spread}" if row.ratio else ""
    p99 = f", p99 {row.p99_ratio:.2f}" if row.p99_ratio else ""
    cpu = f", cpu {row.cpu_ratio:.2f}" if row.cpu_ratio else ""
    stolen = f", {row.stolen:.0%} stolen" if row.stolen and row.stolen > STOLEN_SHOWN else ""
    return f"  {row.workload}{threads}, {row.dataset}: {values} {row.unit}{over}{p99}{cpu}{stolen}"


def markdown(files: Sequence[Path]) -> str:
    """What `save` wrote, as one table for a document: for each file where it was measured, then its rows."""
    lines: list[str] = []
    for file in files:
        try:
            content = json.loads(file.read_text())
            table = _markdown_of(content["points"] if "experiment" in content else content["rows"])
            settings = ", ".join(f"{name} {value}" for name, value in content.get("settings", {}).items())
            commit = ", ".join(results.commits(content))
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise StrataError(f"{file}: not a file that `./strata bench ... --json` has written: {error!r}") from error
        lines += [f"Commit {commit}{settings and '; '}{settings}.", "", *table, ""]
    return "\n".join(lines)


def _markdown_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    if "profiles" in rows[0]:
        return _markdown_of_profiles(rows)
    if "until_commit_s" in rows[0] or "variant" in rows[0]:
        return _markdown_of_any(rows)
    return micro.markdown(rows) if "ns" in rows[0] else _markdown_of_engines(rows)


def pipes(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(cells)} |" for cells in rows)]


def _markdown_of_any(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Restarts, far memory, the points of an experiment: what they hold by itself, without what they were summed from."""
    names = [name for name, value in rows[0].items() if not isinstance(value, list | dict) or name == "variant"]
    return pipes([name.replace("_", " ") for name in names], [[_plain(row[name]) for name in names] for row in rows])


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(map(str, value.values()))
    return number(float(value)) if isinstance(value, float | int) else str(value)


def _markdown_of_engines(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [*MARKDOWN_HEAD, *map(_markdown_row, rows)]


def _markdown_of_profiles(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Behind the rates of all but the first profile: their ratio to it, its spread, and the ratio of all processes' CPU time."""
    first, *others = rows[0]["profiles"]
    heads = ["workload", "clients", first]
    heads += [text for name in others for text in (name, "ratio", "spread", "cpu")]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        found = row["profiles"]
        cells = [row["workload"], str(row["threads"]), number(found[first]["value"])]
        for name in others:
            one = found[name]
            low, high = one["spread"]
            cells += [
                number(one["value"]),
                ratio(one["ratio"]),
                f"{low:.2f}-{high:.2f}",
                ratio(one["cpu_us"] / found[first]["cpu_us"]),
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _markdown_row(row: dict[str, Any]) -> str:
    spread = f"{row['spread'][0]:.2f}-{row['spread'][1]:.2f}" if row["spread"] else ""
    values = [number(row[engine.lower()]) or row["notes"].get(engine, "") for engine in (STRATA, INNODB)]
    # Files from before CPU time was measured have none.
    over, p99, cpu = (ratio(row.get(name)) for name in ("ratio", "p99_ratio", "cpu_ratio"))
    cells = [row["workload"], str(row["threads"]), row["dataset"], *values, row["unit"], over, spread, p99, cpu]
    return f"| {' | '.join(cells)} |"


def _plot(rows: Sequence[Row], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    known = [row for row in rows if row.ratio is not None]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.32 * len(known)))
    names = [f"{row.workload}, {row.threads} thread{'s' * (row.threads != 1)}, {row.dataset}" for row in known]
    ratios = [row.ratio or 0.0 for row in known]
    low = [ratio - (row.spread[0] if row.spread else ratio) for row, ratio in zip(known, ratios, strict=True)]
    high = [(row.spread[1] if row.spread else ratio) - ratio for row, ratio in zip(known, ratios, strict=True)]
    errors = [[max(0.0, x) for x in low], [max(0.0, x) for x in high]]
    colours = ["#4c8c4a" if ratio >= GOOD else "#c05046" for ratio in ratios]
    axes.barh(names, ratios, xerr=errors, color=colours, ecolor="#444444", height=0.6)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    less = any(row.less_is_better for row in known)
    axes.set_xlabel(f"{INNODB} / {STRATA}, less is better" if less else f"throughput, {STRATA} / {INNODB}")
    figure.tight_layout()
    figure.savefig(file, dpi=130)
