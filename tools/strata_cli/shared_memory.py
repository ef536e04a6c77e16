"""Memory nodes of a cluster whose servers write the same tables: one has the authority and serves them, the others wait for it.

What one keeps is never the only copy: servers go on at the next one, which hears what they have and redoes from their logs what
storage lacks. So one that waits comes and goes as one likes, and one that serves once another one can follow it.
`./strata node add --memory | replace | remove` are made here; memory_changes.py is for those of one server.
"""

import time
from collections.abc import Callable

from .cluster import Cluster
from .memory_changes import MemoryChange
from .several_health import MEMORY_SERVES, MEMORY_WAITS, phase_of
from .shell import StrataError
from .waiting import wait_until

# A new one that follows one that nobody can reach waits for that one's lease; then logs are redone.
FOLLOW_TIMEOUT_S = 300.0
LOOK_S = 0.2


def add(cluster: Cluster, name: str | None, memory: str, say: Callable[[str], None]) -> MemoryChange:
    """One more. It waits when this returns, or serves, if nobody else does."""
    began = time.monotonic()
    _check(cluster)
    chosen = _started(cluster, name, memory)
    doing = "serves" if phase_of(cluster.memory[chosen]) == MEMORY_SERVES else "waits"
    say(f"  {chosen:<10} is there ({memory}), and {doing}")
    return _changed(cluster, chosen, None, began)


def replace(cluster: Cluster, old: str, new: str | None, memory: str | None, say: Callable[[str], None]) -> MemoryChange:
    """Another one in its place, whether it serves, waits or is lost."""
    began = time.monotonic()
    _check(cluster)
    if new is not None and new in cluster.memory and new != old:  # One that was added, or an earlier attempt came so far.
        if cluster.memory[new].pid() is None:
            cluster.start_node(new)
        _await_of_use(cluster, new)
        chosen = new
    else:
        chosen = _started(cluster, new, memory or cluster.settings().memory[old].memory)
    _take_out(cluster, old)
    say(f"  {chosen:<10} is there in place of {old}")
    return _changed(cluster, chosen, old, began)


def remove(cluster: Cluster, name: str, say: Callable[[str], None]) -> MemoryChange:
    began = time.monotonic()
    _check(cluster)
    if len(cluster.memory) == 1:
        raise StrataError(
            f"{name} is the only memory node, and servers need one. Nothing was changed; to do: ./strata node replace {name}"
        )
    _take_out(cluster, name)
    say(f"  {name:<10} is out, and its memory free; there is: {', '.join(cluster.memory)}")
    return _changed(cluster, name, None, began)


def _check(cluster: Cluster) -> None:
    if cluster.etcd.pid() is None:
        raise StrataError("etcd does not run, and memory nodes join there: ./strata up")


def _changed(cluster: Cluster, node: str, replaced: str | None, began: float) -> MemoryChange:
    return MemoryChange(node, replaced, list(cluster.memory), time.monotonic() - began)


def _started(cluster: Cluster, name: str | None, memory: str) -> str:
    chosen = cluster.prepare_memory_node(name, memory)
    try:
        cluster.start_node(chosen)
        _await_of_use(cluster, chosen)
    except BaseException:  # One that was of no use is no part of the cluster.
        if cluster.memory[chosen].pid() is not None:
            cluster.stop_part(chosen)
        cluster.forget_memory_node(chosen)
        raise
    return chosen


def _await_of_use(cluster: Cluster, name: str) -> None:
    node = cluster.memory[name]
    if not wait_until(lambda: phase_of(node) in (MEMORY_SERVES, MEMORY_WAITS), FOLLOW_TIMEOUT_S, every_s=LOOK_S):
        raise StrataError(f"{name} neither serves nor waits after {FOLLOW_TIMEOUT_S:g} s: {node.illness()}; see {node.log}")


def _take_out(cluster: Cluster, name: str) -> None:
    """The others serve without it when this returns."""
    others = [node for other, node in cluster.memory.items() if other != name]
    if not any(phase_of(node) in (MEMORY_SERVES, MEMORY_WAITS) and node.illness() is None for node in others):
        names = ", ".join(node.name for node in others)
        raise StrataError(
            f"no other memory node serves or waits ({names}), so {name} stays, and nothing was changed; to do:"
            f" ./strata node start {others[0].name}, or ./strata node add --memory"
        )
    if cluster.memory[name].pid() is not None:
        cluster.stop_part(name)
    follows = wait_until(lambda: any(phase_of(node) == MEMORY_SERVES for node in others), FOLLOW_TIMEOUT_S, every_s=LOOK_S)
    if not follows:
        raise StrataError(
            f"{name} has stopped, and no other memory node serves after {FOLLOW_TIMEOUT_S:g} s; to do: ./strata status says why,"
            f" or ./strata node start {name}"
        )
    cluster.forget_memory_node(name)
