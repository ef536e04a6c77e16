"""The protocol models of tests/spin, checked by `spin`: the right one has no error in any interleaving, a broken one has."""

import re
from dataclasses import dataclass
from pathlib import Path

from . import paths
from .shell import Outcome, nice, run_logged

MODELS = paths.ROOT / "tests" / "spin"
DEPTH = 200_000
TIME_LIMIT_S = 300


@dataclass(frozen=True)
class Check:
    model: str
    name: str
    defines: tuple[str, ...] = ()
    must_fail: bool = False
    all_go_on: bool = False  # a state in which nothing can happen, and somebody waits, is an error, too


LOG_QUORUM_BUGS = (
    "BUG_NO_PROMISE",
    "BUG_SHORTEST_LOG",
    "BUG_LENGTH_BEFORE_EPOCH",
    "BUG_EARLY_ACKNOWLEDGEMENT",
    "BUG_NO_TRUNCATION",
    "BUG_SMALL_RECOVERY_QUORUM",
)

REPLACE = ("-DREPLACE", "-DLEN=1")
REPLACE_BUGS = ("BUG_NEW_NODE_VOTES", "BUG_NEW_NODE_PROMISES_NOTHING", "BUG_PLACEMENT_BEFORE_EPOCH")

# Without the last node: 2 of 2, and 2 of 3.
REMOVE_FROM_3 = ("-DREMOVE", "-DLEN=1")
REMOVE_FROM_4 = ("-DREMOVE", "-DN=4", "-DW=3", "-DEPOCHS=2", "-DLEN=1")

TIT_SLOT_BUGS = ("BUG_MARK_AFTER_FETCH", "BUG_NO_TAG", "BUG_SHOWN_BEFORE_DURABLE", "BUG_NO_WAIT_FOR_AN_UNKNOWN_CTS")
TIT_FENCE_BUGS = (
    "BUG_NOBODY_IS_ASKED",
    "BUG_THE_SILENT_ARE_FORGOTTEN",
    "BUG_LEASE_BEFORE_FENCE",
    "BUG_LEASE_FROM_THE_REPLY",
    "BUG_TABLE_BEFORE_LEASE",
    "BUG_TABLE_IS_NOT_LOOKED_AT_AGAIN",
)
WAITERS_BUGS = (
    "BUG_LOOK_BEFORE_REGISTERING",
    "BUG_LOOK_BEFORE_THE_WORD",
    "BUG_WORD_BEFORE_OUTCOME",
    "BUG_WORD_IS_CLEARED_LATE",
    "BUG_SLOT_IS_NOT_CHECKED",
    "BUG_ANSWER_BEFORE_NOTING",
    "BUG_ADOPTER_IS_NOT_TOLD",
    "BUG_CROSSING_TURN_IS_KEPT",
)
CONSULT_BUGS = (
    "BUG_ANSWERS_ARE_NOT_AWAITED",
    "BUG_ANSWER_BEFORE_THE_FLAG",
    "BUG_NEW_SERVER_RUNS_BEFORE_IT_HEARS",
    "BUG_TAKEN_BACK_WHILE_HELD",
    "BUG_FLAG_BEFORE_THE_MARK",
    "BUG_READ_BEFORE_REGISTERING",
)

PLOCK_BUGS = (
    "BUG_GRANT_BEFORE_PUT",
    "BUG_PUT_BEFORE_LOG",
    "BUG_UNNUMBERED_GRANT",
    "BUG_UNNUMBERED_REPORT",
    "BUG_NOT_HELD_OF_WHAT_IS_THERE",
    "BUG_NOT_AWAITED",
)
PLOCK_COPIES = ("-DCOPIES",)

# A client that gives up waiting unties what would wait for ever: what is about that has one that does not.
FREEZE_TWICE = ("-DLOCKS=2", "-DQUIET")
FREEZE_STARTS = ("-DSTARTS",)
FREEZE_PATIENT = ("-DPATIENT=1",)
FREEZE_OF_BOTH = ("-DOTHER_LOCKS=1", "-DPATIENT=3")
FREEZE_CHECKS = (
    ("one asks", ()),
    ("one asks twice", FREEZE_TWICE),
    ("one waits", FREEZE_PATIENT),
    ("both wait", FREEZE_OF_BOTH),
    ("one starts", FREEZE_STARTS),
    ("one starts, the other waits", (*FREEZE_STARTS, *FREEZE_PATIENT)),
    ("one starts, both wait", (*FREEZE_STARTS, *FREEZE_OF_BOTH)),
    ("one starts, the other is killed", (*FREEZE_STARTS, *FREEZE_PATIENT, "-DKILLED=0")),
    ("the one that asks is killed", ("-DKILLED=0",)),
    ("the other one is killed", ("-DKILLED=1",)),
    ("one waits, the other is killed", (*FREEZE_PATIENT, "-DKILLED=1")),
)
FREEZE_BUGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("BUG_GIVES_UP_WITHOUT_STANDING_STILL", ()),
    ("BUG_STILL_ENDS_WHILE_GIVING_UP", FREEZE_TWICE),
    ("BUG_USED_WHILE_GIVEN_UP", ()),
    ("BUG_GUARD_BEFORE_NAME", ()),
    ("BUG_COMMITS_WAIT_AT_ONCE", FREEZE_PATIENT),
    ("BUG_GUARD_IS_WAITED_FOR", FREEZE_PATIENT),
    ("BUG_ENDED_SESSION_COUNTS", FREEZE_TWICE),
    ("BUG_LET_GO_WHILE_LOCKED", ()),
    ("BUG_STAYS_STILL", ()),
    ("BUG_NEW_SERVER_DOES_NOT_WAIT", FREEZE_STARTS),
    ("BUG_GIVES_UP_WHILE_IT_STARTS", FREEZE_STARTS),
    ("BUG_SECOND_NAME_FIRST", (*FREEZE_STARTS, *FREEZE_PATIENT)),
    ("BUG_NEW_SERVER_SERVES_ITSELF", (*FREEZE_STARTS, *FREEZE_OF_BOTH)),
    ("BUG_FREE_BEFORE_THE_LEASE_IS_OVER", ("-DKILLED=1",)),
    ("BUG_NEVER_TAKEN_OVER", (*FREEZE_PATIENT, "-DKILLED=1")),
)

CHECKS = (
    Check("log_quorum", "2 of 3"),
    Check("log_quorum", "all of 3", ("-DW=3",)),
    Check("log_quorum", "2 of 3 one replaced", REPLACE),
    *(Check("log_quorum", bug.lower(), (*REPLACE, f"-D{bug}"), must_fail=True) for bug in REPLACE_BUGS),
    Check("log_quorum", "2 of 3 one taken out", REMOVE_FROM_3),
    Check("log_quorum", "3 of 4 one taken out", REMOVE_FROM_4),
    Check("log_quorum", "removed with one quorum", (*REMOVE_FROM_3, "-DBUG_REMOVED_WITH_ONE_QUORUM"), must_fail=True),
    Check("log_quorum", "removed by old holder", (*REMOVE_FROM_4, "-DBUG_REMOVED_BY_OLD_HOLDER"), must_fail=True),
    Check("log_quorum", "old holder follows", (*REMOVE_FROM_4, "-DBUG_OLD_HOLDER_FOLLOWS"), must_fail=True),
    *(Check("log_quorum", bug.lower(), (f"-D{bug}",), must_fail=True) for bug in LOG_QUORUM_BUGS),
    Check("tit_slot", "three in a slot"),
    *(Check("tit_slot", bug.lower(), (f"-D{bug}",), must_fail=True) for bug in TIT_SLOT_BUGS),
    Check("tit_fence", "one other"),
    *(Check("tit_fence", bug.lower(), (f"-D{bug}",), must_fail=True) for bug in TIT_FENCE_BUGS),
    Check("waiters", "two in a slot"),
    *(Check("waiters", bug.lower(), (f"-D{bug}",), must_fail=True) for bug in WAITERS_BUGS),
    Check("consult", "two writers"),
    *(Check("consult", bug.lower(), (f"-D{bug}",), must_fail=True) for bug in CONSULT_BUGS),
    Check("plock", "two servers", ("-DGRANTS=4",)),
    Check("plock", "copies are kept", (*PLOCK_COPIES, "-DGRANTS=3")),
    *(Check("plock", bug.lower(), (f"-D{bug}",), must_fail=True) for bug in PLOCK_BUGS),
    Check("plock", "flag is believed", (*PLOCK_COPIES, "-DBUG_FLAG_IS_BELIEVED"), must_fail=True),
    *(Check("freeze", name, defines, all_go_on=True) for name, defines in FREEZE_CHECKS),
    *(Check("freeze", bug.lower(), (*defines, f"-D{bug}"), must_fail=True, all_go_on=True) for bug, defines in FREEZE_BUGS),
)


def verdict(output: str) -> int | None:
    """How many errors pan found; nothing when it did not search everything it was asked to."""
    match = re.search(r"\berrors: (\d+)", output)
    if not match:
        return None
    incomplete = "max search depth too small" in output or "Search not completed" in output
    return int(match[1]) if int(match[1]) > 0 or not incomplete else None


def problem(check: Check) -> str:
    """Empty when the model says what it should."""
    folder = paths.BUILD / "spin" / f"{check.model}-{re.sub(r'[^a-z0-9]+', '-', check.name)}"
    folder.mkdir(parents=True, exist_ok=True)
    log = paths.LOGS / f"spin-{folder.name}.log"
    steps: list[list[str | Path]] = [
        ["spin", "-a", *check.defines, MODELS / f"{check.model}.pml"],
        ["gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"],
        [folder / "pan", *([] if check.all_go_on else ["-E"]), f"-m{DEPTH}"],
    ]
    outcome = Outcome(1, 0, log)
    for step in steps:
        outcome = run_logged(nice(step), log, cwd=folder, timeout_s=TIME_LIMIT_S, append=step is not steps[0])
        if not outcome.ok:
            return f"{check.model}, {check.name}: {outcome.tail(10)}"
    errors = verdict(log.read_text(errors="replace"))
    if errors is None:
        return f"{check.model}, {check.name}: the search is not complete\n{outcome.tail(10)}"
    if check.must_fail:
        return "" if errors else f"{check.model}, {check.name}: the planted error was not found"
    return f"{check.model}, {check.name}: an invariant does not hold\n{outcome.tail(25)}" if errors else ""
