"""The crash campaign itself: it lets a safe engine pass and finds the losses of an unsafe one."""

import os
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest
from crash.clients import Clients
from crash.cluster_plan import (
    KINDS,
    MEMORY_KINDS,
    MEMORY_OF_TWO,
    MEMORY_SETUPS,
    NODES,
    OF_TWO_NODES,
    ClusterPlan,
    Strike,
    make_cluster_plan,
)
from crash.damage import damage_some_file
from crash.errors_plan import IO_RULES, make_errors_plan
from crash.fusion_clients import SeveralClients
from crash.fusion_plan import KINDS as FUSION_KINDS
from crash.fusion_plan import SERVERS, make_fusion_plan
from crash.plan import make_plan
from strata_cli import paths
from strata_cli.profile_list import BY_NAME, OF_ONE_WRITER
from strata_cli.server import TEST_BINLOG

SEED = 900_001  # Not the seeds of a campaign somebody else may be running.


def campaign(engine: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(paths.venv_bin("python3")), "-m", "crash", "--engine", engine, "--seed", str(SEED), *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{paths.ROOT}/tools:{paths.ROOT}/tests/e2e"}
    environment.pop(TEST_BINLOG, None)  # A run says itself whether it has one.
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    for folder in (paths.BUILD / "crash").glob("run-9000*"):
        shutil.rmtree(folder)
    return done


def test_an_engine_that_loses_nothing_passes() -> None:
    # Without DDL: after a kill in the middle of an ALTER, InnoDB of this server version refuses the table at times (error 1877).
    # Without XA ROLLBACK: it forgets the transaction's name before it ends it, and syncs the end of named ones only, so that one
    # whose rollback was acknowledged can be prepared again after a kill.
    done = campaign("InnoDB", "--runs", "2", "--no-ddl", "--no-xa-rollback", "--binlog", "on")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed"


def test_a_binary_log_that_misses_something_is_caught() -> None:
    done = campaign("InnoDB", "--runs", "1", "--no-ddl", "--binlog", "on", "--server-option=--binlog-ignore-db=crash")
    assert done.returncode == 1
    assert "only in the table" in done.stdout


def test_an_engine_that_does_not_sync_its_log_is_caught() -> None:
    # Without DDL, which makes InnoDB sync its log, and after which a run may end with error 1877 before anything is compared.
    done = campaign("InnoDB", "--runs", "6", "--no-ddl", "--server-option=--innodb-flush-log-at-trx-commit=0")
    assert done.returncode == 1, done.stdout
    assert "acknowledged transactions are lost" in done.stdout, done.stdout


def test_strata_without_its_log_sync_is_caught() -> None:
    done = campaign("STRATA", "--runs", "4", "--no-faults", "--power-loss", "--server-option=--strata-flush-log-at-commit=0")
    assert done.returncode == 1, done.stdout
    assert "acknowledged transactions are lost" in done.stdout, done.stdout


# --- on clusters ------------------------------------------------------------------------------------------------------

POINTS = ["commit_before_log", "wal_after_write", "recovery_after_redo", "page_write_half"]
POINTS += ["memnode_put_half", "memory_checkpoint_before_publish"]
POINTS += ["node_scan", "node_log_after_write", "node_copy_pages", "node_copy_whole"]


def plans(profile: str, count: int = 60) -> list[ClusterPlan]:
    return [make_cluster_plan(seed, profile, POINTS) for seed in range(count)]


def strikes(profile: str) -> list[Strike]:
    return [strike for plan in plans(profile) for round_ in plan.rounds for strike in round_.strikes]


def test_a_seed_says_everything() -> None:
    assert plans("logdb") == plans("logdb")
    assert len({plan.text() for plan in plans("logdb")}) > 50
    first = make_cluster_plan(7, "logdb", POINTS)
    cut = make_cluster_plan(7, "logdb", POINTS, faults_max=first.faults - 1)
    assert cut.rounds == first.rounds[: len(cut.rounds)] and 0 < cut.faults < first.faults


@pytest.mark.parametrize("profile", OF_ONE_WRITER)
def test_every_kind_comes_and_damage_comes_last(profile: str) -> None:
    memory = MEMORY_KINDS if BY_NAME[profile].has_memory_nodes else ()
    assert {strike.kind for strike in strikes(profile)} == {*KINDS, *memory, "corrupt"}
    for plan in plans(profile):
        kinds = [strike.kind for round_ in plan.rounds for strike in round_.strikes]
        assert "corrupt" not in kinds[:-1]
        assert all(round_.without in ("", *NODES) for round_ in plan.rounds)
    assert {plan.power_loss for plan in plans(profile)} == {plan.small for plan in plans(profile)} == {True, False}


@pytest.mark.parametrize("profile", OF_ONE_WRITER)
def test_only_points_that_are_passed_there(profile: str) -> None:
    points = {
        kind: {s.fault.split(":")[0] for s in strikes(profile) if s.kind == kind}
        for kind in ("compute_point", "compute_error", "node_point", "node_error", "node_wipe_point")
    }
    traits = BY_NAME[profile]
    of_memory = {"memory_checkpoint_before_publish"} if traits.has_memory_nodes else set()
    assert points["compute_point"] == points["compute_error"] == {"commit_before_log", "wal_after_write", *of_memory}
    assert points["node_error"] == points["node_point"]
    own = {"page_write_half"} if traits.has_one_version else {"node_scan"}
    own = {"page_write_half", "node_copy_pages"} if traits.pages_are_written else own
    assert points["node_point"] == {"node_log_after_write", *own}
    assert points["node_wipe_point"] == {"node_copy_pages", *([] if traits.pages_are_written else ["node_copy_whole"])}
    assert all(strike.fault == "recovery_after_redo:1" for strike in strikes(profile) if strike.kind == "recovery_point")
    for strike in strikes(profile):
        assert bool(strike.fault) == strike.kind.endswith(("_point", "_error", "_io"))
        may_be_two = strike.kind in MEMORY_OF_TWO
        assert may_be_two or bool(strike.other) == (strike.kind in OF_TWO_NODES)
        assert strike.node != strike.other or not strike.node


def test_memory_nodes_are_struck_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    before = plans("remote-disk")
    monkeypatch.setitem(BY_NAME, "pooled", replace(BY_NAME["remote-disk"], name="pooled", memory="kPool"))
    assert plans("remote-disk") == before  # A seed of another profile means what it meant.
    found = strikes("pooled")
    assert {strike.kind for strike in found} == {*KINDS, *MEMORY_KINDS, "corrupt"}
    assert {(plan.memory_nodes, plan.memory_backup) for plan in plans("pooled")} == set(MEMORY_SETUPS.values())
    for plan in plans("pooled"):
        struck = {n for r in plan.rounds for s in r.strikes if s.kind in MEMORY_KINDS for n in (s.node, s.other) if n}
        assert struck <= {f"memory-{number + 1}" for number in range(plan.memory_nodes)}
    assert any(strike.other for strike in found if strike.kind in MEMORY_OF_TWO)
    backup = make_cluster_plan(3, "pooled", POINTS, memory="backup")
    assert (backup.memory_nodes, backup.memory_backup) == (2, True)
    assert {(plan.memory_nodes, plan.memory_backup) for plan in plans("lego-sr")} == {(1, False), (2, False)}
    assert {strike.fault.split(":")[0] for strike in found if strike.kind == "memory_point"} == {"memnode_put_half"}
    assert any(strike.fault.startswith("memory_checkpoint_before_publish") for strike in found if strike.kind == "compute_point")
    slow = [plan for plan in plans("pooled") if {"memory_cut", "memory_slow"} & {s.kind for r in plan.rounds for s in r.strikes}]
    assert slow and all(plan.strikes_links for plan in slow)
    only = make_cluster_plan(3, "pooled", POINTS, only="memory_wipe")
    assert {strike.kind for round_ in only.rounds for strike in round_.strikes} == {"memory_wipe"}
    with pytest.raises(ValueError, match="memory_wipe is no kind of fault"):
        make_cluster_plan(3, "logdb", POINTS, only="memory_wipe")


def test_one_kind_or_one_point_only() -> None:
    takeover = make_cluster_plan(3, "logdb-mv", POINTS, only="takeover")
    assert {strike.kind for round_ in takeover.rounds for strike in round_.strikes} == {"takeover"}
    point = make_cluster_plan(3, "logdb-mv", POINTS, only="node_scan")
    assert {strike.fault.split(":")[0] for round_ in point.rounds for strike in round_.strikes} == {"node_scan"}
    with pytest.raises(ValueError, match="page_write_half"):
        make_cluster_plan(3, "logdb-mv", POINTS, only="page_write_half")


def test_all_kinds_come_to_several_servers() -> None:
    drawn = [make_fusion_plan(seed, POINTS) for seed in range(100)]
    assert drawn == [make_fusion_plan(seed, POINTS) for seed in range(100)]
    struck = [strike for plan in drawn for round_ in plan.rounds for strike in round_.strikes]
    assert {strike.kind for strike in struck} == set(FUSION_KINDS)
    assert {strike.servers[0] for strike in struck} == set(range(SERVERS))
    assert all(bool(strike.fault) == (strike.kind in ("server_point", "server_error")) for strike in struck)
    assert {strike.fault.split(":")[0] for strike in struck} == {"", "commit_before_log", "wal_after_write"}
    assert {plan.binlog for plan in drawn} == {plan.small for plan in drawn} == {True, False}
    assert {round_.end for plan in drawn for round_ in plan.rounds} == {"drain", "kill"}
    short = make_fusion_plan(3, POINTS, faults_max=2)
    assert short.faults == 2 and short.rounds[0].strikes[0] == drawn[3].rounds[0].strikes[0]
    one = make_fusion_plan(3, POINTS, only="etcd_kill")
    assert {strike.kind for round_ in one.rounds for strike in round_.strikes} == {"etcd_kill"}
    with pytest.raises(ValueError, match="node_scan"):
        make_fusion_plan(3, POINTS, only="node_scan")


def test_several_servers_may_refuse_what_their_leases_explain() -> None:
    clients = SeveralClients()
    lost = pymysql.err.InternalError(1296, "this server has no lease from the memory node at the moment")
    refused = pymysql.err.InternalError(1030, "something else")
    assert clients.excuses(lost) and not clients.excuses(refused)
    clients.tolerant = True
    assert clients.excuses(refused)
    assert not clients.excuses(pymysql.err.InternalError(1296, "damaged data"))
    assert not clients.excuses(pymysql.err.IntegrityError(1062, "duplicate"))
    with pytest.raises(pymysql.err.OperationalError):
        clients.connect()


def test_some_runs_keep_a_binary_log() -> None:
    assert {plan.binlog for plan in plans("logdb")} == {make_plan(seed, POINTS).binlog for seed in range(60)} == {True, False}
    for wanted in ("on", "off"):
        assert make_cluster_plan(1, "logdb", POINTS, binlog=wanted).binlog == make_plan(1, POINTS, binlog=wanted).binlog
        assert make_plan(1, POINTS, binlog=wanted).binlog == (wanted == "on")
    # The faults are the same with and without.
    assert make_plan(7, POINTS, binlog="on").rounds == make_plan(7, POINTS, binlog="off").rounds


def test_errors_come_everywhere() -> None:
    drawn = [make_errors_plan(seed, POINTS) for seed in range(200)]
    assert drawn == [make_errors_plan(seed, POINTS) for seed in range(200)]
    troubles = [trouble for plan in drawn for trouble in plan.troubles]
    assert {trouble.kind for trouble in troubles} == {"full", "io", "point"}
    assert {trouble.what.split("\n")[0] for trouble in troubles if trouble.kind == "io"} == set(IO_RULES)
    struck = {trouble.what.split(":")[0] for trouble in troubles if trouble.kind == "point"}
    assert struck == {"commit_before_log", "wal_after_write", "page_write_half"}
    assert any("rollback_half" in trouble.what for trouble in troubles if trouble.kind == "full")
    assert {trouble.kind for trouble in make_errors_plan(1, POINTS, only="io").troubles} == {"io"}
    only = make_errors_plan(1, POINTS, only="wal_after_write").troubles
    assert all(trouble.what.startswith("wal_after_write:") for trouble in only)


def test_a_client_goes_on_after_an_excused_error_and_may_be_told_to_roll_back() -> None:
    clients = Clients({1114}, kept_share=1.0)
    assert not clients.excuses(pymysql.err.OperationalError(1114, "full"))
    clients.tolerant = True
    assert clients.excuses(pymysql.err.OperationalError(1114, "full"))


def test_damage_changes_one_file(tmp_path: Path) -> None:
    for folder in ("log", "pages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_bytes(bytes(range(1, 200)) + bytes(1000))
        (tmp_path / folder / "LOCK").write_bytes(b"x")
    for seed in range(20):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        harm = damage_some_file(tmp_path, random.Random(seed))
        changed = [path for path, content in before.items() if path.read_bytes() != content]
        assert changed == [harm.path] and harm.path.name == "file"
        assert harm.path.read_bytes()[199:] == bytes(1000)  # where nothing was written


def test_only_refusals_after_some_faults_are_excused() -> None:
    clients = Clients()
    refused, broken = pymysql.err.OperationalError(1036, "read only"), pymysql.err.OperationalError(1034, "damaged")
    assert not clients.excuses(refused)
    clients.tolerant = True
    assert clients.excuses(refused) and not clients.excuses(broken)
    assert clients.turned_away.total() == 1
