"""`./strata node add | replace | remove` of memory nodes: which there are, and which ones the compute node keeps its pages in.

What a memory node holds is never the only copy: what of it storage nodes do not have is in the log. So one may go at any time;
the compute node then starts with empty pools and redoes the log since the last checkpoint that storage has. It names its memory
nodes when it starts, so changing them restarts it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from .cluster import Cluster
from .profile_list import BY_NAME
from .shell import StrataError


@dataclass
class MemoryChange:
    """What became of it."""

    node: str
    replaced: str | None
    in_use: list[str]  # by the compute node
    seconds: float
    gap_s: float | None = None  # without a compute node


def add(cluster: Cluster, name: str | None, memory: str, say: Callable[[str], None]) -> MemoryChange:
    """One more, that nobody uses yet."""
    began = time.monotonic()
    _check(cluster)
    chosen = _started(cluster, name, memory)
    in_use = cluster.settings().memory_in_use
    say(f"  {chosen:<10} is there ({memory}); to use it: ./strata node replace {in_use[0]} --with {chosen}")
    return MemoryChange(chosen, None, in_use, time.monotonic() - began)


def replace(cluster: Cluster, old: str, new: str | None, memory: str | None, say: Callable[[str], None]) -> MemoryChange:
    """Another one in its place, alive or lost; the compute node is started again if it uses the old one."""
    began = time.monotonic()
    _check(cluster)
    size = memory or cluster.settings().memory[old].memory
    if new is not None and new in cluster.memory:  # One that was added, or an earlier attempt came so far.
        chosen = new
        if cluster.memory[chosen].pid() is None:
            cluster.start_node(chosen)
    else:
        chosen = _started(cluster, new, size)
    gap_s = None
    if old in cluster.settings().memory_in_use:
        if chosen in cluster.settings().memory_in_use:
            raise StrataError(f"compute uses {chosen} already; to do: ./strata node replace {old} without --with, for a new one")
        gap_s = _use(cluster, chosen, old)
        say(f"  {chosen:<10} is used in place of {old}" + ("" if gap_s is None else f"; {gap_s:.1f} s without a compute node"))
    _forget(cluster, old)
    return MemoryChange(chosen, old, cluster.settings().memory_in_use, time.monotonic() - began, gap_s)


def remove(cluster: Cluster, name: str, say: Callable[[str], None]) -> MemoryChange:
    """One that the compute node does not use."""
    began = time.monotonic()
    used = cluster.settings().memory_in_use
    if name in used:
        others = [other for other in cluster.memory if other not in used]
        way = f"./strata node replace {name}" + (f" --with {others[0]}" if others else "")
        raise StrataError(f"{name} is a memory node that compute uses. Nothing was changed; to take it out all the same: {way}")
    _forget(cluster, name)
    say(f"  {name:<10} is out, and its memory free")
    return MemoryChange(name, None, cluster.settings().memory_in_use, time.monotonic() - began)


def _check(cluster: Cluster) -> None:
    profile = cluster.settings().profile
    if not BY_NAME[profile].has_memory_nodes:
        raise StrataError(f"profile '{profile}' has no memory nodes")
    if cluster.etcd.pid() is None:
        raise StrataError("etcd does not run, and memory nodes join there: ./strata up")


def _started(cluster: Cluster, name: str | None, memory: str) -> str:
    chosen = cluster.prepare_memory_node(name, memory)
    try:
        cluster.start_node(chosen)
    except BaseException:  # One that has never served is no part of the cluster.
        cluster.forget_memory_node(chosen)
        raise
    return chosen


def _use(cluster: Cluster, name: str, old: str) -> float | None:
    """Returns for how long there was no compute node; None: there was none before."""
    serving = cluster.serving_compute()
    if serving is None:
        cluster.use_memory_node(name, old)
        return None
    with cluster.standbys_held():
        began = time.monotonic()
        cluster.stop_part(serving)
        cluster.use_memory_node(name, old)
        cluster.start_compute(serving)
    return time.monotonic() - began


def _forget(cluster: Cluster, name: str) -> None:
    if cluster.memory[name].pid() is not None:
        cluster.stop_part(name)
    cluster.forget_memory_node(name)
