"""The command line of `./strata node`, `./strata compute` and `./strata compute standby`."""

from pathlib import Path
from typing import Annotated

import typer

from . import cluster_cmd, last_folder, server_cmd
from .app_options import PORT_HELP, AsJson, BufferPool, Cores, Data, LoseLocalTables, Port
from .cluster import Wishes

node = typer.Typer(
    no_args_is_help=True, help="Start, stop or kill one process of a cluster; replace, add and remove storage and memory nodes."
)
NodeName = Annotated[str, typer.Argument(help="etcd, s1, s2, s3, memory-1 or compute-1; ./strata status lists them.")]


@node.command("start")
def node_start(name: NodeName, data: Data = None) -> None:
    """Start one process of a cluster. Example: ./strata node start s2"""
    cluster_cmd.node_start(last_folder.named_or_last(data), name)


@node.command("stop")
def node_stop(name: NodeName, data: Data = None) -> None:
    """Stop one process of a cluster cleanly. Example: ./strata node stop s2"""
    cluster_cmd.node_stop(last_folder.named_or_last(data), name)


@node.command("kill")
def node_kill(name: NodeName, data: Data = None) -> None:
    """kill -9 of one process of a cluster. Example: ./strata node kill compute-1 && ./strata node start compute-1"""
    cluster_cmd.node_kill(last_folder.named_or_last(data), name)


WaitSeconds = Annotated[float, typer.Option("--timeout", help="How long to wait until the new node is whole; 0: not at all.")]


@node.command("replace")
def node_replace(
    name: Annotated[str, typer.Argument(help="The storage or memory node that goes, alive or lost.")],
    new: Annotated[
        str | None, typer.Option("--with", help="Name of the new one.", show_default="the next s<n> or memory-<n>")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Of the new memory node, as in 512M.", show_default="as the old one's")
    ] = None,
    data: Data = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete the old one's folder once the new one is whole.")] = False,
    timeout: WaitSeconds = 600,
    as_json: AsJson = False,
) -> None:
    """Give a storage node's place to a new one, while the cluster runs; nothing that was acknowledged is at risk.

    The new node gets the log from the others and counts for nothing until it has all of it. Refused (exit code 1, nothing
    changed) while another storage node is away, ill or catching up. Interrupted, the same command with --with goes on.

    In place of a memory node comes an empty one, and the compute node is started again with it; its pages are in the log and on
    storage nodes. The new one may be larger, or one that was added before. Where several servers write (fusion) they go on: the
    new one, or another one that waits, takes over.

    Examples: ./strata node replace s1; ./strata node replace s2 --with s5 --wipe --json;
    ./strata node replace memory-1 --memory 1G
    """
    cluster_cmd.node_replace(last_folder.named_or_last(data), name, new, wipe, timeout, as_json, memory)


@node.command("add")
def node_add(
    new: Annotated[
        str | None, typer.Option("--name", help="Name of the new one.", show_default="the next s<n> or memory-<n>")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Make a memory node, with so much, as in 512M.", show_default="a storage node")
    ] = None,
    write_quorum: Annotated[
        int, typer.Option("--write-quorum", help="So many must have a commit; as now or one more.", show_default="a majority")
    ] = 0,
    data: Data = None,
    timeout: WaitSeconds = 600,
    as_json: AsJson = False,
) -> None:
    """Add a storage node to a running cluster: commits go to one more, and one more may be lost when that makes a difference.

    From the first moment the new write quorum is needed, of nodes that have all of the log: keep all of them running meanwhile.
    With --memory it is a memory node, which nobody uses until ./strata node replace puts it in another one's place; where several
    servers write (fusion) it waits, and takes over by itself when the one that serves is gone.

    Examples: ./strata node add; ./strata node add --name s4 --write-quorum 3 --json; ./strata node add --memory 512M
    """
    cluster_cmd.node_add(last_folder.named_or_last(data), new, write_quorum, timeout, as_json, memory)


@node.command("remove")
def node_remove(
    name: Annotated[str, typer.Argument(help="The storage or memory node that goes, alive or lost.")],
    data: Data = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete its folder; a memory node's goes always.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take a storage node out of a running cluster without another one in its place; at least three stay.

    The compute node does it, once everything acknowledged is durable without that node. Refused (exit code 1, nothing changed)
    while another storage node is away, ill or catching up, or no compute node runs. Its name is never given to another one.
    Of memory nodes one that the compute node does not use can be removed, at any time; where several servers write (fusion) any
    but the last one: if it serves, another one takes over first.

    Examples: ./strata node remove s4; ./strata node remove s2 --wipe --json; ./strata node remove memory-2
    """
    cluster_cmd.node_remove(last_folder.named_or_last(data), name, wipe, as_json)


compute = typer.Typer(
    no_args_is_help=True, help="Compute nodes by themselves: move a cluster's database to another one; several that all write."
)


@compute.command("up")
def compute_up(
    cluster: Annotated[
        Path | None, typer.Option(help="Data folder of the cluster.", show_default="the one used last, else data")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the compute node, new or used before.", show_default="the cluster's own")
    ] = None,
    port: Port = None,
    lose: LoseLocalTables = False,
) -> None:
    """Start a compute node on a running cluster; the one before must be stopped or killed first.

    Example: ./strata node kill compute-1; ./strata compute up --data build/second; ./strata sql
    """
    server_cmd.print_how_to_connect(cluster_cmd.compute_up(last_folder.named_or_last(cluster), data, port, lose))


@compute.command("move")
def compute_move(
    cluster: Annotated[
        Path | None, typer.Option(help="Data folder of the cluster.", show_default="the one used last, else data")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the next compute node.", show_default="one in the cluster's folder")
    ] = None,
    cores: Cores = None,
    buffer_pool: BufferPool = None,
    port: Annotated[int | None, typer.Option(help=PORT_HELP, min=1, max=65535, show_default="as before")] = None,
    lose: LoseLocalTables = False,
    as_json: AsJson = False,
) -> None:
    """Move the database to another compute node, with other cores and another buffer pool, and say how long nobody answered.

    The next one is started first and waits; the running one then writes back what it has changed (to its memory node, if it has
    one) and stops. Port and socket stay: clients that connect again go on. When the next one cannot take over, the old one is
    started again.

    Examples: ./strata compute move --cores 2 --buffer-pool-size 256M; ./strata compute move --data build/second --json
    """
    wishes = Wishes(buffer_pool=buffer_pool, cores=cores)
    cluster_cmd.compute_move_to(last_folder.named_or_last(cluster), data, port, wishes, lose, as_json)


@compute.command("cores")
def compute_cores(
    cores: Annotated[float, typer.Argument(help="That it may use, parts of one included; 0: all.")],
    cluster: Annotated[
        Path | None, typer.Option(help="Data folder of the cluster.", show_default="the one used last, else data")
    ] = None,
) -> None:
    """Change how many cores the compute node may use, while it runs, and for those that follow.

    Example: ./strata compute cores 1.5
    """
    cluster_cmd.compute_cores(last_folder.named_or_last(cluster), cores)


@compute.command("down")
def compute_down(
    data: Data = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Also delete its folder (not the cluster's).")] = False,
    lose: LoseLocalTables = False,
) -> None:
    """Stop only the compute node of a folder. Example: ./strata compute down --data build/second --wipe"""
    cluster_cmd.compute_down(last_folder.named_or_last(data), wipe, lose)


OfServers = Annotated[
    Path | None,
    typer.Option("--cluster", "--data", help="Data folder of the cluster.", show_default="the one used last, else data"),
]
ServerName = Annotated[str, typer.Argument(help="As in compute-2; ./strata compute status lists them.")]


@compute.command("add")
def server_add(
    cluster: OfServers = None,
    name: Annotated[str | None, typer.Option(help="Of the new server.", show_default="the next compute-<n>")] = None,
    port: Port = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="It only reads: MariaDB's read_only, whenever it is started.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a server that writes the same tables as the others (profile fusion), while they work; returns when it serves.

    Its folder is in the cluster's; one that an earlier server of that name has left there is used again.

    Examples: ./strata compute add; ./strata compute add --name reports --read-only --port 23400 --json
    """
    cluster_cmd.server_add(last_folder.named_or_last(cluster), name, port, read_only, as_json)


@compute.command("remove")
def server_remove(
    name: ServerName,
    cluster: OfServers = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Also delete its folder; no other server gets its place.")] = False,
    lose: LoseLocalTables = False,
    as_json: AsJson = False,
) -> None:
    """Take one of several servers out (profile fusion): it ends in order, and gives all that it had to the others.

    One that does not run is started first, since after a kill others wait for what it had. The last one is not removed.

    Examples: ./strata compute remove compute-3; ./strata compute remove compute-3 --wipe --json
    """
    cluster_cmd.server_remove(last_folder.named_or_last(cluster), name, wipe, lose, as_json)


@compute.command("kill")
def server_kill(
    name: ServerName,
    cluster: OfServers = None,
    stay_down: Annotated[bool, typer.Option("--stay-down", help="Do not start it again.")] = False,
    as_json: AsJson = False,
) -> None:
    """kill -9 of one of several servers (profile fusion); it is started again, and the time until it serves is said.

    Examples: ./strata compute kill compute-2; ./strata compute kill compute-2 --stay-down
    """
    cluster_cmd.server_kill(last_folder.named_or_last(cluster), name, stay_down, as_json)


@compute.command("status")
def server_status(
    cluster: OfServers = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Each of several servers (profile fusion): state, port, epoch of its log, lease, connections, uptime; what ails it.

    Exit code 0: all of them serve. 3: none runs. 4: some do not serve, or not well.

    Example: ./strata compute status --json
    """
    raise typer.Exit(cluster_cmd.server_status(last_folder.named_or_last(cluster), as_json))


standby = typer.Typer(no_args_is_help=True, help="Compute nodes that take the database over by themselves when it has none.")
compute.add_typer(standby, name="standby")
OfCluster = Annotated[
    Path | None, typer.Option("--cluster", help="Data folder of the cluster.", show_default="the one used last, else data")
]
LeaseSeconds = Annotated[
    float | None,
    typer.Option(help="Of the stand-by once it serves: so long another one waits when it hangs.", min=2, show_default="10"),
]


@standby.command("add")
def standby_add(
    cluster: OfCluster = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the stand-by, new or used before.", show_default="one in the cluster's folder")
    ] = None,
    port: Annotated[int | None, typer.Option(help=PORT_HELP, min=1, max=65535, show_default="one of its own")] = None,
    lease_seconds: LeaseSeconds = None,
    lose: LoseLocalTables = False,
    as_json: AsJson = False,
) -> None:
    """Add a compute node that stands by: its server is ready, and takes the database over when the serving one is gone.

    That is: at once when that process has ended (crash, kill, a clean stop), and after its lease (10 s) when it hangs or its
    machine is cut off. Never because the registry is slow or was away. One that was taken over gets no commit through any more.
    The stand-by serves on a port of its own; the cluster's socket leads to it. Clients connect to whichever port answers: see
    docs/memory_nodes.md. It is started with the cluster (./strata up), stopped with it, and started again when it ends.

    Examples: ./strata compute standby add; ./strata compute standby add --data build/second --port 23310 --json
    """
    cluster_cmd.standby_add(last_folder.named_or_last(cluster), data, port, lose, lease_seconds, as_json)


@standby.command("remove")
def standby_remove(
    name: Annotated[str, typer.Argument(help="As in compute-2.")],
    cluster: OfCluster = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Also delete its folder.")] = False,
) -> None:
    """Let a compute node stand by no more. One that serves by now goes on, and nobody starts it again when it ends.

    Example: ./strata compute standby remove compute-2 --wipe
    """
    cluster_cmd.standby_remove(last_folder.named_or_last(cluster), name, wipe)


@standby.command("status")
def standby_status(
    cluster: OfCluster = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Which compute nodes stand by, how far each one is, and why one failed. Example: ./strata compute standby status --json"""
    cluster_cmd.standby_status(last_folder.named_or_last(cluster), as_json)


@standby.command("run")
def standby_run(
    cluster: OfCluster = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the stand-by.", show_default="the cluster's own")] = None,
    lease_seconds: LeaseSeconds = None,
) -> None:
    """What add starts in the background, in the foreground: keeps one compute node standing by until it is told to stop.

    For a service manager such as systemd: ./strata compute standby run --cluster data --data data/computes/compute-2
    """
    place = last_folder.named_or_last(cluster)
    cluster_cmd.standby_run(place, data or place, lease_seconds)
