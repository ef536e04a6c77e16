"""A test run's draw: the same for the same commit, and over many commits everything."""

from pathlib import Path

import pytest
from strata_cli import draw, paths, test_cmd
from strata_cli.draw import OUTSIDE_GIT, commit_here, make_draw
from strata_cli.profile_list import ALL, OF_ONE_WRITER

COMMITS = [f"{n:040x}" for n in range(200)]


def test_the_same_commit_draws_the_same() -> None:
    assert make_draw("abc") == make_draw("abc")
    assert make_draw("abc").again() == "./strata test --draw abc"
    # What was drawn once must come out again with the next version of the tool, or a failure could not be repeated.
    assert make_draw("abc").crash_seed == CRASH_SEED_OF_ABC


CRASH_SEED_OF_ABC = 359537


def test_many_commits_draw_everything() -> None:
    drawn = [make_draw(commit) for commit in COMMITS]
    assert {one.suite_profile for one in drawn} == set(OF_ONE_WRITER)
    assert {one.crash_binlog for one in drawn} == {"on", "draw"}
    assert {one.e2e_binlog for one in drawn} == {True, False}
    for name in ("crash_seed", "errors_seed", "cluster_seed", "history_seed", "differential_seed", "stress_seed"):
        seeds = {getattr(one, name) for one in drawn}
        assert len(seeds) == len(COMMITS) and min(seeds) > 0
    # Clusters' seeds belong to the profiles in turn.
    assert {one.cluster_seed % len(OF_ONE_WRITER) for one in drawn} == set(range(len(OF_ONE_WRITER)))


def test_every_commit_takes_its_share_of_what_is_too_much() -> None:
    names = [f"test_{n}" for n in range(60)]
    for share in (0.35, 0.7):
        taken = [sum(draw.takes(commit, name, share) for name in names) / len(names) for commit in COMMITS]
        assert abs(sum(taken) / len(taken) - share) < 0.02
    for name in names:
        assert {make_draw(commit).takes_end_to_end(name) for commit in COMMITS} == {True, False}
        assert {make_draw(commit).takes_under_asan(name) for commit in COMMITS} == {True, False}
        assert {make_draw(commit).takes_under_tsan(name) for commit in COMMITS} == {True, False}
        assert {make_draw(commit).takes_model(name) for commit in COMMITS} == {True, False}
        assert {make_draw(commit).takes_on_several(name) for commit in COMMITS} == {True, False}
        assert not any(one.takes_under_asan(name) and one.takes_under_tsan(name) for one in map(make_draw, COMMITS))
    assert draw.takes("abc", "test_backup", 1) and not draw.takes("abc", "test_backup", 0)


def test_a_stage_says_what_it_drew() -> None:
    one = make_draw("abc")
    names = [stage.name for stage in test_cmd.usual_stages(one)]
    shown = "\n".join(names)
    for seed in (one.crash_seed, one.errors_seed, one.cluster_seed, one.history_seed, one.differential_seed, one.stress_seed):
        assert f"seed {seed}" in shown
    assert f"mtr: strata on {one.suite_profile}" in names
    assert "mtr: tests for several servers on fusion, drawn" in names
    assert any(name.startswith("end to end, drawn files") and ("binlog" in name) == one.e2e_binlog for name in names)
    assert any(name.startswith("drawn unit and model tests, asan") for name in names)
    assert {"build asan, drawn tests", "build tsan, drawn tests"} <= set(names)


def test_everything_is_in_all() -> None:
    names = [stage.name for stage in test_cmd.all_stages(make_draw("abc"))]
    for profile in OF_ONE_WRITER:
        assert f"mtr: strata on {profile}" in names
        assert any(name.startswith(f"crash campaign on {profile}") and "binlog on" in name for name in names)
    assert len([name for name in names if name.startswith("end to end")]) == 2
    assert not any("drawn" in name for name in names)
    assert {"build asan", "build tsan"} <= set(names)
    # Of those of one profile only these have several writers.
    several = [profile.name for profile in ALL if profile.has_several_writers]
    for profile in several:
        of_it = [name for name in names if profile in name.replace(",", " ").split()]
        assert of_it == [
            f"crash campaign on {profile}, 300 faults, binlog draw",
            f"mtr: tests for several servers on {profile}",
        ]
    assert several


def test_outside_git_it_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert commit_here() == OUTSIDE_GIT
    monkeypatch.setattr(draw, "capture", _no_git)
    assert commit_here() == OUTSIDE_GIT


def _no_git(_: object) -> None:
    raise FileNotFoundError("git")
