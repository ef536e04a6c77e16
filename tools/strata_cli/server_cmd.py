"""`./strata up | down | sql`: one private server, or one cluster, per data folder."""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from . import build_cmd, cluster_cmd, compute_servers, cpu_share, last_folder, paths, setup_cmd
from .cluster import Cluster, Wishes
from .profile_list import BY_NAME, MONOLITHIC, OF_CLUSTERS, OF_SEVERAL_WRITERS
from .server import Server, Settings, choose_port
from .shell import StrataError, console, errors
from .status import print_table

PROFILES = (MONOLITHIC, *OF_CLUSTERS)
NO_WISHES = Wishes()
CLIENT = paths.MARIADB_ROOT / "usr" / "bin" / "mariadb"


def _chosen_profile(wanted: str | None, data: Path) -> str:
    """What the folder holds, which the wish must agree with; on a new one the wish."""
    if wanted is not None and wanted not in PROFILES:
        raise StrataError(f"profile '{wanted}' is not available; there is: {', '.join(PROFILES)}")
    server = Server(data)
    if not Cluster(data).exists() and server.settings().cluster:
        of = paths.relative(Path(server.settings().cluster))
        place = f"--cluster {of} --data {paths.relative(server.data)}"
        raise StrataError(f"{paths.relative(server.data)} holds a compute node; to start it: ./strata compute up {place}")
    held = _held_profile(data)
    if held is not None and wanted not in (None, held):
        raise StrataError(f"{paths.relative(server.data)} holds a database of profile '{held}'")
    return held or wanted or MONOLITHIC


def _held_profile(data: Path) -> str | None:
    server, whole = Server(data), Cluster(data)
    return whole.settings().profile if whole.exists() else server.settings().profile if server.exists() else None


def folder_for(wanted: str | None, data: Path | None) -> Path:
    """Where `up` works: as every command, but a wish that the folder used last cannot fulfil means the default one."""
    if data is None and wanted is not None and _held_profile(last_folder.last()) not in (None, wanted):
        return paths.DATA_DEFAULT
    return last_folder.named_or_last(data)


def build_what_is_missing(profile: str) -> None:
    """The plugin, and for a cluster the daemons of its nodes."""
    needed = {"ha_strata": paths.plugin_path("release")}
    if profile != MONOLITHIC:
        needed["strata-storenode"] = paths.storenode_path("release")
        if BY_NAME[profile].has_memory_nodes:
            needed["strata-memnode"] = paths.memnode_path("release")
    if missing := tuple(target for target, path in needed.items() if not path.exists()):
        console.print(f"building what is missing: {', '.join(missing)}")
        build_cmd.build(build_cmd.BuildType.release, targets=missing)


def check_folder(data: Path) -> None:
    """A data folder is one that is there and can be written to, or can be made."""
    place = data.resolve()
    if place.exists() and not place.is_dir():
        raise StrataError(f"{paths.relative(place)} is no folder; choose another one with --data")
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise StrataError(
            f"{paths.relative(place)} cannot be a data folder ({error.strerror}); choose one that can be written to with --data"
        ) from None


OWN_OPTIONS = ("--datadir", "--port", "--socket", "--pid-file", "--bind-address", "--log-error", "--plugin-dir", "--basedir")


def check_options(options: Sequence[str]) -> None:
    for option in options:
        name = option.split("=", 1)[0].replace("_", "-")
        if not name.startswith("--") or name == "--":
            raise StrataError(f"'{option}' is no option of the server; as in --option=--max-connections=500")
        if name in OWN_OPTIONS:
            raise StrataError(f"{name} is chosen by ./strata; see --data and --port")


def say_port_is_ignored(name: str, wanted: int | None, used: int) -> None:
    if wanted is not None and wanted != used:
        errors.print(
            f"[yellow]warning:[/] --port {wanted} is ignored: {name} runs already, on port {used}; stop it first to change that"
        )


def up_as_json(wanted: str | None, data: Path, port: int | None, wishes: Wishes) -> None:
    """What else there is to say goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        server = up(wanted, data, port, quiet=True, wishes=wishes)
    whole = Cluster(data)
    servers = {name: whole.computes[name] for name in whole.serving_computes()} if whole.exists() else {"server": server}
    facts = {
        "data": str(data.resolve()),
        "profile": server.settings().profile,
        "servers": [
            {"name": name, "port": one.settings().port, "socket": str(one.socket), "pid": one.pid(), "folder": str(one.data)}
            for name, one in servers.items()
        ],
    }
    print(json.dumps(facts, indent=2))


def up(wanted: str | None, data: Path, port: int | None, *, quiet: bool = False, wishes: Wishes = NO_WISHES) -> Server:
    profile = _chosen_profile(wanted, data)
    if profile == MONOLITHIC and replace(wishes, options=None) != NO_WISHES:
        if wishes.servers not in (None, 1):
            others = " or ".join(OF_SEVERAL_WRITERS)
            raise StrataError(f"--compute {wishes.servers}: profile '{profile}' has one server; several has {others}")
        if replace(wishes, options=None, servers=None) != NO_WISHES:
            raise StrataError("memory nodes, --cores and --buffer-pool-size are for clusters; say --profile")
    cpu_share.check(wishes.cores or 0.0)
    check_options(wishes.options or ())
    check_folder(data)
    setup_cmd.ensure_setup()
    build_what_is_missing(profile)
    last_folder.use(data)
    if profile != MONOLITHIC:
        try:
            whole = cluster_cmd.up(profile, data, port, wishes)
        except StrataError:
            if not quiet:
                print_servers(Cluster(data))
            raise
        server = whole.computes[whole.serving_compute() or next(iter(whole.computes))]
        say_port_is_ignored(server.name, port, server.settings().port)
        if not quiet:
            print_servers(whole)
        if not quiet and not whole.has_several():
            print_how_to_connect(server)
        return server
    server = Server(data)
    before = server.settings()
    if server.pid() is not None:
        console.print(f"  already running (pid {server.pid()}, port {before.port})")
        say_port_is_ignored("the server", port, before.port)
        if wishes.options not in (None, tuple(before.options)):
            errors.print("[yellow]warning:[/] --option is ignored: the server runs already; stop it first to change that")
        return server
    options = before.options if wishes.options is None else list(wishes.options)
    chosen = choose_port(port, before.port)
    fresh = not server.exists()
    seconds = server.start(Settings(profile=profile, port=chosen, options=options))
    server.query("CREATE DATABASE IF NOT EXISTS test")
    server.disown()
    made = "created and started" if fresh else "started"
    console.print(f"  {made} in {seconds:.1f} s: pid {server.pid()}, 127.0.0.1:{chosen}, profile {profile}")
    if not server.has_strata():
        errors.print(f"[yellow]warning:[/] the server runs without STRATA; the reason is in {paths.relative(server.log)}")
    if not quiet:
        print_how_to_connect(server)
    return server


def print_servers(whole: Cluster, database: str = "test") -> None:
    """Of several, whichever serve."""
    if whole.has_several() and whole.serving_computes():
        in_database = "" if database == "test" else f" -D {database}"
        print_table(compute_servers.table_of_addresses(whole, f"./strata sql{folder_option(whole.data)}{in_database}"))
        client = shutil.which("mariadb") or paths.relative(CLIENT)
        console.print(f"  {client} -h 127.0.0.1 -P <port> -u root {database}", markup=False)


def data_option(server: Server) -> str:
    """What has to be added to a command so that it means this server."""
    return folder_option(server.data)


def folder_option(data: Path) -> str:
    return "" if data == paths.DATA_DEFAULT == last_folder.last() else f" --data {paths.relative(data)}"


def print_how_to_connect(server: Server, database: str = "test") -> None:
    option = data_option(server)
    console.print(f"  ./strata sql{option}{'' if database == 'test' else f' -D {database}'}", markup=False)
    client = shutil.which("mariadb") or paths.relative(CLIENT)
    console.print(f"  {client} -h 127.0.0.1 -P {server.settings().port} -u root {database}", markup=False)


def down(data: Path, wipe: bool, lose_local_tables: bool = False) -> None:
    if Cluster(data).exists():
        cluster_cmd.down(data, wipe, lose_local_tables)
        return
    server = Server(data)
    if server.pid() is None:
        console.print("not running")
    else:
        clean = server.stop()
        console.print("stopped" if clean else "[yellow]did not stop in time; killed[/] (recovery runs at the next start)")
    if wipe and server.data.exists():
        server.wipe()
        console.print(f"removed {paths.relative(server.data)}")


def _serving(data: Path, on: str | None) -> Server:
    """A cluster's folder means the compute node that serves, wherever it is; where all of them serve, the one named, or the first
    one."""
    cluster = Cluster(data)
    if on is not None:
        if not cluster.exists():
            raise StrataError(f"--on {on} is for a cluster, and {paths.relative(data.resolve())} holds none")
        return compute_servers.named(cluster, on)
    name = cluster.serving_compute() if cluster.exists() else None
    return cluster.computes[name] if name else Server(data)


def sql(data: Path, statement: str | None, database: str, options: Sequence[str] = (), on: str | None = None) -> NoReturn:
    """Becomes the mariadb client, with further options of its own; statements come from -e, from a pipe, or from the terminal."""
    server = _serving(data, on)
    if server.pid() is None:
        what = f"{on} does not run" if on else f"no server runs on {paths.relative(server.data)}"
        raise StrataError(f"{what}; start it with ./strata up")
    charsets = paths.MARIADB_ROOT / "usr" / "share" / "mysql" / "charsets"
    command = [str(CLIENT), "--no-defaults", f"--socket={server.socket}", "--user=root", f"--character-sets-dir={charsets}"]
    command += ["--default-character-set=utf8mb4"]
    if statement is not None:
        command += ["--table"] if sys.stdout.isatty() else []
        command += ["--execute", statement]
    command += [*options, f"--database={database}"]
    sys.stdout.flush()
    os.execv(command[0], command)
