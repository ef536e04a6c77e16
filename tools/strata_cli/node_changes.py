"""`./strata node replace | add | remove`: which storage nodes a cluster has, changed while it runs.

A new node itself changes the placement in the registry when it starts (strata-storenode --replaces, --join); here it is
checked that nothing is at risk, the process is started, and its way to being whole is watched. A node is taken out by the log's
writer, which is asked through the registry (removal_request.py). Interrupted anywhere, the same command goes on, and `up` starts
what the registry names.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import several_logs
from .cluster import CLUSTER_NAME, Cluster
from .placement import Placement
from .removal_request import RemovalRequest
from .shell import StrataError
from .storage_node import StorageNode
from .waiting import wait_until

LOOK_S = 0.5
# Of the log that the others have: who is further behind has to catch up before another one goes.
LAG_BYTES_MAX = 16 << 20
NODES_MIN = 3  # That stay when one is taken out.
REMOVAL_TIMEOUT_S = 30.0  # The writer gives up after ten seconds.
SETTLE_S = 5.0  # For news to reach the nodes and the writer's log to reach everybody.


@dataclass
class Change:
    """What became of it."""

    node: str
    replaced: str | None
    generation: int
    write_quorum: int
    caught_up: bool
    seconds: float
    note: str = ""


@dataclass
class Removal:
    """What became of it."""

    node: str
    generation: int
    nodes: tuple[str, ...]  # That stay.
    write_quorum: int
    seconds: float


@dataclass(frozen=True)
class LogState:
    """A storage node's log, all streams together."""

    votes: bool
    end: int
    durable: int
    scanned: int


def log_state(node: StorageNode) -> LogState | None:
    """None: it has no log yet, or says nothing."""
    streams = [stream for stream in node.status().get("streams", []) if isinstance(stream, dict)]
    if not streams:
        return None
    total = {name: sum(int(stream.get(name, 0)) for stream in streams) for name in ("log_end", "quorum_durable", "scanned")}
    votes = all(bool(stream.get("voting")) for stream in streams)
    return LogState(votes, total["log_end"], total["quorum_durable"], total["scanned"])


def replace(cluster: Cluster, old: str, new: str | None, say: Callable[[str], None]) -> Change:
    """Gives the place of `old`, alive or not, to a new node. Does not wait until that is whole."""
    began = time.monotonic()
    found = current(cluster)
    if new is not None and new in found.nodes and old not in found.nodes:  # An earlier attempt came so far.
        return _started(cluster, new, old, began, say)
    if old not in found.nodes:
        raise StrataError(f"{old} is no storage node of this cluster; there is: {', '.join(found.nodes)}")
    check_others(cluster, [name for name in found.nodes if name != old])
    name = cluster.prepare_node(new, old, 0)
    return _started(cluster, name, old, began, say)


def add(cluster: Cluster, new: str | None, write_quorum: int, say: Callable[[str], None]) -> Change:
    """One more node. Does not wait until it is whole."""
    began = time.monotonic()
    found = current(cluster)
    if new is None or new not in found.nodes:
        check_others(cluster, list(found.nodes))
        new = cluster.prepare_node(new, "", write_quorum)
    return _started(cluster, new, None, began, say)


def remove(cluster: Cluster, name: str, say: Callable[[str], None]) -> Removal:
    """Takes a node out, alive or lost: the others serve without one in its place. Stops its process."""
    began = time.monotonic()
    found = current(cluster)
    if name in cluster.settings().retired:  # An earlier attempt came so far.
        say(f"  {name:<10} is out already")
    else:
        _check_removal(cluster, found, name)
        found = _ask_writer(cluster, found, name)
        cluster.follow_placement(found)
        stays = f"{len(found.nodes)} stay, {found.write_quorum} of them for a commit"
        say(f"  {name:<10} is out (generation {found.generation}); {stays}")
    if cluster.part(name).pid() is not None:
        cluster.stop_part(name)
    return Removal(name, found.generation, found.nodes, found.write_quorum, time.monotonic() - began)


def _check_removal(cluster: Cluster, found: Placement, name: str) -> None:
    if name not in found.nodes:
        raise StrataError(f"{name} is no storage node of this cluster; there is: {', '.join(found.nodes)}")
    if cluster.has_several():
        raise StrataError(
            f"{name} is not taken out: under profile '{cluster.profile}' every server counts its own log, and all of them would"
            f" have to count without it before any goes by fewer nodes, which is not there yet. Nothing was changed;"
            f" ./strata node replace {name} gives its place to a new one"
        )
    if len(found.nodes) <= NODES_MIN:
        raise StrataError(
            f"there are {len(found.nodes)} storage nodes; {NODES_MIN} are needed so that one may be lost. Nothing was changed;"
            f" ./strata node replace {name} gives its place to a new one, or ./strata node add adds one first"
        )
    if cluster.serving_compute() is None:
        raise StrataError("no compute node runs, and only one that writes can take a storage node out; start one: ./strata up")
    check_others(cluster, [node for node in found.nodes if node != name])


def _ask_writer(cluster: Cluster, found: Placement, name: str) -> Placement:
    """The placement it makes."""
    request = RemovalRequest(cluster.settings().etcd_port, CLUSTER_NAME)
    now = found
    refusal: str | None = None

    def answered() -> bool:
        nonlocal now, refusal
        now = cluster.placement() or found
        refusal = request.refusal()
        return name not in now.nodes or refusal is not None

    with request.asked(name, found.generation, int(REMOVAL_TIMEOUT_S) + 5):
        wait_until(answered, REMOVAL_TIMEOUT_S, every_s=0.1)
    # Withdrawn by now: what the placement says stays so.
    now = cluster.placement() or found
    if name not in now.nodes:
        return now
    why = refusal or f"the compute node has not answered for {REMOVAL_TIMEOUT_S:g} s; see ./strata status and its log"
    raise StrataError(f"{name} was not taken out: {why}. Nothing was changed")


def current(cluster: Cluster) -> Placement:
    """Which nodes there are, as the registry says; cluster.json has followed it."""
    cluster.settings()  # Says so when there is none.
    if cluster.etcd.pid() is None:
        raise StrataError("etcd does not run; the registry is where storage nodes are changed: ./strata up")
    found = cluster.placement()
    if found is None:
        raise StrataError("the cluster has never run; start it first: ./strata up")
    cluster.follow_placement(found)
    return found


def check_others(cluster: Cluster, names: list[str]) -> None:
    """One change at a time, and only while all others are whole: what they lack may be only on the one that goes."""
    trouble: list[str] = []

    def all_well() -> bool:
        trouble[:] = _troubles(cluster, names)
        return not trouble

    if not wait_until(all_well, SETTLE_S, every_s=LOOK_S):
        raise StrataError(
            "; ".join(trouble) + ". Storage nodes are changed one at a time, while all others are well: nothing was changed"
        )


def _troubles(cluster: Cluster, names: list[str]) -> list[str]:
    ills = {name: ill for name in names if (ill := cluster.storage[name].illness()) is not None}
    found = [f"{name} is not well: {ill}" for name, ill in ills.items()]
    if cluster.has_several():
        logs = {name: several_logs.logs_of(cluster.storage[name]) for name in names if name not in ills}
        found += several_logs.troubles(logs, cluster.streams_begun(), LAG_BYTES_MAX)
    else:
        found += _troubles_of_log(cluster, names)
    in_sync = cluster.nodes_in_sync()
    for name in names:
        if in_sync is not None and name not in ills and not has_every_page(cluster.storage[name], in_sync):
            found.append(f"{name} does not have every page yet")
    return found


def _troubles_of_log(cluster: Cluster, names: list[str]) -> list[str]:
    found = []
    states = {name: state for name in names if (state := log_state(cluster.storage[name])) is not None}
    furthest = max((state.end for state in states.values()), default=0)
    for name, state in states.items():
        if not state.votes:
            found.append(f"{name} is still catching up and does not vote")
        elif furthest - state.end > LAG_BYTES_MAX:
            found.append(f"{name} is {(furthest - state.end) >> 20} MiB of log behind")
    return found


def _started(cluster: Cluster, name: str, old: str | None, began: float, say: Callable[[str], None]) -> Change:
    node = cluster.part(name)
    if node.pid() is None:
        try:
            cluster.start_node(name)
        except StrataError:
            found = cluster.placement()
            if found is not None and name not in found.nodes:
                cluster.forget_joining(name)
            raise
    found = current(cluster)
    if name not in found.nodes:
        raise StrataError(f"{name} runs and has no place in the registry's placement; see {node.log}")
    say(f"  {name:<10} has {f'the place of {old}' if old else 'a place'} (generation {found.generation})")
    if old is not None and cluster.part(old).pid() is not None:
        cluster.stop_part(old)
    return Change(name, old, found.generation, found.write_quorum, False, time.monotonic() - began)


def wait_whole(cluster: Cluster, change: Change, timeout_s: float, say: Callable[[str], None]) -> None:
    """Until the new node votes and its pages are as far as the others' log was when this began, or, where compute writes
    them, all there. Fills in `change`."""
    began = time.monotonic()
    node = cluster.storage[change.node]
    others = [other for name, other in cluster.storage.items() if name != change.node]
    looked = _progress_of_several(cluster, node, others) if cluster.has_several() else _progress_of_one(cluster, node, others)
    if isinstance(looked, str):
        change.note = looked
        return
    last = ""

    def whole() -> bool:
        nonlocal last
        line, done = looked()
        if line != last:
            say(f"  {change.node:<10} {line}")
        last = line
        return done

    change.caught_up = wait_until(whole, timeout_s, every_s=LOOK_S)
    change.seconds += time.monotonic() - began
    if not change.caught_up:
        change.note = f"after {timeout_s:g} s: {last}; it goes on, ./strata status shows how far it is"


Look = Callable[[], tuple[str, bool]]  # How far it is, in words, and whether that is all.


def _progress_of_one(cluster: Cluster, node: StorageNode, others: list[StorageNode]) -> Look | str:
    """Or why it goes no further at the moment."""
    target = max((state.durable for state in map(log_state, others) if state is not None), default=0)
    if target != 0 and cluster.serving_compute() is None:
        return "no compute node runs: it gets the log once one does"
    return lambda: ("nothing was written yet", True) if target == 0 else progress(node, target, cluster.nodes_in_sync())


def _progress_of_several(cluster: Cluster, node: StorageNode, others: list[StorageNode]) -> Look | str:
    """The same. What the logs are that it needs is what has been begun by now."""
    if all(memory.pid() is None for memory in cluster.memory.values()):
        return "the memory node does not run: it gets what it lacks once that does (./strata up)"
    wanted = several_logs.targets((several_logs.logs_of(other) for other in others), cluster.streams_begun())

    def look() -> tuple[str, bool]:
        check_runs(node)
        ill = node.illness()
        logs = several_logs.logs_of(node)
        lacks = several_logs.lacking(logs, wanted, cluster.replays())
        in_sync = cluster.nodes_in_sync()
        if ill is not None:
            return (f"{lacks}; {ill}" if lacks else ill), False
        if in_sync is not None and not has_every_page(node, in_sync):
            copied = f"{_value(node, 'copy_pages_seen') or 0} pages copied"
            return (f"{lacks}; {copied}" if lacks else f"votes in {len(wanted)} logs; {copied}"), False
        return lacks or f"votes in {len(wanted)} logs; whole", not lacks

    return look


def check_runs(node: StorageNode) -> None:
    if node.pid() is None:
        raise StrataError(f"{node.name} ended; the end of {node.log}:\n{node.log_tail()}")


def progress(node: StorageNode, target: int, in_sync: Mapping[str, int] | None = None) -> tuple[str, bool]:
    """How far it is, in words, and whether that is all. `in_sync`: who has every page, and in which store, where compute
    writes them."""
    ill = node.illness()
    check_runs(node)
    state = log_state(node)
    if state is None:
        return ill or "waits for the writer", False
    log = f"log {state.end >> 10} of {max(target, state.end) >> 10} KiB"
    if ill is not None:
        return f"{log}; {ill}", False
    if not state.votes:
        return f"{log}; does not vote yet", False
    if in_sync is not None:
        has_all = has_every_page(node, in_sync) and state.end >= target
        pages = "whole" if has_all else f"{_value(node, 'copy_pages_seen') or 0} pages copied"
        return f"{log}; votes; {pages}", has_all
    if state.scanned < target:
        return f"{log}; votes; {(target - state.scanned) >> 10} KiB of it not looked at yet", False
    return f"{log}; votes; whole", True


def has_every_page(node: StorageNode, in_sync: Mapping[str, int]) -> bool:
    """Also not the one of that name that has lost its disk since."""
    return node.name in in_sync and _value(node, "page_store") == in_sync[node.name]


def _value(node: StorageNode, name: str) -> int | None:
    values = node.status().get("values")
    return int(values[name]) if isinstance(values, dict) and name in values else None
