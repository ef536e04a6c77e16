"""What a cluster's folder remembers of its compute nodes."""

from pathlib import Path
from typing import NoReturn

import pytest
from strata_cli import server_cmd
from strata_cli.cluster import FIRST_COMPUTE, Cluster, Wishes
from strata_cli.shell import StrataError


def test_a_compute_node_that_could_not_be_started_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path / "cluster")
    cluster.create("logdb")

    def refused(*_: object) -> NoReturn:
        raise StrataError("another one serves")

    monkeypatch.setattr(cluster, "_check_storage_runs", lambda: None)
    monkeypatch.setattr(cluster, "_start_compute", refused)
    with pytest.raises(StrataError):
        cluster.add_compute(tmp_path / "second", None)
    assert list(cluster.computes) == [FIRST_COMPUTE] and cluster.settings().computes == {}


def test_storage_that_does_not_run_leaves_no_trace_of_a_compute_node(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    cluster.create("logdb")
    with pytest.raises(StrataError, match="needs etcd"):
        cluster.add_compute(tmp_path / "second", None)
    assert cluster.settings().computes == {}


def test_options_of_the_server_stay_until_others_are_given(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    cluster.create("logdb", Wishes(options=("--max-connections=77", "--log-bin=binlog")))
    cluster.create("logdb")
    assert cluster.compute_settings("compute-1", 1).options[-2:] == ["--max-connections=77", "--log-bin=binlog"]
    cluster.create("logdb", Wishes(options=()))
    assert "--log-bin=binlog" not in cluster.compute_settings("compute-1", 1).options


@pytest.mark.parametrize("wrong", ["max-connections=1", "--", "--datadir=/x", "--plugin_dir=/x"])
def test_options_that_are_none_or_not_the_users(wrong: str) -> None:
    with pytest.raises(StrataError):
        server_cmd.check_options([wrong])
