"""What a cluster's folder remembers of its compute nodes."""

from pathlib import Path
from typing import NoReturn

import pytest
from strata_cli.cluster import FIRST_COMPUTE, Cluster
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
