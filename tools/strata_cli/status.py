"""`./strata status`: facts about every process of a data folder, as a table or as JSON."""

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pymysql
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import compute_standby, local_tables, mariadb_packages, paths
from .cluster import FIRST_COMPUTE, Cluster
from .etcd_server import Etcd
from .memory_node import MemoryNode
from .profile_list import OF_SEVERAL_WRITERS
from .server import Server
from .several_health import MEMORY_SERVES, MEMORY_WAITS, phase
from .shell import StrataError, console
from .standby_process import STARTING, TAKING_OVER, WAITING, StandBy
from .storage_node import StorageNode

RUNNING, NOTHING_RUNS, DEGRADED = 0, 3, 4  # Exit codes; 3 as in init scripts.
SQL_LIMITS = {"connect_timeout": 5, "read_timeout": 10}  # Seconds.
TABLE_WIDTH = 150  # When nobody's terminal says otherwise.

NOT_RUNNING = "not running"
DIRTY_SLOTS = ("dirty", "writing", "written")  # until storage has synced them
REMEDY_MARK = "; to do: "  # As in base/status.h: what happened stands before it, what to do about it behind.
LAST_WORDS_BYTES = 256 << 10  # Of the log, looked at from its end.
# How a server or a storage node says that it begins, and what went wrong: with a remedy, so that it is for people.
BEGINS = re.compile(r"\[Note\] Starting MariaDB |^\S+Z info starting ")
SERVER_ERROR = re.compile(r"\[ERROR\] STRATA: (.*)")
NODE_ERROR = re.compile(r"^\S+Z error \S+ (?:reason|message)=(.*)")


@dataclass
class Pools:
    """Of a memory node: what it keeps, and how the compute node fares with it. None where nobody has told."""

    memory: str = ""
    slots: int | None = None  # pages that have room
    used: int | None = None
    dirty: int | None = None  # pages that storage may not have
    hit_ratio: float | None = None  # of the pages that compute had to fetch: the share that was here
    tier1_lsn: int | None = None  # redo of a killed compute node begins here
    tier2_lsn: int | None = None  # and here when the memory node is lost, too


@dataclass
class Process:
    """One line of the table. Numbers are None where they mean nothing or nobody has told."""

    role: str
    name: str
    pid: int | None
    address: str
    healthy: bool
    reason: str = ""  # Why it is not healthy.
    needed: bool = True  # Whether the whole is degraded without it.
    epoch: int | None = None
    log_end: int | None = None
    lag_bytes: int | None = None  # Of the log: at its end, but not yet known here to be on a quorum.
    backlog_bytes: int | None = None  # Of the log: not yet replayed into pages.
    version_store_bytes: int | None = None
    streams: list[dict[str, Any]] | None = None
    votes: bool | None = None  # Of a storage node: its log counts for the quorum. Not of one that is new and catches up.
    generation: int | None = None  # Of the placement that it goes by.
    pools: Pools | None = None  # Of a memory node.
    authority: str | None = None  # Of one that servers share: "serves", "stands by" (it waits), "prepares" and the like.
    local_tables: list[str] | None = None  # Of a compute node: tables that another one will not have.


def status(data: Path, as_json: bool) -> int:
    facts, processes = look(data)
    state = state_of(processes)
    facts["state"] = {RUNNING: "running", NOTHING_RUNS: "stopped", DEGRADED: "degraded"}[state]
    facts["processes"] = [asdict(process) for process in processes]
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        _print(facts, processes)
    return state


def state_of(processes: Sequence[Process]) -> int:
    if all(process.pid is None for process in processes):
        return NOTHING_RUNS
    return RUNNING if all(process.healthy for process in processes if process.needed) else DEGRADED


def look(data: Path) -> tuple[dict[str, Any], list[Process]]:
    cluster = Cluster(data)
    if not cluster.exists():
        server = Server(data)
        if not server.exists() and server.pid() is None:
            place = paths.relative(server.data)
            raise StrataError(f"{place} holds no server and no cluster; ./strata up --data {place} makes one")
        facts = server_facts(server)
        return facts, [compute_process("server", server, facts)]
    profile = cluster.settings().profile
    serving = cluster.serving_compute()
    with ThreadPoolExecutor(max_workers=8) as pool:  # One that hangs does not hold up the others.
        of_etcd = pool.submit(etcd_process, cluster.etcd, cluster.settings().etcd_port)
        outsiders = [node for node in cluster.outsiders.values() if node.pid() is not None]
        of_storage = [pool.submit(storage_process, node) for node in [*cluster.storage.values(), *outsiders]]
        of_memory = [pool.submit(memory_process, node) for node in cluster.memory.values()]
        of_computes = {name: pool.submit(server_facts, server) for name, server in cluster.computes.items()}
        processes = [of_etcd.result(), *(process.result() for process in [*of_storage, *of_memory])]
    in_use = cluster.settings().memory_in_use
    for process in processes:
        process.needed = process.name not in cluster.outsiders and (process.pools is None or process.name in in_use)
    if cluster.has_several():
        say_who_waits([process for process in processes if process.pools is not None])
    for name, server in cluster.computes.items():
        if name in cluster.standbys and server.pid() is None:
            processes.append(standby_process(cluster.standbys[name]))
            continue
        process = compute_process(name, server, of_computes[name].result())
        process.needed = cluster.has_several() or name == (serving or FIRST_COMPUTE)
        processes.append(process)
    facts = of_computes[serving or next(iter(cluster.computes))].result()
    for process in processes:
        if process.pools is not None and process.name in in_use:
            read_tiers(process.pools, facts.get("variables", {}), alone=len(in_use) == 1)
    return {**facts, "data": str(cluster.data), "profile": profile, "placement": placement_facts(cluster)}, processes


def placement_facts(cluster: Cluster) -> dict[str, Any] | None:
    """None: the registry says nothing, or there is none yet."""
    try:
        found = cluster.placement() if cluster.etcd.pid() is not None else None
    except StrataError:
        return None
    return None if found is None else asdict(found)


def etcd_process(etcd: Etcd, port: int) -> Process:
    pid = etcd.pid()
    healthy = pid is not None and etcd.healthy()
    reason = "" if healthy else "not running" if pid is None else "does not answer, or cannot commit"
    return Process("registry", "etcd", pid, f"127.0.0.1:{port}", healthy, reason)


def storage_process(node: StorageNode) -> Process:
    illness = node.illness()
    if illness == NOT_RUNNING:
        illness = with_last_words(illness, node.log)
    process = Process("storage", node.name, node.pid(), node.address(), illness is None, illness or "")
    if process.pid is not None:
        read_storage_status(process, node.status())
    return process


def memory_process(node: MemoryNode) -> Process:
    illness = node.illness()
    if illness == NOT_RUNNING:
        illness = with_last_words(illness, node.log)
        if REMEDY_MARK not in illness:
            illness += f"{REMEDY_MARK}./strata node start {node.name}"
    process = Process("memory", node.name, node.pid(), node.address(), illness is None, illness or "")
    process.pools = Pools(node.settings.memory)
    if process.pid is not None:
        said = node.status()
        read_memory_status(process.pools, said)
        read_authority(process, said)
    return process


def read_authority(process: Process, said: dict[str, Any]) -> None:
    """Of a memory node that servers share."""
    process.authority = phase(said) or None
    if process.authority is not None and process.authority != MEMORY_WAITS:
        process.epoch = _number(said["fusion"], "epoch")


def say_who_waits(memory: Sequence[Process]) -> None:
    """Which memory node servers are served by, and which would follow it."""
    waiting = [process.name for process in memory if process.healthy and process.authority == MEMORY_WAITS]
    for process in memory:
        if not process.healthy:
            continue
        if process.authority == MEMORY_WAITS:
            process.reason = "it waits, and takes over when the one that serves is gone"
        elif process.authority == MEMORY_SERVES and waiting:
            process.reason = f"it serves; {', '.join(waiting)} would follow"
        elif process.authority == MEMORY_SERVES:
            process.reason = "it serves; no other one waits: while it is away, statements wait"


def read_memory_status(pools: Pools, said: dict[str, Any]) -> None:
    """All pools of the node together: as a rule it has one."""
    found = said.get("pools")
    each = [pool for pool in found if isinstance(pool, dict)] if isinstance(found, list) else []
    states = [slots for pool in each if isinstance(slots := pool.get("slots"), dict)]

    def total(*keys: str) -> int | None:
        numbers = [number for slots in states for key in keys if (number := _number(slots, key)) is not None]
        return sum(numbers) if numbers else None

    pools.slots, pools.dirty = total("all"), total(*DIRTY_SLOTS)
    pools.used = total("clean", *DIRTY_SLOTS)
    pools.tier1_lsn = _largest(each, "checkpoint_lsn")


def read_tiers(pools: Pools, variables: dict[str, str], *, alone: bool = True) -> None:
    """What the compute node that uses it has counted, of all its memory nodes together."""
    counts = {key.lower().removeprefix("strata_"): value for key, value in variables.items()}
    hits, misses = _number(counts, "lego_remote_hits"), _number(counts, "lego_storage_reads")
    if hits is not None and misses is not None and hits + misses > 0:
        pools.hit_ratio = hits / (hits + misses)
    pools.tier1_lsn = _first(_number(counts, "log_memory_checkpoint_lsn"), pools.tier1_lsn)
    pools.tier2_lsn = _number(counts, "log_checkpoint_lsn")
    if not alone:
        return
    pools.slots = _first(pools.slots, _number(counts, "lego_pool_slots"))
    pools.dirty = _first(pools.dirty, _number(counts, "lego_pool_dirty"))


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


def read_storage_status(process: Process, said: dict[str, Any]) -> None:
    """One log per writer: epochs and ends are of the newest one, lags are added up."""
    found = said.get("streams")
    streams = [stream for stream in found if isinstance(stream, dict)] if isinstance(found, list) else []
    process.streams = streams
    process.epoch, process.log_end = _largest(streams, "last_epoch"), _largest(streams, "log_end")
    votes = [stream["voting"] for stream in streams if isinstance(stream.get("voting"), bool)]
    process.votes = all(votes) if votes else None
    if process.votes is False and process.healthy:
        process.healthy, process.reason = False, f"it is new and catches up: log up to {process.log_end}, does not vote yet"
    group = said.get("group")
    process.generation = _number(group, "generation") if isinstance(group, dict) else None
    lags = [
        max(0, end - durable)
        for stream in streams
        if (end := _number(stream, "log_end")) is not None and (durable := _number(stream, "quorum_durable")) is not None
    ]
    process.lag_bytes = sum(lags) if lags else None
    values = said.get("values")
    if isinstance(values, dict):
        process.backlog_bytes = _number(values, "replay_backlog_bytes")
        process.version_store_bytes = _number(values, "version_store_bytes")
        if not process.reason and _number(values, "write_session") == 0:
            process.reason = "it takes no pages until a compute node has begun to write to it"


def _largest(streams: Sequence[dict[str, Any]], key: str) -> int | None:
    return max((number for stream in streams if (number := _number(stream, key)) is not None), default=None)


def _number(facts: dict[str, Any], key: str) -> int | None:
    """64-bit numbers may come as strings, which every JSON reader keeps whole."""
    try:
        return int(facts[key])
    except (KeyError, TypeError, ValueError):
        return None


def compute_process(name: str, server: Server, facts: dict[str, Any]) -> Process:
    pid, engine = facts["pid"], facts.get("strata", "not running")
    process = Process("compute", name, pid, f"127.0.0.1:{facts['port']}", engine == "active", "")
    if pid is None:
        process.reason = with_last_words(NOT_RUNNING, server.log)
    elif engine == "not loaded":
        built = facts["plugin"] is not None
        process.healthy = not built and not server.settings().cluster  # By itself it is as good as it can be.
        why = last_words(server.log) if built else "not built"
        process.reason = "STRATA is not loaded" + (f": {why}" if why else f"; see {paths.relative(server.log)}")
    elif not process.healthy:
        process.reason = str(engine)
    variables = {key.lower().removeprefix("strata_"): value for key, value in facts.get("variables", {}).items()}
    if trouble := variables.get("trouble"):  # The server's own words: cause and remedy of the worst.
        process.healthy, process.reason = False, trouble
    if process.healthy and (left := _number(variables, "unfinished_rollbacks")):
        process.reason = f"{left} transactions are being rolled back; what they have changed is locked until then"
    nodes, in_sync = _number(variables, "cluster_page_nodes"), _number(variables, "cluster_page_nodes_in_sync")
    if process.healthy and nodes and in_sync is not None and in_sync < nodes:
        process.healthy = False
        process.reason = f"its pages are on {in_sync} of {nodes} storage nodes; {paths.relative(server.log)} says why"
    if process.healthy and _number(variables, "lego_attached") == 0:
        process.healthy = False
        process.reason = (
            "it works without a memory node, which takes longer for what its own memory does not hold; it looks for one again and"
            f" again{REMEDY_MARK}start its memory node"
        )
    process.epoch, process.backlog_bytes = _number(variables, "cluster_epoch"), _number(variables, "cluster_replay_backlog_bytes")
    process.log_end, durable = _number(variables, "log_lsn"), _number(variables, "log_durable_lsn")
    if process.log_end is not None and durable is not None:
        process.lag_bytes = max(0, process.log_end - durable)
    process.local_tables = local_tables.of_server(server)
    if process.local_tables and not process.reason:
        several = server.settings().profile in OF_SEVERAL_WRITERS
        then = ", and the others do not" if several else ", gone when another one serves"
        process.reason = f"tables that only this server has{then}: {', '.join(process.local_tables)}"
    return process


def standby_process(standby: StandBy) -> Process:
    """One that does not serve."""
    line = compute_standby.line_of(standby)
    waits = line.state in (STARTING, WAITING, TAKING_OVER) and line.pid is not None
    reason = f"stands by ({line.state})" if waits else f"does not stand by: {line.state}"
    return Process(
        "compute", line.node, line.pid, f"127.0.0.1:{line.port}", waits, reason + (f": {line.why}" if line.why else "")
    )


def server_facts(server: Server) -> dict[str, Any]:
    pid = server.pid()
    settings = server.settings()
    facts: dict[str, Any] = {
        "running": pid is not None,
        "pid": pid,
        "data": str(server.data),
        "profile": settings.profile,
        "port": settings.port,
        "socket": str(server.socket),
        "mariadb": mariadb_packages.version() if mariadb_packages.is_ready() else None,
        "plugin": str(paths.plugin_path(settings.preset)) if paths.plugin_path(settings.preset).exists() else None,
    }
    if pid is None:
        return facts
    try:
        facts["strata"] = "active" if server.has_strata(**SQL_LIMITS) else "not loaded"
        shown = server.query(
            "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'strata%' OR Variable_name IN ('Uptime', 'Threads_connected')",
            **SQL_LIMITS,
        )
        facts["variables"] = {str(name): str(value) for name, value in shown}
    except pymysql.MySQLError as error:
        facts["strata"] = f"no answer: {error}"
    return facts


# --- what a process said last ---


def last_words(log: Path) -> str:
    """Why it did not start, or ended: cause and remedy of the last error since it was started last. "": it has said nothing."""
    if not log.exists():
        return ""
    with log.open("rb") as source:
        source.seek(max(0, log.stat().st_size - LAST_WORDS_BYTES))
        lines = source.read().decode(errors="replace").splitlines()
    for line in reversed(lines):
        if BEGINS.search(line):
            return ""
        found = SERVER_ERROR.search(line) or NODE_ERROR.search(line)
        if found and REMEDY_MARK in found[1]:
            return _unquoted(found[1])
    return ""


def _unquoted(text: str) -> str:
    """A field of a storage node's log, as quoted() in daemon/log.h writes it."""
    inner = re.match(r'"((?:[^"\\]|\\.)*)"', text)
    return re.sub(r"\\(.)", r"\1", inner[1]) if inner else text


def with_last_words(state: str, log: Path) -> str:
    said = last_words(log)
    return f"{state}: {said}" if said else state


# --- for people ----------------------------------------------------------------------------------------------------


def _print(facts: dict[str, Any], processes: Sequence[Process]) -> None:
    for name in ("data", "profile", "state", "socket", "mariadb", "plugin"):
        console.print(f"{name:<12} {facts[name]}", markup=False)
    if found := facts.get("placement"):
        where = f"generation {found['generation']}: {', '.join(found['nodes'])}; write quorum {found['write_quorum']}"
        console.print(f"{'placement':<12} {where}", markup=False)
    print_table(table(processes))
    if any(process.pools is not None for process in processes):
        print_table(memory_table(processes))
    for complaint in complaints(processes):
        console.print(complaint, markup=False)
    if "variables" in facts:
        console.print("variables:")
        for name, value in facts["variables"].items():
            console.print(f"  {name:<40} {value}", markup=False)


def print_table(shown: Table) -> None:
    wide = console if console.is_terminal else Console(width=TABLE_WIDTH, highlight=False)
    wide.print(shown, soft_wrap=False)


def table(processes: Sequence[Process]) -> Table:
    shown = Table()
    left = ("role", "name", "address", "health")
    headings = ("role", "name", "pid", "address", "epoch", "log end", "quorum lag", "replay backlog", "versions", "health")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in left else "right", overflow="fold")
    for process in processes:
        numbers = (process.lag_bytes, process.backlog_bytes, process.version_store_bytes)
        shown.add_row(
            process.role,
            process.name,
            _shown(process.pid),
            process.address,
            _shown(process.epoch),
            _shown(process.log_end),
            *(size(number) for number in numbers),
            _health(process),
        )
    return shown


def memory_table(processes: Sequence[Process]) -> Table:
    shown = Table()
    for heading in ("memory node", "memory", "slots", "used", "dirty", "hit ratio", "tier 1", "tier 2"):
        shown.add_column(heading, justify="left" if heading == "memory node" else "right")
    for process in processes:
        if (pools := process.pools) is not None:
            numbers = (pools.slots, pools.used, pools.dirty)
            ratio = "-" if pools.hit_ratio is None else f"{pools.hit_ratio:.1%}"
            tiers = (_shown(pools.tier1_lsn), _shown(pools.tier2_lsn))
            shown.add_row(process.name, pools.memory, *(_shown(number) for number in numbers), ratio, *tiers)
    return shown


def _shown(number: int | None) -> str:
    return "-" if number is None else str(number)


def size(count: int | None) -> str:
    """As a person reads it: 17 B, 1.5 MiB."""
    if count is None:
        return "-"
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def _health(process: Process) -> Text:
    """One word; what is behind it is said below the table, where there is room."""
    if process.healthy:
        return Text("ok", style="green")
    return Text("stopped" if process.pid is None else "not well", style="red" if process.needed else "dim")


def complaints(processes: Sequence[Process]) -> list[str]:
    """What is wrong and what to do, of those that run or should; or what is good to know of one that is well."""
    return [
        f"{process.name}: {'' if process.healthy else 'not well: '}{process.reason}"
        for process in processes
        if process.reason and (process.pid is not None or (process.needed and REMEDY_MARK in process.reason))
    ]
