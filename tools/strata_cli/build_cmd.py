"""`./strata build`: CMake presets, Ninja, ccache."""

import re
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import paths, setup_cmd
from .shell import JOBS, Outcome, StrataError, console, nice, run_logged

TELL_EVERY_S = 30.0  # Where no progress bar can be drawn.


class BuildType(StrEnum):
    release = "release"
    debug = "debug"
    asan = "asan"
    tsan = "tsan"
    fuzz = "fuzz"


def build(build_type: BuildType, targets: tuple[str, ...] = ()) -> None:
    outcome = try_build(build_type, targets)
    if not outcome.ok:
        console.print(outcome.tail(40), markup=False)
        raise StrataError(f"the {build_type} build failed; whole output in {paths.relative(outcome.log)}")
    plugin = paths.plugin_path(build_type)
    made = paths.relative(plugin) if plugin.exists() else f"{paths.relative(paths.preset_dir(build_type))} (no plugin)"
    console.print(f"  [green]ok[/]  built {made} in {outcome.seconds:.0f} s")


# Clones of the project share compiled objects: paths below the root do not count. Without the third, ccache keeps nothing
# that uses a precompiled header.
CCACHE_ENV = {
    "CCACHE_BASEDIR": str(paths.ROOT),
    "CCACHE_NOHASHDIR": "1",
    "CCACHE_SLOPPINESS": "pch_defines,time_macros",
}


def try_build(
    build_type: BuildType, targets: tuple[str, ...] = (), *, keep_going: bool = False, timeout_s: float = 3600
) -> Outcome:
    """Configures and builds; what it prints goes to build/logs/build-<type>.log."""
    configured = configure(build_type)
    if not configured.ok:
        return configured
    return build_configured(build_type, targets, keep_going=keep_going, timeout_s=timeout_s)


def _log(build_type: BuildType) -> Path:
    return paths.LOGS / f"build-{build_type}.log"


def configure(build_type: BuildType) -> Outcome:
    """Begins the log anew."""
    setup_cmd.ensure_setup()
    without_plugin = [] if (paths.ROOT / "mariadb" / "CMakeLists.txt").exists() else ["-DSTRATA_WITH_MARIADB=OFF"]
    return run_logged(nice(["cmake", "--preset", build_type, *without_plugin]), _log(build_type), timeout_s=600)


def build_configured(
    build_type: BuildType, targets: Sequence[str] = (), *, keep_going: bool = False, timeout_s: float = 3600
) -> Outcome:
    command = nice(["cmake", "--build", "--preset", build_type, "-j", str(JOBS)])
    if targets:
        command += ["--target", *targets]
    if keep_going:
        command += ["--", "-k", "0"]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"building {build_type}", total=None)

        told = 0.0

        def on_line(line: str) -> None:
            nonlocal told
            if match := re.match(r"\[(\d+)/(\d+)\]", line):
                done, total = int(match[1]), int(match[2])
                progress.update(task, completed=done, total=total)
                if not console.is_terminal and time.monotonic() - told >= TELL_EVERY_S:
                    console.print(f"  building {build_type}: {done} of {total} steps", markup=False)
                    told = time.monotonic()

        return run_logged(command, _log(build_type), env=CCACHE_ENV, timeout_s=timeout_s, on_line=on_line, append=True)
