"""The pages, plots and JSON of the experiments of polardbmp.py."""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from ..bench.servers import MIB
from .comparisons import quotient, tps_of
from .polardbmp import (
    COMPARED,
    GROWTH,
    INDEXES,
    PROFILE,
    PUBLISHED,
    RECOVERY,
    SCALING,
    SYSTEMS,
    TATP,
    TITLE,
    TPCC,
    Experiment,
    Plan,
    Result,
    Run,
    indexes_label,
    p95_of,
    summed,
)
from .report import draw_ratios
from .result_page import Pages, drawn, emulation, listed

NAME_WIDTH = 34  # characters
OTHERS_MAX = 0.1  # cores that other programs may use without being mentioned
# Of a transaction, in this order; what they are of is in docs/experiments.md.
COSTS = (
    "page_transfers", "page_grants", "page_reads", "storage_reads", "row_lock_waits", "row_lock_wait_us", "deadlocks", "refused",
    "timestamps", "log_bytes", "log_sync_us", "compute_cpu_us", "memory_cpu_us", "storage_cpu_us",
)  # fmt: skip
OF_GALERA = ("refused_at_commit", "replicated_bytes")
BUT_GALERA = (
    "of Galera there is only the CPU time of its servers, what was refused (of that, at COMMIT, for what others had written),"
    " and the bytes that it sent to the others"
)
LATENCY = "95th percentile"
EXPLAINED = (
    "Of a transaction, of all servers together: pages that a server had to give up for another one (page transfers), pages that"
    " servers were granted and read, of these from storage; waits for rows, their microseconds, deadlocks, and transactions that"
    " were refused and begun anew; timestamps taken from the oracle; bytes of log and the time to make them durable; CPU time"
)


def scale(result: Result) -> str:
    plan, data = result.plan, _data(result)
    servers = ", ".join(str(count) for count in plan.nodes)
    return (
        f"Scale: {servers} servers with a pool of {plan.pool} each, {_systems(plan)}; {data}; {plan.threads} clients of each"
        f" server, {_seconds(plan)}; a memory node of {plan.memory}, three storage nodes, link {plan.link}; read committed;"
        f" medians of {result.repeats()} runs; all processes and the load on one machine with {result.machine['cores']} cores."
    )


def _data(result: Result) -> str:
    plan, size = result.plan, f"({result.data_bytes / MIB:,.0f} MiB)"
    if plan.kind == INDEXES:
        return f"one table of {plan.rows:,} rows at first, into which all servers insert"
    if plan.loads == (TATP,):
        return f"{plan.rows:,} subscribers of each server {size}"
    if plan.loads == (TPCC,):
        of_each = f"{plan.rows:,} items and 3 % as many customers a district"
        return f"{plan.warehouses} warehouses of each server, with {of_each} {size}"
    return f"groups of {plan.tables} tables of {plan.rows:,} rows, one for each server and one for all {size}"


def _systems(plan: Plan) -> str:
    if plan.kind == SYSTEMS:
        return f"profile {PROFILE} in turns with a Galera cluster of as many (InnoDB, with as much memory)"
    return f"profile {PROFILE}"


def _seconds(plan: Plan) -> str:
    return {
        RECOVERY: f"kill -9 after {plan.seconds} s, and a lease of {plan.lease_s} s",
        GROWTH: f"a server more every {plan.seconds} s",
    }.get(plan.kind, f"{plan.seconds} s each")


def remarks(result: Result) -> list[str]:
    """What has to be known before any figure is looked at."""
    plan, wish = result.plan, result.plan.wish()
    servers = f"up to {plan.most_servers} servers of {wish.cores_of('compute')} cores each"
    said = [emulation(result, servers)] if wish.dilated else []
    said += result.notes
    others = max((run.costs.get("others_cores", 0.0) for run in result.runs), default=0.0)
    if others > OTHERS_MAX:
        said.append(f"Other programs took up to {others:.1f} of {result.machine['cores']} cores meanwhile.")
    if plan.kind == RECOVERY:
        said.append(
            f"Both servers, the other nodes and the clients share {result.machine['cores']} cores: while one is away the other"
            " has more of them."
        )
    elif not wish.dilated and plan.most_servers > 1:
        said.append(
            f"In real time {plan.most_servers} servers, the other nodes and the clients share"
            f" {result.machine['cores']} cores, so that more servers cannot do more work: what sharing costs can be seen here,"
            " how servers scale cannot (--dilation)."
        )
    if plan.kind == SYSTEMS:
        said += [published(plan), *([GALERA_LINK] if plan.link != "none" or wish.dilated else [])]
    if plan.is_own_mix:
        said.append(CHECKED[plan.loads[0]])
    return said


GALERA_LINK = "Galera's servers reach each other over the loopback interface, which is not modelled, and costs no emulated time."
CHECKED = {
    TATP: "Checked on every server after all runs: no row is missing or changed that no transaction changes, and there are as"
    " many call forwardings as were inserted and not deleted, each with its special facility.",
    TPCC: "Checked on every server after all runs: TPC-C's consistency conditions 1 to 4, and that orders, lines, payments,"
    " amounts, stocks and deliveries have grown by what clients have committed.",
}


def published(plan: Plan) -> str:
    """Of systems that nobody can run, by load."""
    said = []
    for system, ratios in PUBLISHED.items():
        for (load, shared), by_servers in ratios.items():
            if (load, shared) in plan.mixes:
                listed_ratios = " and ".join(f"{value:g} times with {servers}" for servers, value in by_servers.items())
                said.append(f"{system} {listed_ratios} ({load}, {shared} % shared)")
    return f"Published ratios to one server: {'; '.join(said) or 'none of these mixes'}."


# --- tables --------------------------------------------------------------------------------------------------------


def _lines(result: Result) -> Iterator[str]:
    return _timelines(result) if result.plan.kind in (RECOVERY, GROWTH) else _table(result)


def _table(result: Result) -> Iterator[str]:
    plan = result.plan
    base = "to no index" if plan.kind == INDEXES else "to one server"
    alone = ("one client, ms",) if plan.kind == INDEXES else ()
    names = (*COSTS, *OF_GALERA) if plan.kind == SYSTEMS else COSTS
    columns = [name.replace("_", " ") for name in names]
    yield f"{EXPLAINED}{f'; {BUT_GALERA}' if plan.kind == SYSTEMS else ''}:"
    yield ""
    percentile = f"{plan.percentile}th percentile, ms"
    yield _cells("setup", plan.unit, base, percentile, *alone, *columns, "real cores", "of others", "void")
    yield _cells(*["---"] * (7 + len(alone) + len(names)))
    for run in result.runs:
        of_alone = (f"{run.alone_ms or 0.0:.2f}",) if alone else ()
        costs = (_number(run.costs[name]) if name in run.costs else _missing(plan) for name in names)
        cores = (f"{run.costs.get(name, 0.0):.2f}" for name in ("machine_cores", "others_cores"))
        rates = (f"{run.tps:,.0f}", _to_base(result, run), f"{run.p99_ms or run.p95_ms or 0.0:,.1f}")
        yield _cells(run.setup, *rates, *of_alone, *costs, *cores, "VOID" if run.void else "")


def _missing(plan: Plan) -> str:
    """What a system does not count."""
    return "" if plan.kind == SYSTEMS else _number(0.0)


def _to_base(result: Result, run: Run) -> str:
    """Of medians."""
    bases = base_labels(result.plan)
    if bases.get(run.setup) not in result.measured():
        return ""
    return f"{quotient(result, run.setup, bases[run.setup]).value:.2f}"


def base_labels(plan: Plan) -> dict[str, str]:
    """What each setup is set beside."""
    if plan.kind == INDEXES:
        return {setup.label: indexes_label(0) for setup in plan.setups}
    return {setup.label: plan.label(setup.load, setup.shared, 1, setup.system) for setup in plan.setups}


def _timelines(result: Result) -> Iterator[str]:
    yield "Seconds, and transactions a second; the rates of each second are in the JSON:"
    yield ""
    yield _cells("setup", "what happened when")
    yield _cells("---", "---")
    for run in result.runs:
        yield _cells(run.setup, listed(run.marks or {}))


def _cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


# --- the plot ------------------------------------------------------------------------------------------------------


def caption_of(experiment: Experiment, result: Result) -> str:
    """How it was measured, in few words: dilation and cores, or what stands for them; and of whom the other values are."""
    said = " ".join(remarks(result))
    if not result.plan.wish().dilated:
        said = f"Not dilated: all processes share {result.machine['cores']} cores, in real time. {said}"
    return f'{said.strip()} Dashed red: the paper\'s, "{TITLE}", {experiment.paper}.'


def plot(experiment: Experiment, result: Result, file: Path) -> None:
    findings = experiment.findings(result)
    titles = _parts(result)
    parts = max(len(titles) + bool(findings), 1)
    size = (6.0, max(5.4, (0.9 if result.plan.kind == SYSTEMS else 0.65) * len(findings)))
    title = f"{experiment.title} ({experiment.paper})"
    with drawn(title, caption_of(experiment, result), file, parts, size, 110) as all_axes:
        for axes, of_part in zip(all_axes, titles, strict=False):
            _draw(axes, result, of_part)
            axes.set_title(of_part, fontsize="small")
        if findings:
            draw_ratios(all_axes[-1], findings, NAME_WIDTH)


def _parts(result: Result) -> list[str]:
    """What has axes of its own."""
    plan, measured = result.plan, result.measured()
    if plan.kind in (SCALING, SYSTEMS):
        loads = [load for load in plan.loads if any(setup.load == load and setup.label in measured for setup in plan.setups)]
        return [*loads, LATENCY] if loads == [TPCC] else loads
    return ["throughput", "latency of one client"] if plan.kind == INDEXES else measured


def _draw(axes: Any, result: Result, title: str) -> None:
    if result.plan.kind in (SCALING, SYSTEMS):
        _draw_scaling(axes, result, title)
    elif result.plan.kind == INDEXES:
        _draw_indexes(axes, result, title)
    else:
        _draw_series(axes, result.of(title)[-1], result.plan)


def _draw_scaling(axes: Any, result: Result, title: str) -> None:
    plan, of_time = result.plan, title == LATENCY
    load, of = (TPCC, p95_of) if of_time else (title, tps_of)
    for system in COMPARED if plan.kind == SYSTEMS else (PROFILE,):
        for shared in (shared for each, shared in plan.mixes if each == load):
            name = system if plan.kind == SYSTEMS or load == TPCC else f"{shared} % shared"
            _draw_line(axes, result, {count: plan.label(load, shared, count, system) for count in plan.nodes}, name, of)
    if plan.kind == SYSTEMS:
        _draw_published(axes, plan, load)
    if not of_time:
        axes.plot(plan.nodes, plan.nodes, "--", color="grey", linewidth=0.8, label="linear")
    axes.set_xlabel("servers")
    axes.set_ylabel(f"{LATENCY if of_time else plan.unit}, to one server")
    axes.set_xticks(plan.nodes)
    axes.set_ylim(0)
    axes.legend(fontsize="x-small")


def _draw_line(axes: Any, result: Result, labels: dict[int, str], name: str, of: Callable[[Any], float]) -> None:
    """To one server."""
    measured = set(result.measured())
    points = [count for count, label in labels.items() if {label, labels[1]} <= measured]
    spreads = [quotient(result, labels[count], labels[1], of) for count in points]
    values = [each.value for each in spreads]
    errors = [[each.value - min(each.value, each.least) for each in spreads], [max(0.0, e.most - e.value) for e in spreads]]
    axes.errorbar(points, values, yerr=errors, marker="o", capsize=3, label=name)


def _draw_published(axes: Any, plan: Plan, load: str) -> None:
    """As far as there are as many servers here."""
    for marker, (system, ratios) in zip("^vs", PUBLISHED.items(), strict=True):
        for mix, by_servers in ratios.items():
            points = {servers: value for servers, value in by_servers.items() if servers <= plan.most_servers}
            if mix in plan.mixes and mix[0] == load and points:
                style = {"marker": marker, "linestyle": "none", "color": "tab:red", "fillstyle": "none"}
                axes.plot(points.keys(), points.values(), label=f"published: {system}", **style)


def _draw_indexes(axes: Any, result: Result, title: str) -> None:
    measured = result.measured()
    counts = [count for count in result.plan.indexes if indexes_label(count) in measured]
    runs = [result.of(indexes_label(count)) for count in counts]
    of_rate = title == "throughput"
    values = [median(run.tps if of_rate else (run.alone_ms or 0.0) for run in each) for each in runs]
    axes.bar(range(len(counts)), values)
    axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.set_xlabel("secondary indexes")
    emulated = " of emulated time" if result.plan.wish().dilated else ""
    axes.set_ylabel(("transactions/s" if of_rate else "mean, ms") + emulated)


def _draw_series(axes: Any, run: Run, plan: Plan) -> None:
    """The last run of it; what happened as lines upright."""
    for name, rates in (run.series or {}).items():
        axes.plot(range(1, len(rates) + 1), rates, label=name)
    if plan.kind == GROWTH and run.series:
        totals = summed(run.series)
        axes.plot(range(1, len(totals) + 1), totals, color="black", label="all")
    for name, value in (run.marks or {}).items():
        if name == "killed_s" or name.startswith("added_"):
            axes.axvline(value, linestyle=":", color="grey")
    axes.set_xlabel("seconds")
    axes.set_ylabel("transactions/s")
    axes.legend(fontsize="x-small", loc="best")


PAGES = Pages(TITLE, Result, Run, ("data_bytes",), lambda result: result.plan.unit, scale, remarks, _lines, plot)
publish, save, read, markdown = PAGES.publish, PAGES.save, PAGES.read, PAGES.markdown
