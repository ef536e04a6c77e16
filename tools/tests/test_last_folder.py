"""Commands without --data mean the folder that was used last, and say which; of those that are gone nothing is left."""

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest
from strata_cli import build_cmd, cluster_cmd, last_folder, paths, server_cmd, setup_cmd
from strata_cli.server import Server, Settings


@pytest.fixture(autouse=True)
def _own_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "RUN", tmp_path / "run")


def _folder(place: Path) -> Path:
    place.mkdir()
    return place


def test_the_default_one_until_another_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert last_folder.named_or_last(None) == paths.DATA_DEFAULT
    assert capsys.readouterr().err == ""
    used = last_folder.named_or_last(_folder(tmp_path / "cluster"))
    assert last_folder.named_or_last(None) == used
    said = capsys.readouterr()
    assert "cluster, used last" in said.err
    assert said.out == ""


def test_a_folder_that_is_gone_gives_way_to_the_one_before(tmp_path: Path) -> None:
    first, second = _folder(tmp_path / "first"), _folder(tmp_path / "second")
    last_folder.use(first)
    last_folder.use(second)
    assert last_folder.last() == second
    second.rmdir()
    assert last_folder.last() == first
    for number in range(last_folder.KEPT):
        last_folder.use(tmp_path / f"gone-{number}")
    assert last_folder.last() == paths.DATA_DEFAULT


def test_a_named_folder_that_does_not_exist_is_not_kept(tmp_path: Path) -> None:
    last_folder.named_or_last(tmp_path / "misspelt")
    assert last_folder.last() == paths.DATA_DEFAULT


def test_up_with_another_profile_does_not_mean_the_folder_used_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = last_folder.use(_folder(tmp_path / "cluster"))
    monkeypatch.setattr(server_cmd, "_held_profile", lambda _: "logdb")
    assert server_cmd.folder_for("logdb", None) == used
    assert server_cmd.folder_for(None, None) == used
    assert server_cmd.folder_for("monolithic", None) == paths.DATA_DEFAULT
    assert server_cmd.folder_for("monolithic", used) == used


def test_up_builds_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[str, ...]] = []
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    monkeypatch.setattr(build_cmd, "build", lambda _, targets: built.append(targets))
    server_cmd.build_what_is_missing("monolithic")
    server_cmd.build_what_is_missing("logdb")
    assert built == [("ha_strata",), ("ha_strata", "strata-storenode")]
    plugin = paths.plugin_path("release")
    plugin.parent.mkdir(parents=True)
    plugin.touch()
    server_cmd.build_what_is_missing("monolithic")
    server_cmd.build_what_is_missing("logdb")
    assert built[2:] == [("strata-storenode",)]


def test_a_compute_node_that_was_started_by_itself_is_what_is_meant_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, compute = _folder(tmp_path / "cluster"), _folder(tmp_path / "compute")
    last_folder.use(cluster)

    class Started:
        data = cluster
        computes: dict[str, Server] = {}
        locked = standbys_held = staticmethod(nullcontext)

        def add_compute(self, data: Path, _: int | None) -> Server:
            return Server(data)

        def disown(self) -> None: ...

        def has_several(self) -> bool:
            return False

    monkeypatch.setattr(setup_cmd, "ensure_setup", lambda: None)
    monkeypatch.setattr(cluster_cmd, "_existing", lambda _: Started())
    cluster_cmd.compute_up(cluster, compute, None)
    assert last_folder.last() == compute


def test_the_folder_of_a_compute_node_means_its_cluster_where_one_is_needed(tmp_path: Path) -> None:
    cluster, compute, alone = (_folder(tmp_path / name) for name in ("cluster", "compute", "alone"))
    (cluster / "cluster.json").write_text('{"profile": "logdb", "etcd_port": 1, "storage": {}}')
    for place, of in ((compute, str(cluster)), (alone, "")):
        (place / "instance.json").write_text(json.dumps(asdict(Settings(cluster=of))))
    assert cluster_cmd.folder_of_cluster(compute) == cluster
    assert cluster_cmd.folder_of_cluster(cluster) == cluster
    assert cluster_cmd.folder_of_cluster(alone) == alone
    assert cluster_cmd.folder_of_cluster(tmp_path / "nothing") == tmp_path / "nothing"
