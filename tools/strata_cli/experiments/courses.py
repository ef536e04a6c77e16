"""What the courses of several papers' experiments have in common: time that is dilated or cannot be, runs that are void, a lock
against what would disturb, and loads whose rate is known of each second while something is done to their server."""

import fcntl
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, Self, TypeVar

from .. import dilation, mariadb_packages, paths
from ..dilation import Wish
from ..shell import StrataError, console

VOID_REPEATS = 2
NODE_LEASE_S = 10  # as storage nodes have it by themselves
QUIET_S = 60.0
COMMIT_LIMIT_S = 300.0
LOOK_S = 0.01
SAME_RATE = 0.9
SAME_RATE_S = 3  # For so long, to count.
EVERY_SECOND = "--report-interval=1"  # has sysbench say what EACH_SECOND finds
EACH_SECOND = re.compile(r"^\[ \d+s \] thds: \d+ tps: ([\d.]+)", re.MULTILINE)


class Judged(Protocol):
    @property
    def void(self) -> str:
        """Why; empty: it is not."""


class Dilatable(Protocol):
    """A plan of which time can be dilated, or why it cannot."""

    @property
    def name(self) -> str: ...
    @property
    def why_not_dilated(self) -> str:
        """Empty: its times can be emulated."""

    def wish(self) -> Wish: ...
    def changed(self, settings: Mapping[str, object]) -> Self: ...


D = TypeVar("D", bound=Dilatable)
J = TypeVar("J", bound=Judged)


def possible(plan: D, folder: Path) -> tuple[D, list[str]]:
    """The plan, without dilation where programs cannot be dilated, and why. `folder`: for a trial."""
    if not plan.wish().dilated:
        return plan, []
    if plan.why_not_dilated:
        raise StrataError(f"{plan.name} cannot be dilated: {plan.why_not_dilated}")
    programs: list[str | Path] = [mariadb_packages.mariadbd(), paths.storenode_path("release")]
    programs += [paths.memnode_path("release"), "sysbench"]
    why = dilation.why_impossible(programs, folder)
    if why is None:
        return plan, []
    console.print(f"[yellow]not dilated:[/] {why}; all figures are in real time")
    undilated = plan.changed({"dilation": 1.0, "cores": {}})
    return undilated, [f"Not dilated, although it was to be: {why}; all figures in real time."]


def not_void(measure: Callable[[], J]) -> J:
    """A run that is not, if there is one."""
    for _ in range(VOID_REPEATS):
        run = measure()
        if not run.void:
            return run
        console.print(f"  void, repeated: {run.void}")
    return measure()


@contextmanager
def undisturbed(lock: Path | None) -> Iterator[None]:
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- loads that go on ---------------------------------------------------------------------------------------------


def warm_up_s(series: list[float], before: float, back_s: float) -> float:
    """From the first commit until the rate is nearly what it was, in that second and for some seconds on average; as long as was
    looked if it never is."""
    begin = int(back_s)
    for second in range(begin, len(series) - SAME_RATE_S + 1):
        here = series[second : second + SAME_RATE_S]
        if min(here[0], sum(here) / SAME_RATE_S) >= SAME_RATE * before:
            return max(0.0, second - back_s)
    return max(0.0, len(series) - back_s)


def each_second(log: Path) -> list[float]:
    return [float(rate) for rate in EACH_SECOND.findall(log.read_text())]


def series_of(run: Callable[[int], Path], seconds: int) -> list[float]:
    """Of a load that ends when it loses its server, and is started again until its time is over: no transaction in between.

    `run`: for at most so many seconds; returns what it said, of each second."""
    series, began = [0.0] * seconds, time.monotonic()
    while (left := seconds - (time.monotonic() - began)) >= 1:
        second = seconds - math.ceil(left)
        for rate in each_second(run(int(left))):
            if second < seconds:
                series[second] = rate
            second += 1
    return series[: seconds - 1]  # sysbench seldom says anything of its last one.


class Background:
    """A load that goes on while something is done to its server."""

    def __init__(self, load: Callable[[], list[float]]) -> None:
        self._series: list[float] | None = None
        self._error: StrataError | None = None
        self._thread = threading.Thread(target=self._run, args=(load,), daemon=True)
        self._thread.start()

    def _run(self, load: Callable[[], list[float]]) -> None:
        try:
            self._series = load()
        except StrataError as error:
            self._error = error

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)
        if not self._thread.is_alive():
            raise self._error or StrataError("the load ended before its time")

    def series(self) -> list[float]:
        self._thread.join()
        if self._series is None:
            raise self._error or StrataError("the load did not end well")
        return self._series
