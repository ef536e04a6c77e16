"""`./strata logs`: the end of what the processes of a data folder have logged."""

import time
from collections.abc import Sequence
from pathlib import Path

from . import paths
from .cluster import Cluster
from .process import BackgroundProcess
from .server import Server
from .shell import StrataError, console

LOOK_S = 0.2
TAIL_BYTES_MAX = 1 << 20  # Of one log; a line is seldom longer than some hundred bytes.


def logs(data: Path, name: str | None, lines: int, follow: bool) -> None:
    chosen = _chosen(_parts(data), name, data)
    places = {part.name: _size(part.log) for part in chosen}
    for part in chosen:
        if len(chosen) > 1:
            console.print(f"[bold]{part.name}[/]  {paths.relative(part.log)}")
        for line in tail(part.log, lines):
            console.print(line, markup=False)
    while follow:
        time.sleep(LOOK_S)
        for part in chosen:
            places[part.name] = _show_new(part, places[part.name], with_name=len(chosen) > 1)


def _parts(data: Path) -> dict[str, BackgroundProcess]:
    cluster = Cluster(data)
    if cluster.exists():
        return cluster.parts()
    server = Server(data)
    if not server.exists():
        place = paths.relative(server.data)
        raise StrataError(f"{place} holds no server and no cluster; ./strata up --data {place} makes one")
    server.name = "server"
    return {"server": server}


def _chosen(parts: dict[str, BackgroundProcess], name: str | None, data: Path) -> Sequence[BackgroundProcess]:
    if name is None:
        return [part for part in parts.values() if part.log.exists()]
    if name not in parts:
        raise StrataError(f"there is no '{name}' in {paths.relative(data.resolve())}; there is: {', '.join(parts)}")
    return [parts[name]]


def tail(log: Path, lines: int) -> list[str]:
    """The last lines, of a log of any length."""
    if lines == 0 or not log.exists():
        return []
    with log.open("rb") as source:
        source.seek(max(0, _size(log) - TAIL_BYTES_MAX))
        return source.read().decode(errors="replace").splitlines()[-lines:]


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _show_new(part: BackgroundProcess, seen: int, *, with_name: bool) -> int:
    """Shows the whole lines behind `seen`; returns where they end. A log that became shorter is shown from its beginning."""
    size = _size(part.log)
    if size == seen:
        return seen
    begin = seen if size > seen else 0
    with part.log.open("rb") as source:
        source.seek(begin)
        added = source.read(size - begin)
    whole = added[: added.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        console.print(f"{part.name}: {line}" if with_name else line, markup=False)
    return begin + len(whole)
