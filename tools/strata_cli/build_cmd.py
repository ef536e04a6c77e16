"""`./strata build`: CMake presets, Ninja, ccache."""

import re
import time
from enum import StrEnum

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
    setup_cmd.ensure_setup()
    log = paths.LOGS / f"build-{build_type}.log"
    without_plugin = [] if (paths.ROOT / "mariadb" / "CMakeLists.txt").exists() else ["-DSTRATA_WITH_MARIADB=OFF"]
    configured = run_logged(nice(["cmake", "--preset", build_type, *without_plugin]), log, timeout_s=600)
    if not configured.ok:
        return configured
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

        return run_logged(command, log, env=CCACHE_ENV, timeout_s=timeout_s, on_line=on_line, append=True)
