"""The command line itself: options and help texts; the work is in the module of each command group."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import (
    backup_cmd,
    build_cmd,
    demo_cmd,
    demo_fusion,
    dilation,
    farmem,
    import_cmd,
    last_folder,
    logs_cmd,
    memory_node,
    paths,
    restore_cmd,
    server_cmd,
    setup_cmd,
    stages,
    status,
    test_cmd,
    version_cmd,
)
from .app_cluster import compute, node
from .app_options import AsJson, BufferPool, Cores, Data, LoseLocalTables, Port
from .bench import (
    comparison,
    far_memory,
    footprint,
    galera,
    micro,
    performance,
    profiles,
    references,
    report,
    restart,
    results,
    same_figures,
    scans,
    sysbench,
    takeover,
    tpcc,
    tpch,
    transfers,
)
from .bench.sysbench import Dataset, Workload
from .build_cmd import BuildType
from .cluster import Wishes
from .experiments import command
from .profile_list import MONOLITHIC, OF_SEVERAL_WRITERS
from .shell import StrataError, console, end_cleanly_on_sigterm, errors

app = typer.Typer(
    name="strata",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Strata: a relational storage engine for MariaDB (ENGINE=STRATA).",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version_cmd.version())
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show what this is and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def setup() -> None:
    """Install build packages, unpack the private MariaDB, prepare Python. Safe to repeat."""
    setup_cmd.setup()


@app.command()
def build(
    build_type: Annotated[BuildType, typer.Option("--type", help="Which CMake preset.")] = BuildType.release,
) -> None:
    """Build the kernel, its tests and the plugin (CMake, Ninja, ccache)."""
    build_cmd.build(build_type)


@app.command()
def up(
    profile: Annotated[
        str | None,
        typer.Option(
            help=f"Deployment profile: {', '.join(server_cmd.PROFILES)}.", show_default="what the folder holds, else monolithic"
        ),
    ] = None,
    data: Data = None,
    port: Port = None,
    memory_nodes: Annotated[
        int | None, typer.Option("--memory-nodes", help="Of a new cluster whose profile has them.", min=1, show_default="1")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Of each memory node of a new cluster.", show_default=memory_node.DEFAULT_MEMORY)
    ] = None,
    memory_backup: Annotated[
        bool, typer.Option("--memory-backup", help="Of a new cluster: each page on two memory nodes, which go in pairs.")
    ] = False,
    buffer_pool: BufferPool = None,
    cores: Cores = None,
    servers: Annotated[
        int | None,
        typer.Option("--compute", help="Servers of a new cluster whose profile has several (fusion).", show_default="3"),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Of the server, as in --option=--max-connections=500; may be repeated. Kept until others are given."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a private server or a whole cluster on a data folder, creating it when it is new.

    Profile monolithic is one MariaDB server with local files. The others are clusters: etcd, three storage nodes s1 s2 s3, and
    the MariaDB server as compute node; where the profile has them, memory nodes memory-1 ... between these. What already runs is
    left alone; when something cannot start, what this command has started is stopped again. Profile fusion has several servers
    compute-1 ... that write the same tables, and the --port is the first one's, those behind it the others'; one that cannot
    start leaves the others running.

    Examples: ./strata up; ./strata up --profile logdb-mv-sr --data build/cluster; ./strata up --profile lego --memory 1G;
    ./strata up --profile lego --memory-nodes 2 --memory-backup; ./strata up --profile fusion --compute 3 --data build/fusion;
    ./strata up --option=--strata-buffer-pool-size=2G
    """
    options = None if option is None else tuple(filter(None, option))
    wishes = Wishes(memory_nodes, memory, memory_backup or None, buffer_pool, cores, options, servers)
    place = server_cmd.folder_for(profile, data)
    if as_json:
        server_cmd.up_as_json(profile, place, port, wishes)
    else:
        server_cmd.up(profile, place, port, wishes=wishes)


@app.command()
def down(
    data: Data = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Also delete the data folder.")] = False,
    lose: LoseLocalTables = False,
) -> None:
    """Stop the server or the cluster of a data folder: compute node first, then storage nodes, then etcd."""
    server_cmd.down(last_folder.named_or_last(data), wipe, lose)


@app.command("status")
def show_status(
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every process of a data folder, whether it is healthy, and the engine's status variables.

    Exit code 0: everything runs. 3: nothing runs. 4: degraded, something does not run or is not healthy (the table says why).

    Examples: ./strata status; ./strata status --json --data build/cluster
    """
    raise typer.Exit(status.status(last_folder.named_or_last(data), as_json))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def sql(
    context: typer.Context,
    execute: Annotated[str | None, typer.Option("-e", "--execute", help="Statements to run.")] = None,
    data: Data = None,
    database: Annotated[str, typer.Option("--database", "-D")] = "test",
    on: Annotated[str | None, typer.Option(help="Which server of a cluster.", show_default="the first one that runs")] = None,
) -> None:
    """Open MariaDB's command line client on the server, or run statements; options it does not know are the client's own.

    Examples: ./strata sql; ./strata sql -e "SELECT 1"; ./strata sql --on compute-2;
    ./strata sql -N -f --table < statements.sql
    """
    server_cmd.sql(last_folder.named_or_last(data), execute, database, context.args, on)


@app.command()
def backup(
    to: Annotated[Path, typer.Argument(help="Folder of the backup; made by this command.", metavar="DIR")],
    data: Data = None,
    since: Annotated[
        Path | None, typer.Option(help="An earlier backup: only pages that have changed since then. Restoring needs both.")
    ] = None,
    lock_wait: Annotated[
        int, typer.Option(min=1, help="Seconds to wait for running DDL and commits; the backup fails then, and they go on.")
    ] = 60,
    lose_local_tables: LoseLocalTables = False,
    as_json: AsJson = False,
) -> None:
    """Back up a running server, consistent with its binary log, or a cluster, while clients read and write.

    Profile monolithic: tables of STRATA, Aria and MyISAM, views, triggers, routines and users; with tables of InnoDB the command
    refuses. Commits wait for a moment at the end. Of a cluster: everything in it, from one storage node, which is held for a
    moment; compute nodes notice nothing, but where several servers write they stand still for a moment, too. Whatever goes
    wrong, nothing is left of the folder.

    Examples: ./strata backup backups/monday; ./strata backup backups/tuesday --since backups/monday --json;
    ./strata backup backups/cluster --data data-cluster
    """
    backup_cmd.backup(last_folder.named_or_last(data), to, since, lock_wait, as_json, lose_local_tables)


@app.command()
def restore(
    folder: Annotated[Path, typer.Argument(help="What ./strata backup has made.", metavar="DIR")],
    to: Annotated[Path, typer.Option("--to", help="Data folder to make; then ./strata up --data <it>.")],
    binary_logs: Annotated[
        Path | None, typer.Option(help="Folder with the server's binary logs: apply also what came after the backup.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="With --binary-logs: up to this time (local) or position; else all there is.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a data folder of a backup: verify all checksums, copy, recover, CHECK TABLE. All of it or nothing. A cluster's gets as
    many storage nodes as a new one has.

    Examples: ./strata restore backups/tuesday --to data-restored;
    ./strata restore backups/tuesday --to data-restored --binary-logs data/mysql --until "2026-11-26 11:59:00";
    ./strata restore backups/tuesday --to data-restored --binary-logs /archive/binlogs --until bin.000007:4711
    """
    restore_cmd.restore(folder, to, as_json, binary_logs, until)


@app.command("import")
def import_tables(
    from_innodb: Annotated[bool, typer.Option("--from-innodb", help="Tables of InnoDB; there is nothing else yet.")] = False,
    data: Data = None,
    defaults_file: Annotated[
        Path | None, typer.Option(help="Another server: an option file of MariaDB whose [client] says where, and who you are.")
    ] = None,
    database: Annotated[list[str] | None, typer.Option("--database", "-D", help="Only this one; may be given again.")] = None,
    lock_wait: Annotated[int, typer.Option(min=1, help="Seconds to wait for whoever uses a table; then it stays.")] = 60,
    binlog: Annotated[bool, typer.Option(help="Write it into the binary log, so that replicas do the same.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only what came of it, as JSON.")] = False,
) -> None:
    """Make tables of InnoDB tables of STRATA, in the same server, one after the other.

    Whoever writes to a table waits while it is converted; reading goes on. Tables that foreign keys tie together are converted
    together, and have none meanwhile. Ended or interrupted in any way, the command goes on when it is run again.
    Exit code 0: all are STRATA's. 1: some stay what they are, the table says why.

    Examples: ./strata import --from-innodb --dry-run; ./strata import --from-innodb --defaults-file ~/.my.cnf -D shop
    """
    if not from_innodb:
        raise StrataError("from where? there is --from-innodb")
    wishes = import_cmd.Wishes(database or [], lock_wait, binlog, dry_run)
    raise typer.Exit(import_cmd.import_tables(last_folder.named_or_last(data), defaults_file, wishes, as_json))


@app.command()
def logs(
    name: Annotated[
        str | None, typer.Argument(help="server, or of a cluster etcd, s1, memory-1, compute-1 ...; ./strata status lists them.")
    ] = None,
    data: Data = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="So many from the end of each log.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on showing what is added, until Ctrl-C.")] = False,
) -> None:
    """Show the end of what the processes of a data folder have logged, all of them or one.

    Examples: ./strata logs; ./strata logs s2 --lines 100 --data build/cluster; ./strata logs compute-1 --follow
    """
    logs_cmd.logs(last_folder.named_or_last(data), name, lines, follow)


app.add_typer(node, name="node")
app.add_typer(compute, name="compute")


far = typer.Typer(no_args_is_help=True, help="Run unmodified programs with most of their memory in a memory node.")
app.add_typer(far, name="farmem")
FarSecret = Annotated[Path | None, typer.Option("--secret-file", help="The memory node's secret: 32 bytes, mode 0600.")]


@far.command("serve")
def farmem_serve(
    listen: Annotated[str, typer.Option(help="127.0.0.1:7301, or unix:/path for programs of this host.")] = "127.0.0.1:7301",
    secret: Annotated[Path, typer.Option("--secret-file", help="Made when it is absent; programs need it.")] = Path("secret"),
    capacity: Annotated[str, typer.Option(help="Memory for all programs together.")] = "4G",
) -> None:
    """Be a memory node until Ctrl-C. Example: ./strata farmem serve --secret-file build/secret --capacity 4G"""
    raise typer.Exit(farmem.serve(listen, secret, capacity))


@far.command("run", context_settings={"ignore_unknown_options": True})
def farmem_run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, behind --.")],
    local: Annotated[str, typer.Option(help="Local memory for what the program allocates: the cap, per process.")] = "64M",
    memory_node: Annotated[
        str | None, typer.Option(help="host:port in numbers, or unix:/path.", show_default="one of its own on this machine")
    ] = None,
    secret: FarSecret = None,
    policy: Annotated[str, typer.Option(help="fifo, second-chance, or assoc:N for N ways.")] = "fifo",
    prefetch: Annotated[int, typer.Option(help="Pages that come along with a missing one.", min=0, max=63)] = 0,
    far: Annotated[str, typer.Option(help="Far memory each process may have; 2G in modes that take it at once.")] = "16G",
    far_from: Annotated[str, typer.Option(help="Smaller allocations stay local.")] = "16K",
    link: Annotated[str, typer.Option(help="Modelled network: none, 1g, 10g, 30g, rdma25g.")] = "none",
    timeout_ms: Annotated[int, typer.Option(help="The program ends when the memory node has not answered for so long.")] = 5000,
    stats: Annotated[Path | None, typer.Option(help="Write the counters here as JSON, each second and at the end.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Record every fault here, 32 bytes each, for ./strata farmem replay.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Show the counters each second.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No table at the end.")] = False,
    mode: Annotated[
        str,
        typer.Option(
            help="uffd: what each process allocates; fuse: what several share; to compare with: swap (to the memory node), disk"
            " (to a file), zram. All but uffd as root."
        ),
    ] = farmem.UFFD,
    disk_folder: Annotated[Path | None, typer.Option(help="Mode disk: where the file is.", show_default="this one")] = None,
    disk_iops: Annotated[int, typer.Option(help="Mode disk: operations the disk does in a second; 0: all it can.", min=0)] = 0,
    far_files: Annotated[Path | None, typer.Option(help="Mode fuse: a folder whose files are cached in the memory node.")] = None,
) -> None:
    """Run a program that knows nothing of it with most of its memory in a memory node; show faults and bytes.

    One process with threads needs Linux 6.8 and the right to use userfaultfd (root); several processes, as PostgreSQL's,
    have what they share far with --mode fuse. The exit code is the program's; 74 when its memory node was lost, 2 when it was
    not started.

    Examples: ./strata farmem run --local 64M -- python3 query.py

      ./strata farmem run --local 64M --memory-node 127.0.0.1:7301 --secret-file build/secret --live -- python3 query.py
    """
    if (memory_node is None) != (secret is None):
        raise StrataError("--memory-node and --secret-file go together; without both a memory node is started for the program")
    place = farmem.Place(memory_node, secret) if memory_node is not None and secret is not None else None
    options = farmem.Options(
        local=local,
        far=far if farmem.needs_memory_node(mode) or far != "16G" else "",
        far_from=far_from,
        policy=policy,
        prefetch=prefetch,
        link=link,
        timeout_ms=timeout_ms,
        stats=stats,
        trace=trace,
        live=live,
        quiet=quiet,
        mode=mode,
        disk_folder=disk_folder,
        disk_iops=disk_iops,
        far_files=far_files,
    )
    raise typer.Exit(farmem.run(place, far, options, command))


@far.command("replay")
def farmem_replay(
    trace: Annotated[Path, typer.Argument(help="What run --trace has written.")],
    policies: Annotated[
        str, typer.Option("--policy", help="fifo, second-chance, assoc:N; several with commas.")
    ] = "fifo,second-chance",
    local: Annotated[str, typer.Option(help="Local memory, several with commas.")] = "64M",
    prefetch: Annotated[str, typer.Option(help="Pages that come along, several with commas.")] = "0",
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """What policies, sizes of local memory and prefetch would have done with a recorded run: faults and bytes, in seconds.

    Nothing is run again. A trace recorded with little local memory tells most: of pages that are local nothing is seen.

    Example: ./strata farmem replay q9.trace --policy fifo,second-chance,assoc:256 --local 16M,64M
    """
    numbers = [int(n) for n in prefetch.split(",")]
    raise typer.Exit(farmem.replay(trace, policies.split(","), local.split(","), numbers, as_json))


@app.command()
def demo(
    data: Data = None,
    port: Port = None,
    seconds: Annotated[float, typer.Option(help="How long the clients work before kill -9.")] = 8,
    engine: Annotated[str, typer.Option(help="Engine of the demo's tables.")] = "STRATA",
    profile: Annotated[str, typer.Option(help=f"{MONOLITHIC}, or {OF_SEVERAL_WRITERS[0]}: several servers.")] = MONOLITHIC,
    build_first: Annotated[bool, typer.Option("--build/--no-build", help="Build the plugin first.")] = True,
) -> None:
    """Build, start, work, kill -9, restart, and prove that nothing acknowledged was lost.

    With --profile fusion: three servers write the same tables, one is killed and comes back, one more is added meanwhile.

    Examples: ./strata demo; ./strata demo --profile fusion --data build/fusion
    """
    if profile in OF_SEVERAL_WRITERS:
        demo_fusion.demo(data, port, seconds, build_first)
        return
    if profile != MONOLITHIC:
        raise StrataError(f"there is a demo of {MONOLITHIC} and of {OF_SEVERAL_WRITERS[0]}, not of '{profile}'")
    demo_cmd.demo(last_folder.named_or_last(data), port, seconds, engine, build_first)


@app.command()
def test(
    quick: Annotated[bool, typer.Option("--quick", help="Release build, checks, unit tests, a short end-to-end.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also a long campaign and MariaDB's own suites.")] = False,
    crash: Annotated[bool, typer.Option("--crash", help="Only the crash campaign.")] = False,
    isolation: Annotated[bool, typer.Option("--isolation", help="Only histories at every isolation level.")] = False,
    stress: Annotated[bool, typer.Option("--stress", help="Only statements of every kind on three servers at once.")] = False,
    kills: Annotated[bool, typer.Option("--kills", help="With --stress: while servers and nodes are killed.")] = False,
    runs: Annotated[int | None, typer.Option(help="With --crash: how many runs; 50, or on clusters 10.")] = None,
    profile: Annotated[
        str,
        typer.Option(
            help="With --crash, --differential, --isolation, --suites, --mtr: under which profile."
            " With --crash also every: those of clusters with one writer, in turn."
        ),
    ] = MONOLITHIC,
    faults: Annotated[
        int,
        typer.Option(
            help="With --crash, on clusters: so many faults, over as many runs as it takes."
            " With --isolation, on several servers: so many in each history."
        ),
    ] = 0,
    servers: Annotated[
        int,
        typer.Option(
            help="With --differential, --isolation: so many that write the same tables"
            " (--profile fusion; with --isolation also galera, as a control)."
        ),
    ] = 1,
    seed: Annotated[
        int,
        typer.Option(
            help="With --crash: the first run's seed;"
            " with --differential, --isolation, --replication, --soak, --stress: the seed."
        ),
    ] = 1,
    power_loss: Annotated[bool, typer.Option("--power-loss", help="With --crash: in every run, not one in three.")] = False,
    fault: Annotated[
        str | None, typer.Option(help="With --crash: strike only this fault point, or on clusters this kind of fault.")
    ] = None,
    engine: Annotated[str, typer.Option(help="With --crash, --differential, --isolation: the engine under test.")] = "STRATA",
    differential: Annotated[bool, typer.Option("--differential", help="Only random SQL on STRATA and InnoDB, compared.")] = False,
    statements: Annotated[int, typer.Option(help="With --differential: how many statements.")] = 20_000,
    minimise: Annotated[bool, typer.Option("--minimise", help="With --differential: shrink what fails.")] = False,
    replay: Annotated[Path | None, typer.Option(help="With --differential: run the statements of this file.")] = None,
    soak: Annotated[
        bool, typer.Option("--soak", help="Only the soak: full load for long; memory and undo stay bounded.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="With --isolation, --soak, --stress: how long.")] = 300,
    replication: Annotated[
        int, typer.Option(help="Only so many rounds of a primary and a replica that are killed in turns.", metavar="ROUNDS")
    ] = 0,
    fuzz_seconds: Annotated[int, typer.Option(help="Only the fuzz targets, each for so many seconds.")] = 0,
    spin: Annotated[bool, typer.Option("--spin", help="Only the models of the protocols, every interleaving.")] = False,
    errors: Annotated[bool, typer.Option("--errors", help="With --crash: errors without a crash, on one server.")] = False,
    binlog: Annotated[
        str, typer.Option(help="With --crash: a binary log, compared with the tables: on, off, or draw by seed.")
    ] = "draw",
    draw: Annotated[str | None, typer.Option(help="Draw as on this commit what is too much for each run.")] = None,
    suites: Annotated[bool, typer.Option("--suites", help="Only our own and MariaDB's test suites that CI runs.")] = False,
    checks: Annotated[bool, typer.Option("--checks", help="Only the checks that need no build, and the tools' tests.")] = False,
    mtr_tests: Annotated[
        list[str] | None,
        typer.Option("--mtr", metavar="TEST", help="Only this test of mariadb/mysql-test (may be repeated), as built last."),
    ] = None,
    record: Annotated[bool, typer.Option("--record", help="With --mtr: what it gives becomes its result file.")] = False,
) -> None:
    """Build and run the tests. The last line is `N passed, M failed`."""
    if checks:
        raise typer.Exit(test_cmd.test(test_cmd.check_stages()))
    if mtr_tests:
        raise typer.Exit(test_cmd.test(test_cmd.mtr_stages(mtr_tests, profile, record)))
    if crash:
        extra = ["--engine", engine, "--profile", profile] + (["--power-loss"] if power_loss else [])
        extra += ["--faults", str(faults)] if faults else []
        extra += ["--binlog", binlog] + (["--errors"] if errors else [])
        raise typer.Exit(test_cmd.crash(runs, seed, extra + (["--fault", fault] if fault else [])))
    if differential:
        extra = ["--engine", engine, "--profile", profile, "--servers", str(servers)] + (["--minimise"] if minimise else [])
        raise typer.Exit(test_cmd.differential(statements, seed, extra + (["--replay", str(replay)] if replay else [])))
    if isolation:
        extra = ["--engine", engine, "--profile", profile, "--servers", str(servers), "--faults", str(faults)]
        raise typer.Exit(test_cmd.isolation(seconds, seed, extra))
    if stress:
        raise typer.Exit(test_cmd.stress(seconds, seed, ["--kills"] if kills else []))
    if soak:
        raise typer.Exit(test_cmd.soak(seconds, seed))
    if replication > 0:
        raise typer.Exit(test_cmd.replication(replication, seed))
    if suites:
        raise typer.Exit(test_cmd.test(test_cmd.suite_stages(profile)))
    if spin:
        raise typer.Exit(test_cmd.test(test_cmd.spin_stages()))
    if fuzz_seconds > 0:
        raise typer.Exit(test_cmd.test(test_cmd.fuzz_stages(fuzz_seconds)))
    if quick:
        raise typer.Exit(test_cmd.test(test_cmd.quick_stages()))
    drawn = test_cmd.drawn_for(draw)
    raise typer.Exit(test_cmd.test(test_cmd.all_stages(drawn) if everything else test_cmd.usual_stages(drawn)))


@app.command("format")
def format_sources() -> None:
    """Bring C++ (clang-format) and Python (ruff) sources into the project's format."""
    stages.format_sources()


dilate = typer.Typer(no_args_is_help=True, help="Run unmodified programs as on a machine with more cores, in slower time.")
app.add_typer(dilate, name="dilate")


@dilate.command("run")
def dilate_run(
    command: Annotated[list[str], typer.Argument(help="The program, after --.")],
    factor: Annotated[float, typer.Option(help="How many times slower.", min=1, max=1000)],
    cores: Annotated[int, typer.Option(help="Of the emulated node.", min=1, max=64)],
    node_file: Annotated[
        Path | None, typer.Option("--node", help="A file that programs of the same node share; made by the first.")
    ] = None,
    origin: Annotated[
        str | None, typer.Option(help="Where emulated time begins, the same for all nodes (origin prints one).")
    ] = None,
) -> None:
    """Run a program in emulated time. Example: ./strata dilate run --factor 8 --cores 2 --node build/a.node -- ./server"""
    dilation.run(dilation.Program(factor, cores, node_file, origin), command)


@dilate.command("origin")
def dilate_origin() -> None:
    """Print where emulated time may begin: now."""
    print(dilation.origin_now())


@dilate.command("status")
def dilate_status(files: Annotated[list[Path], typer.Argument(help="Of emulated nodes.")]) -> None:
    """What nodes have computed, and how late they were. Example: ./strata dilate status build/a.node"""
    for file in files:
        console.print(dilation.line(file), soft_wrap=True)


@dilate.command("check")
def dilate_check(
    factors: Annotated[str, typer.Option(help="Compared with real time, with commas between them.")] = "4,8",
    seconds: Annotated[int, typer.Option(help="Of one run, in emulated time.", min=1)] = 10,
    threads: Annotated[str, typer.Option(help="Clients.")] = "1,8",
) -> None:
    """Does slower time give the same figures as real time on one core? For a quiet machine. Example: ./strata dilate check"""
    try:
        plan = same_figures.Plan(
            factors=(1.0, *map(float, factors.split(","))), threads=tuple(map(int, threads.split(","))), seconds=seconds
        )
    except ValueError:
        raise StrataError("--factors and --threads are numbers with commas between them, as in 4,8") from None
    raise typer.Exit(0 if same_figures.run(plan) <= same_figures.DEVIATION_MAX else 1)


bench = typer.Typer(no_args_is_help=True, help="Measure STRATA, beside InnoDB in the same server.")
app.add_typer(bench, name="bench")
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", callback=results.accepted, help="Also write the rows, machine and settings to this file."),
]
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Also draw the ratios into this file (png, svg, pdf).")]
Versus = Annotated[str | None, typer.Option("--vs", help="The other engine, measured in turns: innodb.")]


def _engines(versus: str | None) -> tuple[str, ...]:
    if versus is None:
        return (comparison.STRATA,)
    if versus.lower() != "innodb":
        raise StrataError(f"--vs {versus}: only innodb can be compared with")
    return (comparison.STRATA, comparison.INNODB)


def _threads(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise StrataError(f"--threads {text}: give numbers with commas between them, as in 1,8,64") from None


@bench.command("sysbench")
def bench_sysbench(
    versus: Versus = None,
    workloads: Annotated[list[Workload] | None, typer.Option(help="Only these (may be repeated).")] = None,
    threads: Annotated[str, typer.Option(help="Numbers of clients.")] = "1,8,64",
    tables: Annotated[int, typer.Option()] = 8,
    rows: Annotated[int, typer.Option(help="Rows per table in memory.")] = 100_000,
    seconds: Annotated[int, typer.Option(help="Of one measurement.")] = 20,
    rounds: Annotated[int, typer.Option()] = 5,
    isolation: Annotated[str, typer.Option()] = "REPEATABLE-READ",
    rate: Annotated[
        int, typer.Option(min=0, help="Transactions offered a second, to compare latencies at an equal load; 0: no limit.")
    ] = 0,
    dataset: Annotated[list[Dataset] | None, typer.Option(help="memory, disk (1.3 GiB on a 128 MiB pool), or both.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Five workloads, 8 threads, short: under six minutes.")] = False,
    profile_names: Annotated[
        str | None, typer.Option("--profiles", help="These deployment profiles in turns, as in monolithic,logdb,logdb-mv-sr.")
    ] = None,
    link: Annotated[str, typer.Option(help="Link of the cluster profiles: none, 1g, 10g, 30g or rdma25g (modelled).")] = "none",
    settle: Annotated[
        bool, typer.Option("--settle", help="With --profiles: measure when replay is done, a minute or more each time.")
    ] = False,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """The sysbench workloads, loading and ADD INDEX.

    Examples: ./strata bench sysbench --vs innodb --quick; ./strata bench sysbench --profiles monolithic,logdb-mv-sr --threads 8
    """
    if quick:
        rows, seconds, rounds, threads = min(rows, 25_000), min(seconds, 8), min(rounds, 3), "8"
    wanted, clients = sysbench.chosen(workloads, quick), _threads(threads)
    if profile_names is not None:
        if versus is not None or plot_file is not None or rate != 0 or dataset not in (None, [], [Dataset.memory]):
            raise StrataError(
                "--profiles compares STRATA's profiles with data in memory: without --vs, --plot, --rate and --dataset disk"
            )
        names, modelled = profiles.chosen(profile_names), profiles.chosen_link(link)
        of_profiles = profiles.Plan(names, modelled, wanted, clients, tables, rows, seconds, rounds, isolation, settle)
        profiles.run(of_profiles, json_file)
        return
    if settle:
        raise StrataError("--settle is for --profiles")
    datasets = tuple(dataset) if dataset else (Dataset.memory,) if quick else tuple(Dataset)
    plan = sysbench.Plan(wanted, _engines(versus), datasets, clients, tables, rows, seconds, rounds, isolation, rate)
    sysbench.run(plan, json_file, plot_file)


@bench.command("scans")
def bench_scans(
    versus: Versus = None,
    only: Annotated[list[scans.Scan] | None, typer.Option("--scan", help="Only these (may be repeated).")] = None,
    rows: Annotated[int, typer.Option(help="Of the table.", min=1000)] = 400_000,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Statements that delete, update or lock many rows at once. Example: ./strata bench scans --vs innodb --scan delete"""
    scans.run(scans.Plan(scans.chosen(only), _engines(versus), rows, rounds), json_file, plot_file)


@bench.command("references")
def bench_references(
    versus: Versus = None,
    only: Annotated[list[references.Change] | None, typer.Option("--change", help="Only these (may be repeated).")] = None,
    threads: Annotated[str, typer.Option(help="Numbers of clients that insert children.")] = "1,16",
    rows: Annotated[int, typer.Option(help="Children in a statement.", min=1000)] = 200_000,
    seconds: Annotated[int, typer.Option(help="Of inserts by clients.", min=1)] = 5,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Children inserted, parents deleted with theirs. Example: ./strata bench references --vs innodb --change insert"""
    plan = references.Plan(references.chosen(only), _engines(versus), _threads(threads), rows, seconds, rounds)
    references.run(plan, json_file, plot_file)


@bench.command("galera")
def bench_galera(
    only: Annotated[list[galera.Workload] | None, typer.Option("--workload", help="Only these (may be repeated).")] = None,
    system_names: Annotated[str, typer.Option("--systems", help="In turns; ratios are to the first.")] = ",".join(galera.SYSTEMS),
    threads: Annotated[str, typer.Option(help="Numbers of clients, spread over all servers.")] = "24",
    servers: Annotated[int, typer.Option(help="Of Galera and of fusion.")] = 3,
    tables: Annotated[int, typer.Option(min=1)] = 8,
    rows: Annotated[int, typer.Option(help="Of a table.", min=1000)] = 25_000,
    seconds: Annotated[int, typer.Option(help="Of one measurement.", min=1)] = 10,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    sync_wait: Annotated[
        int,
        typer.Option(help="Galera's wsrep_sync_wait: 0 as usual; 15: waits for what others have committed.", min=0, max=15),
    ] = 0,
    json_file: JsonFile = None,
) -> None:
    """Servers that write the same tables: fusion beside a Galera cluster, and one InnoDB server by itself.

    Examples: ./strata bench galera; ./strata bench galera --workload hot_row --threads 8,64 --systems galera,fusion
    """
    names = galera.chosen_systems(system_names)
    plan = galera.Plan(
        tuple(only or galera.Workload), names, _threads(threads), servers, tables, rows, seconds, rounds, sync_wait
    )
    galera.run(plan, json_file)


@bench.command("tpcc")
def bench_tpcc(
    versus: Versus = None,
    warehouses: Annotated[int, typer.Option()] = 4,
    threads: Annotated[int, typer.Option()] = 8,
    seconds: Annotated[int, typer.Option(help="Of one measurement.")] = 30,
    rounds: Annotated[int, typer.Option()] = 5,
    check: Annotated[bool, typer.Option("--check", help="Afterwards the driver's consistency check: takes long.")] = False,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """TPC-C with go-tpc; needs the Go compiler. Example: ./strata bench tpcc --vs innodb --warehouses 4"""
    tpcc.run(tpcc.Plan(_engines(versus), warehouses, threads, seconds, rounds, check), json_file, plot_file)


@bench.command("tpch")
def bench_tpch(
    versus: Versus = None,
    scale: Annotated[float, typer.Option(help="1 is a gigabyte of text.", min=0.01)] = 0.1,
    queries: Annotated[str | None, typer.Option(help="Only these, as in 1,6,19.")] = None,
    rounds: Annotated[int, typer.Option()] = 3,
    loads: Annotated[int, typer.Option(help="How often the tables are loaded.", min=1)] = 1,
    limit: Annotated[float, typer.Option(help="Seconds a query may take.")] = 120,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """TPC-H: loading, the 22 queries, equal answers. Example: ./strata bench tpch --vs innodb --scale 0.1"""
    tpch.run(tpch.Plan(_engines(versus), scale, tpch.chosen(queries), rounds, loads, limit), json_file, plot_file)


@bench.command("restart")
def bench_restart(
    profile_names: Annotated[
        str, typer.Option("--profiles", help="These deployment profiles, as in monolithic,logdb-mv-sr.")
    ] = "logdb-mv-sr",
    tables: Annotated[int, typer.Option()] = 8,
    rows: Annotated[int, typer.Option(help="Per table.")] = 100_000,
    threads: Annotated[int, typer.Option(help="Clients of the load.")] = 8,
    seconds: Annotated[int, typer.Option(help="Of load before kill -9.")] = 20,
    rounds: Annotated[int, typer.Option()] = 5,
    json_file: JsonFile = None,
) -> None:
    """Time from the start of a killed compute node to its first commit. Example: ./strata bench restart"""
    restart.run(restart.Plan(profiles.chosen(profile_names), tables, rows, threads, seconds, rounds), json_file)


@bench.command("takeover")
def bench_takeover(
    profile: Annotated[str, typer.Option(help="One whose servers write the same tables: fusion or fusion-sr.")] = "fusion",
    kills: Annotated[int, typer.Option(min=1)] = 20,
    clients: Annotated[int, typer.Option(min=1, help="Of each of the two servers.")] = 8,
    rows: Annotated[int, typer.Option(min=1, help="That the clients of a server change.")] = 1000,
    json_file: JsonFile = None,
) -> None:
    """Kill one of two servers that write the same tables: until the other one has its rows. Example: ./strata bench takeover"""
    takeover.run(takeover.Plan(profile, kills, clients, rows), json_file)


@bench.command("transfers")
def bench_transfers(
    profile: Annotated[str, typer.Option(help="One whose servers write the same tables: fusion or fusion-sr.")] = "fusion",
    presets: Annotated[str, typer.Option(help="Builds, measured in turns, as in release,before.")] = "release",
    clients: Annotated[int, typer.Option(min=1, help="Of each of the two servers.")] = 1,
    rows: Annotated[int, typer.Option(min=1, help="Of the table; few are one page.")] = 64,
    seconds: Annotated[float, typer.Option(min=1)] = 10,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    json_file: JsonFile = None,
) -> None:
    """What it costs that a page goes from server to server. Example: ./strata bench transfers --clients 4"""
    plan = transfers.Plan(profile, tuple(presets.split(",")), clients, max(rows, 2 * clients), seconds, rounds)
    transfers.run(plan, json_file)


@bench.command("footprint")
def bench_footprint(
    versus: Versus = None,
    tables: Annotated[int, typer.Option()] = 8,
    rows: Annotated[int, typer.Option(help="Per table.")] = 100_000,
    updates: Annotated[int, typer.Option(help="Random updates of one row; 10000000 shows how files grow.")] = 200_000,
    threads: Annotated[int, typer.Option()] = 8,
    log_tail: Annotated[int, typer.Option(help="MiB of log to replay after kill -9.")] = 1024,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Log, disk, memory, CPU, restart, warm-up. Example: ./strata bench footprint --vs innodb --updates 1000000"""
    plan = footprint.Plan(_engines(versus), tables, rows, updates, threads, log_tail << 20)
    footprint.run(plan, json_file, plot_file)


@bench.command("micro")
def bench_micro(
    filter_: Annotated[str | None, typer.Option("--filter", help="Only names that match, as in pool/ or log/append.")] = None,
    seconds: Annotated[float, typer.Option(help="Of one measurement.")] = 0.5,
    json_file: JsonFile = None,
) -> None:
    """The kernel's modules one by one, beside memcpy, fdatasync and disk reads. Example: ./strata bench micro"""
    micro.run(filter_, seconds, json_file)


@bench.command("farmem")
def bench_farmem(
    local: Annotated[str, typer.Option(help="Local memory, several with commas between them.")] = "16M,64M",
    scale: Annotated[float, typer.Option(help="Of TPC-H's data.")] = 0.1,
    queries: Annotated[str, typer.Option(help="TPC-H's queries, by number.")] = "1,4,6,9,13,16",
    policies: Annotated[str, typer.Option(help="fifo, second-chance, assoc:N.")] = "fifo",
    prefetch: Annotated[str, typer.Option(help="Pages that come along.")] = "0,15",
    link: Annotated[str, typer.Option(help="Modelled network: none, 1g, 10g, 30g, rdma25g.")] = "none",
    rounds: Annotated[int, typer.Option(help="Times through all variants, in turns.")] = 3,
    ways: Annotated[str, typer.Option(help=f"Of {', '.join(far_memory.WAYS)}; or all.")] = "shared memory,tcp",
    disk_iops: Annotated[int, typer.Option(help="Of the disk that is swapped to; 0: all it can.", min=0)] = 0,
    json_file: JsonFile = None,
) -> None:
    """TPC-H in DuckDB on far memory, over shared memory and TCP, beside all memory local; answers must be equal.

    With --ways also beside what the kernel does by itself, as root: it swaps to the same memory node, to zram, to a disk.

    Examples: ./strata bench farmem --local 16M,64M --scale 0.1

      ./strata bench farmem --ways all --local 64M --disk-iops 3000
    """
    chosen = list(far_memory.WAYS) if ways == "all" else ways.split(",")
    if unknown := [way for way in chosen if way not in far_memory.WAYS]:
        raise StrataError(f"--ways: {unknown[0]} is none of {', '.join(far_memory.WAYS)}")
    plan = far_memory.Plan(
        local.split(","),
        scale,
        [int(n) for n in queries.split(",")],
        policies.split(","),
        [int(n) for n in prefetch.split(",")],
        link,
        rounds,
        chosen,
        disk_iops,
    )
    far_memory.run(plan, json_file)


@bench.command("show")
def bench_show(files: Annotated[list[Path], typer.Argument(help="What --json has written.")]) -> None:
    """Earlier figures as a Markdown table. Example: ./strata bench show bench/results/*.json"""
    print(report.markdown(files))


@bench.command("page")
def bench_page() -> None:
    """Makes the tables of docs/performance.md of the files that bench/performance.toml names. Example: ./strata bench page"""
    if problems := performance.write():
        raise StrataError("\n".join(["the tables are made; what is missing:", *problems]))
    console.print(f"written: {performance.DOCUMENT}")


EXPERIMENT_HELP = """Measure a figure of a published paper again with this system.

Needs a release build (./strata build). Leaves JSON, a plot, and sentences that set our ratios beside the paper's.

Examples:

  ./strata experiment list

  ./strata experiment openaurora-fig18                          # about a quarter of an hour

  ./strata experiment openaurora-fig10 --hit-ratios 0.8         # the buffer that the paper's figures are of

  ./strata experiment openaurora-fig10 --hit-ratios 0.4 --add   # one more, added to what was measured before

  ./strata experiment openaurora-fig10 --show                   # what was measured, again

  ./strata experiment openaurora-fig10 --dilation 8 --cores compute=4,storage=2,client=4   # on emulated nodes; 8 times as long

  ./strata experiment lego-fig11 --repeats 3                    # about a quarter of an hour

  ./strata experiment lego-fig15 --quick                        # a few minutes: kill -9 after 8 s of load

  ./strata experiment polardbmp-fig7 --nodes 1,2,4,8 --shared 0,100 --dilation 16 --cores compute=2,memory=2,storage=1,client=8
"""


@app.command("experiment", help=EXPERIMENT_HELP)
def experiment(
    name: Annotated[str, typer.Argument(help="Which one; list shows them.")],
    hit_ratios: Annotated[str | None, typer.Option(help="Only buffers with these, with commas between them.")] = None,
    repeats: Annotated[int, typer.Option(help="Times through all variants.", min=1)] = 1,
    add: Annotated[bool, typer.Option("--add", help="Add to what the JSON file holds; its settings are used.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Measure nothing; say and draw what the JSON file holds, compare anew.")
    ] = False,
    nodes: Annotated[str | None, typer.Option(help="Servers that write the same tables, as in 1,2,4; 8 at most.")] = None,
    shared: Annotated[str | None, typer.Option(help="Percent of the statements that are of shared tables, as in 0,100.")] = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows of each table; subscribers of each server (TATP), items (TPC-C).")
    ] = None,
    warehouses: Annotated[int | None, typer.Option(help="Of TPC-C; of each server, where several write.", min=1)] = None,
    tpch_scale: Annotated[float | None, typer.Option("--scale", help="Of TPC-H.", min=0.01)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few minutes: less data, shorter runs.")] = False,
    threads: Annotated[int | None, typer.Option(help="Clients; of each server, where several write.")] = None,
    seconds: Annotated[int | None, typer.Option(help="Of one run.")] = None,
    link: Annotated[str | None, typer.Option(help="Modelled network: none, 1g, 10g, 30g, rdma25g.")] = None,
    dilated: Annotated[
        float | None,
        typer.Option("--dilation", help="Emulate nodes with cores of their own: so many times slower (docs/dilation.md)."),
    ] = None,
    cores: Annotated[str | None, typer.Option(help="Of each emulated node, as in compute=4,storage=2,client=4.")] = None,
    lock: Annotated[Path | None, typer.Option(help="A file to hold locked (flock) during each part that is measured.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write everything that was measured.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Where to draw the figure (png, svg, pdf).")] = None,
    page: Annotated[Path | None, typer.Option(help="Also write scale, sentences and table as a Markdown page.")] = None,
) -> None:
    folder = paths.BUILD / "experiments"
    files = command.Files(json_file or folder / f"{name}.json", plot_file or folder / f"{name}.png", page)
    options = command.Options(
        repeats, add, show, quick, hit_ratios, nodes, shared, rows, warehouses, tpch_scale, threads, seconds, link, dilated,
        cores, lock,
    )  # fmt: skip
    command.run(name, options, files)


def main() -> None:
    end_cleanly_on_sigterm()
    try:
        app(prog_name="./strata")
    except StrataError as error:
        errors.print(f"[red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)
    except OSError as error:  # A folder that cannot be made, a full disk: what the system says, and of which file.
        if error.filename is None:
            raise
        errors.print(f"[red]error:[/] {error.filename}: {error.strerror}", soft_wrap=True, markup=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
