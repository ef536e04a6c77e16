"""The Galera cluster that fusion is compared with: what is written for it and read from it. None of these starts a server."""

from pathlib import Path

import pytest
from strata_cli import galera_cluster, galera_packages, private_apt
from strata_cli.bench import galera, profiles
from strata_cli.bench.comparison import Row, Sample
from strata_cli.galera_cluster import GaleraCluster, check_left_in_order, group_note
from strata_cli.shell import StrataError


def test_only_the_series_of_the_servers_interface_is_usable_and_the_newest_comes_first() -> None:
    versions = {"25.3.37-1", "26.4.13-1", "26.4.23-0+deb12u1", "27.0-1"}
    assert galera_packages.usable(versions) == ["26.4.23-0+deb12u1", "26.4.13-1"]


def test_a_package_that_cannot_be_had_is_an_error_that_names_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(galera_packages, "FOLDER", tmp_path)
    monkeypatch.setattr(galera_packages, "VERSION_FILE", tmp_path / "VERSION")
    monkeypatch.setattr(private_apt, "refresh", lambda: None)
    monkeypatch.setattr(private_apt, "binary_versions", lambda package: {"26.4.13-1"})
    monkeypatch.setattr(private_apt, "download", lambda arguments, folder: False)
    with pytest.raises(StrataError, match=r"tried: 26\.4\.13-1"):
        galera_packages.fetch(lambda text: None)


def test_every_server_knows_all_others_and_has_ports_of_its_own(tmp_path: Path) -> None:
    servers = GaleraCluster(tmp_path / "c", 3).servers
    ports = [port for server in servers for port in (server.sql_port, server.group_port, server.transfer_port)]
    assert len(set(ports)) == 9
    addresses = {option for server in servers for option in server.options(servers) if "cluster-address" in option}
    wanted = ",".join(f"127.0.0.1:{server.group_port}" for server in servers)
    assert addresses == {f"--wsrep-cluster-address=gcomm://{wanted}"}
    for server in servers:
        provider = next(option for option in server.options(servers) if "provider-options" in option)
        assert f"gmcast.listen_addr=tcp://127.0.0.1:{server.group_port}" in provider
        assert f"ist.recv_addr=127.0.0.1:{server.transfer_port}" in provider


@pytest.mark.parametrize("servers", [0, galera_cluster.SERVERS_MAX + 1])
def test_a_cluster_of_no_or_too_many_servers_is_refused(tmp_path: Path, servers: int) -> None:
    with pytest.raises(StrataError, match="1 to 8"):
        GaleraCluster(tmp_path, servers)


def test_the_note_of_the_group_names_its_members_and_who_reads_it() -> None:
    lines = group_note("b", ["b", "a"]).splitlines()
    assert lines[0] == "my_uuid: b"
    assert [line for line in lines if line.startswith("member:")] == ["member: b 0", "member: a 0"]
    assert "view_id: 3 a 1" in lines


def test_a_folder_that_was_not_left_in_order_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "grastate.dat"
    with pytest.raises(StrataError, match="does not say"):
        check_left_in_order(file)
    file.write_text("uuid:    1\nseqno:   -1\n")
    with pytest.raises(StrataError, match="does not say"):
        check_left_in_order(file)
    file.write_text("uuid:    1\nseqno:   2\n")
    check_left_in_order(file)


def test_systems_are_chosen_by_name_once_each() -> None:
    assert galera.chosen_systems("fusion,galera") == ("fusion", "galera")
    for text in ("fusion,fusion", "galera,mysql", ""):
        with pytest.raises(StrataError, match="--systems"):
            galera.chosen_systems(text)


def test_refused_transactions_are_those_of_all_threads() -> None:
    output = "refused at commit 3, before 1\nSQL statistics:\nrefused at commit 4, before 0\n"
    assert galera.refused(output) == (7, 1)
    assert galera.refused("") == (0, 0)


def test_a_row_says_what_was_refused_and_how_the_rates_compare() -> None:
    row = Row("hot_row", 24, "memory", "transactions/s")
    for rate in (100.0, 120.0, 110.0):
        row.samples.setdefault(galera.GALERA, []).append(galera.Contended(rate, 9.0, 50.0, 0.0, at_commit=rate, before=1.0))
        row.samples.setdefault(galera.FUSION, []).append(galera.Contended(2 * rate, 9.0, 50.0, 0.0, at_commit=0.0, before=2.0))
    names = (galera.GALERA, galera.FUSION)
    found = profiles.row_as_json(names, row)["profiles"][galera.FUSION]
    assert found["ratio"] == pytest.approx(2.0)
    said = galera.as_json(names, row)["profiles"]
    assert isinstance(said, dict)
    assert (said[galera.GALERA]["refused_at_commit"], said[galera.FUSION]["refused_before"]) == (110.0, 2.0)
    text = galera.line(names, row)
    assert "refused 110/s at COMMIT, 1/s before" in text
    assert "fusion: 220/s, ratio 2.00, 2.00-2.00" in text


def test_a_system_that_was_not_measured_has_no_refusals() -> None:
    row = Row("hot_row", 24, "memory", "x", {galera.GALERA: [Sample(1.0)]})
    said = galera.as_json((galera.GALERA,), row)["profiles"]
    assert isinstance(said, dict)
    assert said[galera.GALERA]["refused_at_commit"] is None
