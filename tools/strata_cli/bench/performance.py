"""The tables of docs/performance.md, made from result files: `./strata bench page`.

bench/performance.toml says which files are the current ones of each table, and why a row is below 1. A table stands in the
document between a line that names it and `<!-- end -->`, with the command that measures it and the files that it is of. A row
whose rounds were all below 1 needs a sentence that says why; one that was above 1 in some round is named as a draw.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from .. import paths
from ..shell import StrataError
from . import micro, report, results
from .comparison import INNODB, STRATA
from .sysbench import Workload

DOCUMENT = Path("docs", "performance.md")
LISTING = Path("bench", "performance.toml")
TABLE = re.compile(r"(<!-- made by \./strata bench page: ([\w.-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
ONE = 0.995  # is shown as 1.00
WORKLOADS = [str(workload) for workload in Workload]


Chosen = Sequence[tuple[str, dict[str, Any]]]  # rows, each with the letter of its file


@dataclass(frozen=True)
class Below:
    """Rows below 1, by their names, and why."""

    rows: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Plan:
    """A row is taken from the first of `files` that has it; `again` are other runs of the same, shown beside it."""

    name: str
    command: str
    files: tuple[str, ...]
    again: tuple[str, ...] = ()
    below: tuple[Below, ...] = ()


@dataclass(frozen=True)
class Listing:
    plans: tuple[Plan, ...]
    uncommitted: Mapping[str, str]  # files of copies with changes that were not committed, and why they are kept


@dataclass(frozen=True)
class Shown:
    """A row of a table. `name` is what the sentences about rows below 1 call it."""

    name: str
    cells: tuple[str, ...]
    ratio: float | None = None
    spread: tuple[float, float] | None = None


@dataclass
class Made:
    text: str = ""
    problems: list[str] = field(default_factory=list)


def listing(root: Path = paths.ROOT) -> Listing:
    file = root / LISTING
    try:
        content = tomllib.loads(file.read_text())
        plans = tuple(
            Plan(
                one["name"],
                one["command"],
                tuple(one["files"]),
                tuple(one.get("again", ())),
                tuple(Below(tuple(below["rows"]), below["why"]) for below in one.get("below", ())),
            )
            for one in content["table"]
        )
        return Listing(plans, content.get("uncommitted", {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StrataError(f"{paths.relative(file)} cannot be read: {error!r}") from error


def write(root: Path = paths.ROOT) -> list[str]:
    """Makes the tables anew; what is wrong with them."""
    document = root / DOCUMENT
    said, found = remade(document.read_text(), listing(root), root / "bench" / "results")
    document.write_text(said)
    return found


def problems(root: Path = paths.ROOT) -> list[str]:
    text = (root / DOCUMENT).read_text()
    said, found = remade(text, listing(root), root / "bench" / "results")
    if said != text:
        found.append(f"{DOCUMENT}: its tables are not what their files say; ./strata bench page makes them anew")
    return found


def remade(text: str, listed: Listing, folder: Path) -> tuple[str, list[str]]:
    """The document with its tables as their files have them."""
    made = {plan.name: table(plan, listed.uncommitted, folder) for plan in listed.plans}
    found = [f"performance.toml, {name}: {problem}" for name, one in made.items() for problem in one.problems]
    names = [match[2] for match in TABLE.finditer(text)]
    found += [f"performance.md: table {name} is not in performance.toml" for name in names if name not in made]
    found += [
        f"performance.toml: table {name} is {names.count(name)} times in performance.md"
        for name in made
        if names.count(name) != 1
    ]

    def anew(match: re.Match[str]) -> str:
        return match[1] + (made[match[2]].text if match[2] in made else match[3]) + match[4]

    return TABLE.sub(anew, text), found


def table(plan: Plan, uncommitted: Mapping[str, str], folder: Path) -> Made:
    contents = {name: _content(folder / name) for name in (*plan.files, *plan.again)}
    chosen, unused = _chosen({name: contents[name]["rows"] for name in plan.files})
    again = [row for name in plan.again for row in contents[name]["rows"]]
    body, rows = _body(chosen, again, len(plan.files) > 1)
    lines = [f"Command: `{plan.command}`.", "", *_sources(plan, contents, uncommitted), "", *body]
    below, problems = _below(plan, rows)
    problems += [f"{name} gives no row, others come before it" for name in unused]
    keys = {_key(row) for _, row in chosen}
    problems += [f"{name} repeats no row" for name in plan.again if not keys & set(map(_key, contents[name]["rows"]))]
    return Made("\n".join([*lines, *([""] if below else []), *below, ""]), problems)


def _body(chosen: Chosen, again: Sequence[dict[str, Any]], several: bool) -> tuple[list[str], list[Shown]]:
    """The table's lines, and its rows where they have ratios."""
    rows = [row for _, row in chosen]
    if "ns" in rows[0]:
        return micro.markdown(rows), []
    if "until_commit_s" in rows[0]:
        return _restarts(rows), []
    head, shown = (_profiles if "profiles" in rows[0] else _engines)(chosen, again, several)
    return report.pipes(head, [row.cells for row in shown]), shown


def _content(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text())
        if not content["rows"]:
            raise StrataError(f"{file.name} has no rows")
        return content
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StrataError(f"{file}: not a file that `./strata bench ... --json` has written: {error!r}") from error


def _key(row: Mapping[str, Any]) -> tuple[str, int]:
    return row.get("workload") or row.get("name") or row["profile"], row.get("threads", 1)


def _chosen(files: Mapping[str, Sequence[dict[str, Any]]]) -> tuple[Chosen, list[str]]:
    """Each row with the letter of its file, in the order of the longest file, sysbench's in their own; files without a use."""
    found: dict[tuple[str, int], tuple[str, dict[str, Any]]] = {}
    unused = []
    for letter, (name, rows) in zip(ascii_lowercase, files.items(), strict=False):
        fresh = [row for row in rows if _key(row) not in found]
        found.update({_key(row): (letter, row) for row in fresh})
        unused += [] if fresh else [name]
    order = [_key(row) for rows in sorted(files.values(), key=len, reverse=True) for row in rows]
    keys = list(dict.fromkeys(order))
    if all(workload in WORKLOADS for workload, _ in keys):
        keys.sort(key=lambda key: (WORKLOADS.index(key[0]), key[1]))
    return [found[key] for key in keys], unused


def _engines(chosen: Chosen, again: Sequence[dict[str, Any]], several: bool) -> tuple[list[str], list[Shown]]:
    units = {row["unit"] for _, row in chosen}
    unit = f", {next(iter(units))}" if len(units) == 1 else ""
    clients = len({row["threads"] for _, row in chosen}) > 1
    head = ["workload", "clients", STRATA + unit, INNODB + unit, "unit", "ratio", "spread", "p99", "cpu"]
    head += [f"again: ratio (spread){', p99, cpu' * any(map(_also, again))}"] * bool(again) + ["of"] * several
    rows = []
    for letter, row in chosen:
        repeats = [", ".join(filter(None, (_with_spread(one), _also(one)))) for one in again if _key(one) == _key(row)]
        values = [report.number(row[engine.lower()]) or row["notes"].get(engine, "") for engine in (STRATA, INNODB)]
        measured = [ratio(row), spread(row), report.ratio(row.get("p99_ratio")), report.ratio(row.get("cpu_ratio"))]
        cells = [row["workload"], str(row["threads"]) * clients, *values, row["unit"] * (not unit), *measured]
        cells += ["; ".join(repeats)] * bool(again) + [letter] * several
        rows.append(Shown(_named(row, chosen), tuple(cells), row["ratio"], _pair(row["spread"])))
    return _without_empty(head, rows)


def _with_spread(row: Mapping[str, Any]) -> str:
    return f"{ratio(row)} ({spread(row)})" if spread(row) else ratio(row)


def _also(row: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, (report.ratio(row.get("p99_ratio")), report.ratio(row.get("cpu_ratio")))))


def _profiles(chosen: Chosen, again: Sequence[dict[str, Any]], several: bool) -> tuple[list[str], list[Shown]]:
    """A line for each profile but the first, which all are compared with."""
    base = next(iter(chosen[0][1]["profiles"]))
    head = ["workload", "clients", base, "cpu, us", "profile", "rate", "cpu, us", "ratio", "spread", "p99"]
    head += ["again: ratio (spread)"] * bool(again) + ["of"] * several
    rows = []
    for letter, row in chosen:
        first = row["profiles"][base]
        for name, one in row["profiles"].items():
            if name == base:
                continue
            others = [other["profiles"][name] for other in again if _key(other) == _key(row) and name in other["profiles"]]
            both = [report.number(first["value"]), report.number(first["cpu_us"])]
            ours = [name, report.number(one["value"]), report.number(one["cpu_us"])]
            measured = [ratio(one), spread(one), report.ratio(one["p99_ms"] / first["p99_ms"])]
            cells = [row["workload"], str(row["threads"]), *both, *ours, *measured]
            cells += ["; ".join(map(_with_spread, others))] * bool(again) + [letter] * several
            shown = f"{_named(row, chosen)} on {name}"
            rows.append(Shown(shown, tuple(cells), one["ratio"], _pair(one["spread"])))
    return head, rows


def _restarts(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = []
    for row in rows:
        values = row["until_commit_s"]
        cells.append([row["profile"], *(f"{value:.2f} s" for value in (row["median_s"], min(values), max(values)))])
    return report.pipes(["profile", "median", "least", "most"], cells)


def _without_empty(head: list[str], rows: list[Shown]) -> tuple[list[str], list[Shown]]:
    """Without columns that say nothing."""
    kept = [number for number in range(len(head)) if any(row.cells[number] for row in rows)]
    slimmer = [Shown(row.name, tuple(row.cells[n] for n in kept), row.ratio, row.spread) for row in rows]
    return [head[number] for number in kept], slimmer


def _named(row: Mapping[str, Any], chosen: Chosen) -> str:
    """With the number of clients where the table has several."""
    workload, threads = _key(row)
    several = sum(_key(other)[0] == workload for _, other in chosen) > 1
    return f"{workload} at {threads}" if several else workload


def ratio(row: Mapping[str, Any]) -> str:
    return report.ratio(row["ratio"])


def spread(row: Mapping[str, Any]) -> str:
    found = _pair(row["spread"])
    return f"{found[0]:.2f}-{found[1]:.2f}" if found and found[0] != found[1] else ""


def _pair(values: Sequence[float] | None) -> tuple[float, float] | None:
    return (values[0], values[1]) if values else None


def _below(plan: Plan, rows: Sequence[Shown]) -> tuple[list[str], list[str]]:
    """What is below 1, and why; what nobody has said why of."""
    low = {row.name: row for row in rows if row.ratio is not None and row.ratio < ONE}
    said = {name for below in plan.below for name in below.rows}
    problems = [f"'{name}' is said to be below 1, and is not, or is not there" for name in sorted(said - low.keys())]
    draws, lines = [], []
    for name, row in low.items():
        if name in said:
            continue
        if row.spread and row.spread[1] >= ONE:
            draws.append(f"{name} ({row.ratio:.2f})")
        else:
            problems.append(f"'{name}' is below 1 ({row.ratio:.2f}) in every round: say why")
    for below in plan.below:
        named = ", ".join(f"{name} ({low[name].ratio:.2f})" for name in below.rows if name in low)
        lines.append(f"- Below 1: **{named}**. {below.why}")
    if draws:
        lines.append(f"- Below 1, but not in every round: {', '.join(draws)}.")
    return lines, problems


def _sources(plan: Plan, contents: Mapping[str, Mapping[str, Any]], uncommitted: Mapping[str, str]) -> Iterator[str]:
    letters = dict(zip(plan.files, ascii_lowercase, strict=False)) if len(plan.files) > 1 else {}
    many = len(contents) > 1
    for name, content in contents.items():
        which = f"{letters[name]}: " if name in letters else "again: " if name in plan.again else ""
        settings = content.get("settings", {})
        facts = [f"commit {content['commit'].removesuffix(results.DIRTY)}"]
        if "rounds" in settings:
            facts.append(f"{settings['rounds']} rounds" + (f" of {settings['seconds']} s" if "seconds" in settings else ""))
        facts.append(f"{content['machine']['processor']}, {content['machine']['cores']} cores")
        if taken := _taken(content["rows"]):
            facts.append(taken)
        if content["commit"].endswith(results.DIRTY):
            facts.append(f"**with changes that were not committed**: {uncommitted.get(name, 'nobody has said why it is kept')}")
        yield f"{'- ' if many else 'Of '}{which}`{name}` ({'; '.join(facts)}){'' if many else '.'}"


def _taken(rows: Sequence[Mapping[str, Any]]) -> str:
    stolen = max((row.get("stolen") or 0.0 for row in rows), default=0.0)
    return f"its host gave up to {stolen:.0%} of its time to others" if stolen > report.STOLEN_SHOWN else ""
