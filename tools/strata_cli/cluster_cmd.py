"""`./strata up | down` of a cluster, `./strata node ...`, `./strata compute ...`."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from . import (
    compute_move,
    compute_servers,
    compute_standby,
    cpu_share,
    last_folder,
    local_tables,
    memory_changes,
    memory_node,
    node_changes,
    paths,
    setup_cmd,
    shared_memory,
)
from .cluster import Cluster, Wishes
from .memory_changes import MemoryChange
from .node_changes import Change
from .server import Server
from .shell import StrataError, console
from .status import print_table


def _say(line: str) -> None:
    console.print(line, markup=False)


def open_cluster(data: Path) -> Cluster:
    return Cluster(data, say=_say)


def up(profile: str, data: Path, port: int | None, wishes: Wishes) -> Cluster:
    setup_cmd.ensure_setup()
    cluster = open_cluster(data)
    cluster.refuse_foreign()
    cluster.check_built(profile)
    with cluster.locked():
        console.print(
            f"{'starting' if cluster.exists() else 'creating'} a cluster in {paths.relative(cluster.data)}, profile {profile}"
        )
        with _left_running(cluster), console.status("starting ..."):
            cluster.start(profile, compute_port=port, wishes=wishes)
    return cluster


def down(data: Path, wipe: bool, lose_local_tables: bool = False) -> None:
    cluster = open_cluster(data)
    if wipe:
        every = cluster.has_several()  # They are in the cluster's folder, and go with it.
        computes = [server for server in cluster.computes.values() if every or server.data == cluster.data]
        local_tables.refuse_loss(computes, "not stopped and not removed", lose_local_tables)
    with cluster.locked(), console.status("stopping ..."):
        if cluster.has_several() and not wipe:
            with _left_running(cluster):
                compute_servers.end_all(cluster, _say)
        if not cluster.running():
            console.print("not running")
        elif not cluster.stop():
            console.print("[yellow]not every process stopped in time[/] (what was killed recovers at the next start)")
        if not wipe and (left := {node.settings.pools.parent: 0 for node in cluster.memory.values() if node.pool_bytes()}):
            took = sum(node.pool_bytes() for node in cluster.memory.values()) >> 20
            where = ", ".join(map(str, left))
            console.print(f"left: {took} MiB of pools in {where}, warm at the next start; --wipe frees that memory", markup=False)
        if wipe:
            others = [server.data for server in cluster.computes.values() if not server.data.is_relative_to(cluster.data)]
            cluster.wipe()
            console.print(f"removed {paths.relative(cluster.data)}")
            for folder in others:
                if folder.exists():
                    console.print(f"left: {paths.relative(folder)}, a compute node's folder, of no use without the cluster")


def folder_of_cluster(data: Path) -> Path:
    """The folder of a compute node by itself means that of its cluster."""
    return data if Cluster(data).exists() else Path(Server(data).settings().cluster or data)


def _existing(data: Path) -> Cluster:
    cluster = open_cluster(folder_of_cluster(data))
    cluster.settings()  # Says so when there is none.
    return cluster


def node_start(data: Path, name: str) -> None:
    cluster = _existing(data)
    with cluster.locked():
        with console.status(f"starting {name} ..."):
            cluster.start_part(name)
        cluster.disown()


def node_stop(data: Path, name: str) -> None:
    cluster = _existing(data)
    with cluster.locked():
        if cluster.part(name).pid() is None:
            console.print(f"  {name} is not running", markup=False)
        cluster.stop_part(name)


def node_kill(data: Path, name: str) -> None:
    cluster = _existing(data)
    with cluster.locked():
        pid = cluster.kill_part(name)
    console.print(f"  {name} is not running" if pid is None else f"  {name:<10} killed with -9 (pid {pid})", markup=False)


def node_replace(
    data: Path, old: str, new: str | None, wipe: bool, timeout_s: float, as_json: bool, memory: str | None = None
) -> None:
    cluster = _quiet(data) if as_json else _existing(data)
    if old in cluster.memory:
        with cluster.locked(), _left_running(cluster):
            _tell(_of_memory(cluster).replace(cluster, old, new, memory, _unless(as_json)), as_json)
        return
    if memory is not None:
        raise StrataError(f"{old} is no memory node")
    with cluster.locked():
        change = node_changes.replace(cluster, old, new, _unless(as_json))
        cluster.disown()
    _finish(cluster, change, timeout_s, as_json)
    _leave(cluster, old, wipe and change.caught_up, as_json)


def _of_memory(cluster: Cluster) -> ModuleType:
    """What changes its memory nodes."""
    return shared_memory if cluster.has_several() else memory_changes


def node_add(data: Path, new: str | None, write_quorum: int, timeout_s: float, as_json: bool, memory: str | None = None) -> None:
    cluster = _quiet(data) if as_json else _existing(data)
    if memory is not None:
        with cluster.locked(), _left_running(cluster):
            _tell(_of_memory(cluster).add(cluster, new, memory_node.memory_of(memory), _unless(as_json)), as_json)
        return
    with cluster.locked():
        change = node_changes.add(cluster, new, write_quorum, _unless(as_json))
        cluster.disown()
    _finish(cluster, change, timeout_s, as_json)


def node_remove(data: Path, name: str, wipe: bool, as_json: bool) -> None:
    cluster = _quiet(data) if as_json else _existing(data)
    if name in cluster.computes:
        compute_servers.refuse_several(cluster, f"{name} is a server", f"to take it out: ./strata compute remove {name}")
    if name in cluster.memory:
        with cluster.locked():
            _tell(_of_memory(cluster).remove(cluster, name, _unless(as_json)), as_json)
        return
    with cluster.locked():
        removal = node_changes.remove(cluster, name, _unless(as_json))
        cluster.disown()
    _leave(cluster, name, wipe, as_json)
    if as_json:
        print(json.dumps(asdict(removal), indent=2))


@contextlib.contextmanager
def _left_running(cluster: Cluster) -> Iterator[None]:
    """What was started goes on when this program ends, also when something failed."""
    try:
        yield
    finally:
        cluster.disown()


def _tell(change: MemoryChange, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(change), indent=2))


def _leave(cluster: Cluster, name: str, wipe: bool, as_json: bool) -> None:
    """The folder of a storage node that has lost its place."""
    left = cluster.data / "storage" / name
    if wipe:
        shutil.rmtree(left, ignore_errors=True)
    elif left.exists() and not as_json:
        console.print(f"left: {paths.relative(left)}, of no use to the cluster any more", markup=False)


def _quiet(data: Path) -> Cluster:
    cluster = Cluster(folder_of_cluster(data))
    cluster.settings()  # Says so when there is none.
    return cluster


def _unless(silent: bool) -> Callable[[str], None]:
    return (lambda _: None) if silent else _say


def _finish(cluster: Cluster, change: Change, timeout_s: float, as_json: bool) -> None:
    """Waits without the lock: other commands may be needed meanwhile."""
    node_changes.wait_whole(cluster, change, timeout_s, _unless(as_json))
    if as_json:
        print(json.dumps(asdict(change), indent=2))
    elif change.caught_up:
        console.print(f"  {change.node:<10} is whole after {change.seconds:.1f} s", markup=False)
    else:
        console.print(f"  {change.node:<10} {change.note}", markup=False)


def compute_up(cluster_data: Path, folder: Path | None, port: int | None, lose_local_tables: bool = False) -> Server:
    setup_cmd.ensure_setup()
    cluster = _existing(cluster_data)
    compute_servers.refuse_several(
        cluster, "compute up", "one more: ./strata compute add; one that is stopped: ./strata node start"
    )
    target = (folder or cluster.data).resolve()
    others = [server for server in cluster.computes.values() if server.data != target]
    local_tables.refuse_loss(others, "not moved", lose_local_tables)
    with cluster.locked():
        with (
            cluster.standbys_held(),
            console.status("starting a compute node; one that was killed keeps its place for some seconds ..."),
        ):
            server = cluster.add_compute(folder or cluster.data, port)
        cluster.disown()
    last_folder.use(server.data)
    return server


def compute_move_to(
    cluster_data: Path, folder: Path | None, port: int | None, wishes: Wishes, lose_local_tables: bool, as_json: bool
) -> None:
    setup_cmd.ensure_setup()
    cluster = _quiet(cluster_data) if as_json else _existing(cluster_data)
    compute_servers.refuse_several(cluster, "compute move", "to do: ./strata compute add, then compute remove")
    serving = [server for server in cluster.computes.values() if server.pid() is not None]
    local_tables.refuse_loss(serving, "not moved", lose_local_tables)
    with cluster.locked(), _left_running(cluster), cluster.standbys_held():
        done = compute_move.move(cluster, folder, port, wishes, _unless(as_json))
    if as_json:
        print(json.dumps(asdict(done), indent=2))
        return
    share = f"{done.cores:g} cores" if done.cores else "all cores"
    pool = f", a buffer pool of {done.buffer_pool}" if done.buffer_pool else ""
    console.print(f"  {done.new:<10} serves on port {done.port} with {share}{pool}, in {done.folder}", markup=False)
    console.print(f"  gap: {done.gap_s:.2f} s between the last answer of {done.old} and the first of {done.new}", markup=False)


def standby_add(
    cluster_data: Path, folder: Path | None, port: int | None, lose_local_tables: bool, lease_s: float | None, as_json: bool
) -> None:
    setup_cmd.ensure_setup()
    cluster = _quiet(cluster_data) if as_json else _existing(cluster_data)
    compute_servers.refuse_several(cluster, "compute standby add", "one more that serves: ./strata compute add")
    cluster.lease_s = lease_s or cluster.lease_s
    serving = [server for server in cluster.computes.values() if server.pid() is not None]
    local_tables.refuse_loss(serving, "no stand-by was made", lose_local_tables)
    with cluster.locked(), _left_running(cluster):
        added = compute_standby.add(cluster, folder, port, _unless(as_json))
    if as_json:
        print(json.dumps(asdict(added), indent=2))


def standby_remove(cluster_data: Path, name: str, wipe: bool) -> None:
    cluster = _existing(cluster_data)
    with cluster.locked(), _left_running(cluster):
        compute_standby.remove(cluster, name, wipe, _say)


def standby_status(cluster_data: Path, as_json: bool) -> None:
    lines = compute_standby.status(_quiet(cluster_data))
    if as_json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
    elif not lines:
        console.print("no compute node stands by; ./strata compute standby add makes one")
    for line in [] if as_json else lines:
        took = "" if line.took_over_s is None else f", {line.took_over_s:.2f} s after it saw its turn"
        console.print(
            f"  {line.node:<10} {line.state}{took}, port {line.port}, pid {line.pid or '-'}: {line.folder}", markup=False
        )
        if line.why:
            console.print(f"    {line.why}", markup=False)


def standby_run(cluster_data: Path, folder: Path, lease_s: float | None) -> None:
    cluster = _quiet(cluster_data)
    cluster.lease_s = lease_s or cluster.lease_s
    compute_standby.run(cluster, folder, lambda line: print(line, flush=True))


def compute_cores(cluster_data: Path, cores: float) -> None:
    cluster = _existing(cluster_data)
    cpu_share.check(cores)
    with cluster.locked():
        one = cluster.serving_compute()
        serving = cluster.serving_computes() if cluster.has_several() else [one] if one else []
        cluster.set_compute(None, cores)
        if not serving:
            console.print("no compute node runs; the next one gets them")
        for name in serving:
            if (pid := cluster.computes[name].pid()) is not None:
                how = cluster.computes[name].use_cores(pid, cores)
                console.print(f"  {name:<10} may use {f'{cores:g} cores' if cores else 'all cores'}: {how}", markup=False)


def server_add(cluster_data: Path, name: str | None, port: int | None, read_only: bool, as_json: bool) -> None:
    setup_cmd.ensure_setup()
    cluster = _quiet(cluster_data) if as_json else _existing(cluster_data)
    with cluster.locked(), _left_running(cluster):
        added = compute_servers.add(cluster, name, port, read_only)
    if as_json:
        print(json.dumps(asdict(added), indent=2))
    else:
        console.print(f"  ./strata sql --on {added.node}", markup=False)


def server_remove(cluster_data: Path, name: str, wipe: bool, lose_local_tables: bool, as_json: bool) -> None:
    cluster = _quiet(cluster_data) if as_json else _existing(cluster_data)
    if wipe and name in cluster.computes:
        local_tables.refuse_loss([cluster.computes[name]], "not stopped and not removed", lose_local_tables)
    with cluster.locked(), _left_running(cluster):
        removed = compute_servers.remove(cluster, name, wipe, _unless(as_json))
    if as_json:
        print(json.dumps(asdict(removed), indent=2))


def server_kill(cluster_data: Path, name: str, stay_down: bool, as_json: bool) -> None:
    cluster = _quiet(cluster_data) if as_json else _existing(cluster_data)
    with cluster.locked(), _left_running(cluster):
        killed = compute_servers.kill(cluster, name, stay_down, _unless(as_json))
    if as_json:
        print(json.dumps(asdict(killed), indent=2))


def server_status(cluster_data: Path, as_json: bool) -> int:
    lines = compute_servers.lines(_quiet(cluster_data))
    if as_json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
    else:
        print_table(compute_servers.table(lines))
        for line in lines:
            if line.why:
                console.print(f"{line.node}: {line.why}", markup=False)
    return compute_servers.exit_code(lines)


def compute_down(folder: Path, wipe: bool, lose_local_tables: bool = False) -> None:
    server = Server(folder)
    of = server.settings().cluster
    if not of:
        raise StrataError(f"there is no compute node of a cluster in {paths.relative(server.data)}")
    of_several = Cluster(Path(of))
    if wipe and of_several.has_several():
        name = next((name for name, one in of_several.computes.items() if one.data == server.data), server.data.name)
        raise StrataError(f"{name} is one of several servers; to take it out: ./strata compute remove {name} --wipe")
    if wipe and server.data == Path(of):
        raise StrataError(f"{paths.relative(server.data)} holds the whole cluster; to delete it: ./strata down --wipe")
    if wipe:
        local_tables.refuse_loss([server], "not stopped and not removed", lose_local_tables)
    of_cluster = Cluster(Path(of))
    names = [name for name, standby in of_cluster.standbys.items() if standby.server.data == server.data]
    if names and wipe:
        raise StrataError(f"{names[0]} stands by; first: ./strata compute standby remove {names[0]}")
    if of_cluster.stop_standbys(names) or server.pid() is not None:
        clean = server.pid() is None or server.stop()
        console.print("stopped" if clean else "[yellow]did not stop in time; killed[/]")
    if wipe:
        server.wipe()
        cluster = Cluster(Path(of))
        if cluster.exists():
            cluster.forget_compute(server.data)
        console.print(f"removed {paths.relative(server.data)}")
