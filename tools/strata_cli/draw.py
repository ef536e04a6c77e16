"""What a test run draws from the commit it runs on: seeds and shares of what is too much for each run.

Every commit tests another part, the same commit always the same, and over many commits everything has its turn.
"""

import hashlib
import random
from dataclasses import dataclass

from . import paths
from .profile_list import OF_ONE_WRITER
from .shell import capture

OUTSIDE_GIT = "0"
SEEDS = 1_000_000
BINLOG_SHARE = 0.5
KILLS_SHARE = 0.5
END_TO_END_SHARE = 0.22  # of the files
TIDY_SHARE = 0.07  # of the sources
SANITIZED_SHARE = 0.2  # of the test programs under ASan, of the others as many under TSan
SPIN_SHARE = 0.35  # of the protocol models' checks
SEVERAL_SHARE = 0.15  # of MariaDB's tests for several servers


@dataclass(frozen=True)
class Draw:
    commit: str
    crash_seed: int
    errors_seed: int
    cluster_seed: int  # Seeds belong to the profiles in turn, so that it also says which of them get most of the time.
    history_seed: int
    differential_seed: int
    suite_profile: str  # The suite of our own runs on storage nodes of this profile, too.
    crash_binlog: str  # "on": every run of the crash campaign with a binary log; "draw": some, by their seeds
    e2e_binlog: bool
    stress_seed: int
    stress_kills: bool  # Or nobody is killed.

    def again(self) -> str:
        return f"./strata test --draw {self.commit}"

    def takes_end_to_end(self, file: str) -> bool:
        return takes(self.commit, file, END_TO_END_SHARE)

    def takes_under_asan(self, program: str) -> bool:
        return takes(self.commit, program, SANITIZED_SHARE)

    def takes_under_tsan(self, program: str) -> bool:
        return takes(self.commit, program, 2 * SANITIZED_SHARE) and not self.takes_under_asan(program)

    def takes_on_several(self, test: str) -> bool:
        return takes(self.commit, test, SEVERAL_SHARE)

    def takes_model(self, name: str) -> bool:
        return takes(self.commit, name, SPIN_SHARE)


def takes(commit: str, name: str, share: float) -> bool:
    """Whether a run on this commit takes this one of very many: each by itself, so that a new one changes no other's turn."""
    digest = hashlib.sha256(f"{commit} {name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


def make_draw(commit: str) -> Draw:
    rng = random.Random(f"draw {commit}")

    def seed() -> int:
        return rng.randrange(1, SEEDS)

    return Draw(
        commit,
        crash_seed=seed(),
        errors_seed=seed(),
        cluster_seed=seed(),
        history_seed=seed(),
        differential_seed=seed(),
        suite_profile=rng.choice(OF_ONE_WRITER),
        crash_binlog="on" if rng.random() < BINLOG_SHARE else "draw",
        e2e_binlog=rng.random() < BINLOG_SHARE,
        stress_seed=seed(),
        stress_kills=rng.random() < KILLS_SHARE,
    )


def commit_here() -> str:
    """Of the checkout; outside git always the same."""
    try:
        found = capture(["git", "-C", paths.ROOT, "rev-parse", "HEAD"])
    except OSError:
        return OUTSIDE_GIT
    return found.stdout.strip() if found.returncode == 0 else OUTSIDE_GIT
