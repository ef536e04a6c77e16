"""`./strata backup` of a cluster: the data folder of one storage node as kill -9 would have left it, and the registry's keys.

copy the node's folder                                                   the cluster works
stop the node (SIGSTOP), copy what has changed since, read the registry  the others go on; compute is not asked anything
let it go on, checksums of every file, manifest.json                     the node catches up

Storage nodes hold all of a database, each by itself: log and pages. So what one has, once its log reaches as far as any other's
did when the backup began, is the database as a crash of everything would have left it (docs/adr/).
"""

import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from . import backup_manifest, mariadb_packages, node_changes, paths, registry_copy
from .backup_manifest import ClusterManifest
from .changing_files import ChangingFiles
from .cluster import CLUSTER_NAME, Cluster
from .shell import StrataError, console, errors
from .storage_node import StorageNode
from .waiting import wait_until

CATCH_UP_S = 60.0
HELD_S = 10.0  # For all its threads to stop.
DRAIN_S = 0.2  # For writes that the kernel has and the node has not seen the end of.
TRIES = 10
AGAIN_S = 0.5
# Lets the node go on when this process ends, however it does.
WAKER = "import os, signal, sys; sys.stdin.read(); os.kill(int(sys.argv[1]), signal.SIGCONT)"


def backup(cluster: Cluster, to: Path, as_json: bool) -> None:
    started = time.monotonic()
    to = to.resolve()
    if to.exists():
        raise StrataError(f"{to} is there already; name a folder that is not")
    node, log_end = _choose(cluster)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.mkdir()
    try:
        columns = (TextColumn("  {task.description:24}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=errors, disable=as_json or not errors.is_terminal) as progress:
            manifest, held_s = _make(cluster, node, log_end, to, progress)
    except OSError as error:
        shutil.rmtree(to, ignore_errors=True)
        raise StrataError(f"the backup failed: {error}") from None
    except BaseException:
        shutil.rmtree(to, ignore_errors=True)
        raise
    made = {
        "folder": str(to),
        "bytes": manifest.bytes(),
        "files": len(manifest.files),
        "profile": manifest.profile,
        "node": node.name,
        "log_end": manifest.log_end,
        "node_held_s": round(held_s, 3),
        "seconds": round(time.monotonic() - started, 3),
    }
    if as_json:
        print(json.dumps(made))
        return
    console.print(
        f"backed up {node.name} into {paths.relative(to)}: {manifest.bytes() / 1e6:.1f} MB, {len(manifest.files)} files",
        markup=False,
    )
    console.print(f"  {node.name} was held for {held_s * 1000:.0f} ms; the others went on", markup=False)
    console.print(f"  ./strata restore {paths.relative(to)} --to <folder>", markup=False)


def _choose(cluster: Cluster) -> tuple[StorageNode, int]:
    """The storage node that is furthest, and how far the log is that clients have been answered for."""
    found = node_changes.current(cluster)
    node_changes.check_others(cluster, list(found.nodes))
    if len(found.nodes) - 1 < found.write_quorum:
        raise StrataError(
            f"there are {len(found.nodes)} storage nodes and every commit needs {found.write_quorum}: none can be held for a"
            " moment; ./strata node add adds one"
        )
    states = {name: node_changes.log_state(cluster.storage[name]) for name in found.nodes}
    known = {name: state for name, state in states.items() if state is not None}
    if not known:
        raise StrataError("the storage nodes have no log yet: there is nothing to back up")
    furthest = max(known, key=lambda name: known[name].end)
    return cluster.storage[furthest], max(state.durable for state in known.values())


def _make(cluster: Cluster, node: StorageNode, log_end: int, to: Path, progress: Progress) -> tuple[ClusterManifest, float]:
    place = to / backup_manifest.NODE
    place.mkdir()
    files = ChangingFiles(node.data, place)
    task = progress.add_task(f"files of {node.name}", total=None)
    files.copy(writers_held=False)
    wait_until(lambda: _end_of_log(node) >= log_end, CATCH_UP_S)
    end, keys, held_s = _copy_held(cluster, node, files)
    if end < log_end:
        raise StrataError(f"{node.name} has not come as far as the others in {CATCH_UP_S:g} s; see ./strata status")
    progress.update(task, total=1, completed=1)
    settings = cluster.settings()
    manifest = ClusterManifest(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        mariadb=mariadb_packages.version(),
        profile=settings.profile,
        node=node.name,
        log_end=end,
        keys=keys,
        memory=[settings.memory[name].memory for name in settings.memory_in_use],
        memory_backup=settings.memory_backup,
        buffer_pool=settings.buffer_pool,
    )
    total = sum(path.stat().st_size for path in backup_manifest.files_in(to))
    task = progress.add_task("checksums", total=total)
    manifest.files, manifest.folders = backup_manifest.describe_files(to, lambda count: progress.advance(task, count))
    manifest.write(to)
    backup_manifest.sync_folder(to.parent)
    return manifest, held_s


def _copy_held(cluster: Cluster, node: StorageNode, files: ChangingFiles) -> tuple[int, dict[str, str], float]:
    """How far its log is, the registry's keys, and for how long the node was held."""
    port = cluster.settings().etcd_port
    for _ in range(TRIES):
        before = registry_copy.read(port, CLUSTER_NAME)
        end = _end_of_log(node)
        began = time.monotonic()
        with held(node):
            keys = registry_copy.read(port, CLUSTER_NAME)
            # Else the node may have dropped log below a checkpoint that we know nothing of, or lack pages that it counts on.
            if registry_copy.checkpoint(keys, CLUSTER_NAME) == registry_copy.checkpoint(before, CLUSTER_NAME):
                registry_copy.alone(keys, CLUSTER_NAME, node.name)  # So that a restore will not refuse them.
                files.copy(writers_held=True)
                return end, keys, time.monotonic() - began
        time.sleep(AGAIN_S)
    raise StrataError(f"checkpoints come so fast that {node.name} could not be held between two of them; try again later")


def _end_of_log(node: StorageNode) -> int:
    state = node_changes.log_state(node)
    return state.end if state is not None else 0


@contextlib.contextmanager
def held(node: StorageNode) -> Iterator[None]:
    """Its process does nothing meanwhile. It goes on afterwards, also when this one is killed."""
    pid = node.pid()
    if pid is None:
        raise StrataError(f"{node.name} does not run any more; see {node.log}")
    waker = subprocess.Popen([sys.executable, "-S", "-E", "-c", WAKER, str(pid)], stdin=subprocess.PIPE, start_new_session=True)
    try:
        os.kill(pid, signal.SIGSTOP)
        if not wait_until(lambda: _is_stopped(pid), HELD_S, every_s=0.002):
            raise StrataError(f"{node.name} (pid {pid}) could not be held within {HELD_S:g} s")
        time.sleep(DRAIN_S)
        yield
        if node.pid() != pid or not _is_stopped(pid):
            raise StrataError(f"{node.name} ended, or somebody let it go on, while its files were copied")
    except ProcessLookupError:
        raise StrataError(f"{node.name} does not run any more; see {node.log}") from None
    finally:
        waker.communicate()


def _is_stopped(pid: int) -> bool:
    try:
        states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return False
    return bool(states) and all(state == "T" for state in states)
