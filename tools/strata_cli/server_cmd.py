"""`./strata up | down | status | sql`: one private server per data folder."""

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import pymysql

from . import mariadb_packages, paths, setup_cmd
from .server import Server, Settings, choose_port
from .shell import StrataError, console, errors

PROFILES = ("monolithic",)


def check_profile(profile: str) -> None:
    if profile not in PROFILES:
        raise StrataError(f"profile '{profile}' is not available; there is: {', '.join(PROFILES)}")


def up(profile: str, data: Path, port: int | None, *, quiet: bool = False) -> Server:
    check_profile(profile)
    setup_cmd.ensure_setup()
    server = Server(data)
    before = server.settings()
    if server.exists() and server.settings_file.exists() and before.profile != profile:
        raise StrataError(f"{paths.relative(server.data)} holds a database of profile '{before.profile}'")
    if server.pid() is not None:
        console.print(f"  already running (pid {server.pid()}, port {before.port})")
        return server
    if not paths.plugin_path("release").exists():
        errors.print("[yellow]warning:[/] ha_strata.so is not built (./strata build); starting with InnoDB only")
    chosen = choose_port(port, before.port)
    fresh = not server.exists()
    seconds = server.start(Settings(profile=profile, port=chosen))
    server.query("CREATE DATABASE IF NOT EXISTS test")
    server.disown()
    made = "created and started" if fresh else "started"
    console.print(f"  {made} in {seconds:.1f} s: pid {server.pid()}, 127.0.0.1:{chosen}, profile {profile}")
    if paths.plugin_path("release").exists() and not server.has_strata():
        errors.print(f"[yellow]warning:[/] the server runs without STRATA; the reason is in {paths.relative(server.log)}")
    if not quiet:
        print_how_to_connect(server)
    return server


def data_option(server: Server) -> str:
    """What has to be added to a command so that it means this server."""
    return "" if server.data == paths.DATA_DEFAULT else f" --data {paths.relative(server.data)}"


def print_how_to_connect(server: Server, database: str = "test") -> None:
    option = data_option(server)
    console.print(f"  ./strata sql{option}{'' if database == 'test' else f' -D {database}'}", markup=False)
    console.print(f"  mariadb -h 127.0.0.1 -P {server.settings().port} -u root {database}", markup=False)


def down(data: Path, wipe: bool) -> None:
    server = Server(data)
    if server.pid() is None:
        console.print("not running")
    else:
        clean = server.stop()
        console.print("stopped" if clean else "[yellow]did not stop in time; killed[/] (recovery runs at the next start)")
    if wipe and server.data.exists():
        server.wipe()
        console.print(f"removed {paths.relative(server.data)}")


def status(data: Path, as_json: bool) -> int:
    """Exit code 0: running; 3: not running (as in init scripts)."""
    facts = _facts(Server(data))
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        for name, value in facts.items():
            if isinstance(value, dict):
                console.print(f"{name}:")
                for inner, number in value.items():
                    console.print(f"  {inner:<40} {number}")
            else:
                console.print(f"{name:<12} {value}")
    return 0 if facts["running"] else 3


def _facts(server: Server) -> dict[str, Any]:
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
        facts["strata"] = "active" if server.has_strata() else "not loaded"
        shown = server.query(
            "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'strata%' OR Variable_name IN ('Uptime', 'Threads_connected')"
        )
        facts["variables"] = {str(name): str(value) for name, value in shown}
    except pymysql.MySQLError as error:
        facts["strata"] = f"no answer: {error}"
    return facts


def sql(data: Path, statement: str | None, database: str) -> NoReturn:
    """Becomes the mariadb client; statements come from -e, from a pipe, or from the terminal."""
    server = Server(data)
    if server.pid() is None:
        raise StrataError(f"no server runs on {paths.relative(server.data)}; start it with ./strata up")
    client = paths.MARIADB_ROOT / "usr" / "bin" / "mariadb"
    charsets = paths.MARIADB_ROOT / "usr" / "share" / "mysql" / "charsets"
    command = [str(client), "--no-defaults", f"--socket={server.socket}", "--user=root", f"--character-sets-dir={charsets}"]
    command += ["--default-character-set=utf8mb4"]
    if statement is not None:
        command += ["--table"] if sys.stdout.isatty() else []
        command += ["--execute", statement]
    command.append(database)
    sys.stdout.flush()
    os.execv(command[0], command)
