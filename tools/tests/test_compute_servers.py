"""Servers that write the same tables: which there are, what is refused, and what is said of them."""

from pathlib import Path
from typing import NoReturn

import pytest
from strata_cli import cluster as cluster_module
from strata_cli import cluster_cmd, compute_servers, demo_fusion, server_cmd, several_health, shared_memory
from strata_cli.cluster import Cluster, Wishes
from strata_cli.compute_servers import Line
from strata_cli.memory_node import MemoryNode, shared_slots_of
from strata_cli.process import BackgroundProcess
from strata_cli.profile_list import MONOLITHIC, OF_CLUSTERS, OF_ONE_WRITER, OF_SEVERAL_WRITERS
from strata_cli.server import Server, Settings
from strata_cli.shell import StrataError
from strata_cli.status import DEGRADED, NOTHING_RUNS, RUNNING, Pools, Process, complaints, read_authority, say_who_waits

PROFILE = "fusion"


def made(folder: Path, servers: int | None = None, memory: str = "64M") -> Cluster:
    cluster = Cluster(folder / "cluster")
    cluster.create(PROFILE, Wishes(servers=servers, memory=memory))
    return cluster


def run_before(cluster: Cluster, ports: dict[str, int]) -> None:
    for name, port in ports.items():
        server = cluster.computes[name]
        server.data.mkdir(parents=True)
        text = f'{{"profile": "{PROFILE}", "port": {port}, "cluster": "{cluster.data}"}}'
        server.settings_file.write_text(text)


def test_the_profiles_are_of_one_writer_or_of_several() -> None:
    assert OF_SEVERAL_WRITERS == (PROFILE, "fusion-sr")
    assert set(OF_CLUSTERS) == {*OF_ONE_WRITER, *OF_SEVERAL_WRITERS} and PROFILE not in OF_ONE_WRITER


def test_a_new_cluster_has_three_or_as_many_as_are_wished(tmp_path: Path) -> None:
    cluster = made(tmp_path / "usual")
    assert list(cluster.computes) == ["compute-1", "compute-2", "compute-3"]
    assert all(server.data == cluster.data / "computes" / name for name, server in cluster.computes.items())
    again = Cluster(cluster.data)
    assert again.has_several() and list(again.computes) == list(cluster.computes)
    again.create(PROFILE, Wishes(servers=3))
    with pytest.raises(StrataError, match=r"has its servers already \(compute-1, .*compute add"):
        again.create(PROFILE, Wishes(servers=2))
    assert list(made(tmp_path / "one", servers=1).computes) == ["compute-1"]
    for wrong in (0, -1, 9):
        with pytest.raises(StrataError, match="1 to 8 servers"):
            made(tmp_path / "wrong", servers=wrong)
    assert not (tmp_path / "wrong" / "cluster").exists()


def test_other_profiles_have_one(tmp_path: Path) -> None:
    for profile in OF_ONE_WRITER:
        with pytest.raises(StrataError, match=f"--compute 2: profile '{profile}' has one server; several has fusion"):
            Cluster(tmp_path / profile).create(profile, Wishes(servers=2))
    Cluster(tmp_path / "logdb").create("logdb", Wishes(servers=1))
    with pytest.raises(StrataError, match="--compute 3: profile 'monolithic' has one server"):
        server_cmd.up(MONOLITHIC, tmp_path / "alone", None, wishes=Wishes(servers=3))


def test_the_memory_node_has_room_for_pages_and_for_the_servers_tables(tmp_path: Path) -> None:
    assert shared_slots_of("64M") == 2048 and shared_slots_of("512M") == 30 * 1024
    with pytest.raises(StrataError, match="64M at least, not 63M"):
        shared_slots_of("63M")
    flags = made(tmp_path).memory["memory-1"].flags()
    assert flags[flags.index("--fusion-slots") + 1] == "2048"
    pooled = Cluster(tmp_path / "pooled")
    pooled.create("lego", Wishes(memory="8M"))
    assert "--fusion-slots" not in pooled.memory["memory-1"].flags()


def test_one_memory_node_serves_and_others_wait(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "two")
    cluster.create(PROFILE, Wishes(memory_nodes=2, memory="64M"))
    assert list(cluster.memory) == ["memory-1", "memory-2"]
    assert all(flag in node.flags() for node in cluster.memory.values() for flag in ("--fusion-slots", "2048"))
    with pytest.raises(StrataError, match="keeps no page twice: a second memory node waits instead"):
        Cluster(tmp_path / "twice").create(PROFILE, Wishes(memory_backup=True, memory="64M"))
    with pytest.raises(StrataError, match="1 to 3 memory nodes, of which one serves"):
        Cluster(tmp_path / "four").create(PROFILE, Wishes(memory_nodes=4, memory="64M"))
    with pytest.raises(StrataError, match=r"has its memory nodes already .*node add --memory"):
        cluster.create(PROFILE, Wishes(memory_nodes=1))
    with pytest.raises(StrataError, match="64M at least, not 32M"):
        cluster.prepare_memory_node(None, "32M")
    assert cluster.prepare_memory_node(None, "64M") == "memory-3"
    assert cluster.settings().memory_in_use == ["memory-1", "memory-2", "memory-3"]
    cluster.forget_memory_node("memory-2")
    assert list(Cluster(cluster.data).memory) == cluster.settings().memory_in_use == ["memory-1", "memory-3"]


def test_memory_nodes_are_taken_out_only_while_another_one_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path / "two")
    cluster.create(PROFILE, Wishes(memory_nodes=2, memory="64M"))
    said: list[str] = []
    with pytest.raises(StrataError, match="etcd does not run"):
        shared_memory.remove(cluster, "memory-1", said.append)
    monkeypatch.setattr(type(cluster.etcd), "pid", lambda _: 1)
    phases = {"memory-1": "serves", "memory-2": "prepares"}
    monkeypatch.setattr(shared_memory, "phase_of", lambda node: phases[node.name])
    monkeypatch.setattr(MemoryNode, "illness", lambda _: None)
    with pytest.raises(StrataError, match=r"no other memory node serves or waits \(memory-2\), so memory-1 stays"):
        shared_memory.remove(cluster, "memory-1", said.append)
    phases["memory-2"] = "stands by"
    monkeypatch.setattr(shared_memory, "FOLLOW_TIMEOUT_S", 0.0)
    with pytest.raises(StrataError, match="memory-1 has stopped, and no other memory node serves"):
        shared_memory.remove(cluster, "memory-1", said.append)
    phases["memory-2"] = "serves"
    assert shared_memory.remove(cluster, "memory-1", said.append).in_use == ["memory-2"]
    with pytest.raises(StrataError, match="memory-2 is the only memory node, and servers need one"):
        shared_memory.remove(cluster, "memory-2", said.append)


def test_the_status_says_who_serves_and_who_waits() -> None:
    def node(name: str, phase: str, epoch: int = 7) -> Process:
        process = Process("memory", name, 5, "127.0.0.1:5", True, pools=Pools("64M"))
        read_authority(process, {"fusion": {"phase": phase, "epoch": epoch}})
        return process

    one, two = node("memory-1", "serves"), node("memory-2", "stands by")
    say_who_waits([one, two])
    assert (one.authority, one.epoch, one.reason) == ("serves", 7, "it serves; memory-2 would follow")
    assert (two.authority, two.epoch) == ("stands by", None) and two.reason.startswith("it waits")
    assert complaints([one, two])[0] == "memory-1: it serves; memory-2 would follow"
    two.healthy, two.reason = False, "not running"
    say_who_waits([one, two])
    assert "no other one waits" in one.reason and two.reason == "not running"
    pooled = Process("memory", "memory-1", 5, "127.0.0.1:5", True)
    read_authority(pooled, {"pools": []})
    assert pooled.authority is None and pooled.epoch is None


def test_a_server_is_told_of_no_pool(tmp_path: Path) -> None:
    options = made(tmp_path).compute_settings("compute-2", 5000).options
    assert "--strata-node-name=compute-2" in options and not any("lego" in option for option in options)


def test_ports_stay_and_are_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {6003}
    monkeypatch.setattr(cluster_module, "port_is_free", lambda port: port not in busy)
    monkeypatch.setattr(cluster_module, "PORT_TIMEOUT_S", 0.0)
    cluster = made(tmp_path, servers=4)
    run_before(cluster, {"compute-1": 6000, "compute-2": 6002, "compute-3": 6003})
    assert cluster._port_among_several("compute-2", None) == 6002
    # One that no other process of the cluster has, whether it runs or not.
    first = cluster._port_among_several("compute-4", None)
    assert first not in {*cluster.settings().ports(), 6000, 6002, 6003}
    run_before(cluster, {"compute-4": first})
    cluster.admit_server("compute-5", cluster.data / "computes" / "compute-5")
    second = cluster._port_among_several("compute-5", None)
    assert second != first
    busy.add(second)
    assert cluster._port_among_several("compute-5", None) not in {first, second}
    with pytest.raises(StrataError, match="its port 6003 is in use by another program; to do: end that one"):
        cluster._port_among_several("compute-3", None)


def test_who_cannot_start_is_named_and_leaves_the_others_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = made(tmp_path)
    said: list[str] = []
    monkeypatch.setattr(cluster, "_say", said.append)
    running = {"compute-3"}
    for name, server in cluster.computes.items():
        monkeypatch.setattr(server, "exists", lambda: True)
        monkeypatch.setattr(server, "pid", lambda name=name: 1 if name in running else None)
        monkeypatch.setattr(server, "kill", lambda: None)
    monkeypatch.setattr(cluster.memory["memory-1"], "illness", lambda: None)
    monkeypatch.setattr(several_health, "trouble_of", lambda _: "")

    def launch(name: str, *_: object) -> int:
        if name == "compute-2":
            raise StrataError("its port is in use")
        running.add(name)
        return 1

    monkeypatch.setattr(cluster, "_launch_compute", launch)
    monkeypatch.setattr(cluster, "_await_compute", lambda *_: None)
    started: list[BackgroundProcess] = [cluster.computes["compute-1"]]
    with pytest.raises(StrataError) as raised:
        cluster._start_several(None, started)
    assert str(raised.value).splitlines() == [
        "not started: compute-2; compute-1, compute-3 serve",
        "compute-2: its port is in use",
    ]
    assert started == []  # Nothing is stopped again.
    assert said == ["  compute-3  already running (pid 1)"]


def test_who_did_not_get_up_with_the_others_is_started_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = made(tmp_path, servers=2)
    running: set[str] = set()
    tried: list[str] = []
    for name, server in cluster.computes.items():
        monkeypatch.setattr(server, "exists", lambda: True)
        monkeypatch.setattr(server, "pid", lambda name=name: 1 if name in running else None)
        monkeypatch.setattr(server, "kill", lambda: None)
    monkeypatch.setattr(cluster.memory["memory-1"], "illness", lambda: None)

    def launch(name: str, *_: object) -> int:
        tried.append(name)
        return 1

    monkeypatch.setattr(cluster, "_launch_compute", launch)

    def wait(name: str, *_: object) -> None:
        if name == "compute-2" and tried.count(name) < tries:
            raise StrataError("started without STRATA:\nwhy")
        running.add(name)

    monkeypatch.setattr(cluster, "_await_compute", wait)
    tries = 2
    cluster._start_several(None, [])
    assert tried == ["compute-1", "compute-2", "compute-2"] and running == {"compute-1", "compute-2"}
    running.clear()
    tried.clear()
    tries = 3
    with pytest.raises(StrataError, match="not started: compute-2; compute-1 serves"):
        cluster._start_several(None, [])


def test_who_was_fenced_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = made(tmp_path, servers=2)
    running = {"compute-1", "compute-2"}
    said = {"compute-1": ["", ""], "compute-2": ["no lease", f"this server {several_health.FENCED} and answers nothing"]}
    for name, server in cluster.computes.items():
        monkeypatch.setattr(server, "exists", lambda: True)
        monkeypatch.setattr(server, "pid", lambda name=name: 1 if name in running else None)

    def trouble(server: Server) -> str:
        texts = said[server.name]
        return texts.pop(0) if len(texts) > 1 else texts[0]

    started: list[str] = []
    monkeypatch.setattr(several_health, "trouble_of", trouble)
    monkeypatch.setattr(cluster_module, "kill_all", lambda servers: running.difference_update(one.name for one in servers))
    monkeypatch.setattr(cluster.memory["memory-1"], "illness", lambda: None)

    def launch(name: str, *_: object) -> int:
        started.append(name)
        return 1

    monkeypatch.setattr(cluster, "_launch_compute", launch)
    monkeypatch.setattr(cluster, "_await_compute", lambda *_: None)
    cluster._start_several(None, [])
    assert started == ["compute-2"]
    # Who goes on with another memory node is not.
    running.update(cluster.computes)
    started.clear()
    said["compute-2"] = ["no lease", "no lease", ""]
    cluster._start_several(None, [])
    assert started == []


def test_a_memory_node_that_cannot_serve_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = made(tmp_path)
    why = "the logs held changes that storage lacks: 1, and are not redone yet"
    monkeypatch.setattr(cluster_module, "MEMORY_WELL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(cluster.memory["memory-1"], "illness", lambda: why)
    with pytest.raises(StrataError, match="memory-1 neither serves nor waits: the logs held changes"):
        cluster._start_several(None, [])


def test_what_makes_no_sense_with_several_is_refused(tmp_path: Path) -> None:
    data = made(tmp_path).data
    with pytest.raises(StrataError, match=r"compute standby add: not under profile 'fusion'.*compute add"):
        cluster_cmd.standby_add(data, None, None, False, None, True)
    with pytest.raises(StrataError, match="compute move: not under"):
        cluster_cmd.compute_move_to(data, None, None, Wishes(), False, True)
    with pytest.raises(StrataError, match="compute up: not under"):
        cluster_cmd.compute_up(data, None, None)
    with pytest.raises(StrataError, match=r"compute-1 is a server: not under.*compute remove compute-1"):
        cluster_cmd.node_remove(data, "compute-1", False, True)


def test_what_makes_no_sense_with_one_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "one")
    cluster.create("logdb")
    with pytest.raises(StrataError, match="profile 'logdb' has one server that writes; for one that stands by"):
        compute_servers.add(cluster, None, None)
    with pytest.raises(StrataError, match="profile 'logdb' has one server"):
        compute_servers.remove(cluster, "compute-1", False, lambda _: None)
    with pytest.raises(StrataError, match=r"to kill it: ./strata node kill"):
        compute_servers.kill(cluster, "compute-1", True, lambda _: None)
    with pytest.raises(StrataError, match=r"./strata status"):
        compute_servers.lines(cluster)


def test_a_server_that_could_not_be_added_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = made(tmp_path, servers=1)
    with pytest.raises(StrataError, match="needs etcd"):
        compute_servers.add(cluster, None, None)
    monkeypatch.setattr(cluster, "check_others_run", lambda: None)

    def refused(*_: object) -> NoReturn:
        raise StrataError("no place")

    monkeypatch.setattr(cluster, "_start_compute", refused)
    with pytest.raises(StrataError, match="no place"):
        compute_servers.add(cluster, None, None)
    assert list(cluster.computes) == ["compute-1"] == list(cluster.settings().computes)
    # One that may have a place stays a part of the cluster: what it has logged counts.
    identity = cluster.data / "computes" / "compute-2" / compute_servers.IDENTITY
    identity.parent.mkdir(parents=True)
    identity.write_text("")
    (cluster.data / "computes" / "compute-2" / "instance.json").write_text(f'{{"cluster": "{cluster.data}"}}')
    with pytest.raises(StrataError, match=r"compute-2 was added, and could not be started .*remove compute-2 --wipe.: no place"):
        compute_servers.add(cluster, None, None)
    assert list(cluster.computes) == ["compute-1", "compute-2"]
    cluster.forget_compute(cluster.computes["compute-2"].data)
    for wrong in ("", "a/b", "..", "-x", "memory-1", "compute-1"):
        with pytest.raises(StrataError, match=r"is no name for a server|is a process of this cluster"):
            compute_servers.add(cluster, wrong, None)
    foreign = cluster.data / "computes" / "mine"
    foreign.mkdir(parents=True)
    (foreign / "file").write_text("")
    with pytest.raises(StrataError, match="is not empty and holds no compute node"):
        compute_servers.add(cluster, "mine", None)
    with pytest.raises(StrataError, match="compute-1 is the only server"):
        compute_servers.remove(cluster, "compute-1", True, lambda _: None)
    with pytest.raises(StrataError, match="there is no server 'compute-7'; there is: compute-1"):
        compute_servers.kill(cluster, "compute-7", True, lambda _: None)


def test_one_that_only_reads_is_started_so_and_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = made(tmp_path, servers=1)
    monkeypatch.setattr(cluster, "check_others_run", lambda: None)
    started: list[str] = []
    monkeypatch.setattr(cluster, "start_compute", lambda name, _: started.append(name))
    added = compute_servers.add(cluster, "reports", None, read_only=True)
    assert added.read_only and started == ["reports"]
    again = Cluster(cluster.data)
    assert [line.read_only for line in compute_servers.lines(again)] == [False, True]
    assert "--read-only=1" in again.compute_settings("reports", 6001).options
    assert "--read-only=1" not in again.compute_settings("compute-1", 6000).options
    with pytest.raises(StrataError, match="compute-1 is the only server that writes"):
        compute_servers.remove(again, "compute-1", False, lambda _: None)
    again.forget_compute(again.computes["reports"].data)
    assert again.settings().read_only == []
    # Taken in again it writes, if nobody says otherwise.
    monkeypatch.setattr(again, "check_others_run", lambda: None)
    monkeypatch.setattr(again, "start_compute", lambda *_: None)
    assert not compute_servers.add(again, "reports", None).read_only
    assert again.settings().read_only == []


def test_who_was_killed_is_started_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had is in its log only; the memory node must not end before."""
    cluster = made(tmp_path)
    started: list[str] = []
    for server in cluster.computes.values():
        monkeypatch.setattr(server, "exists", lambda: True)
        monkeypatch.setattr(server, "pid", lambda: None)
    monkeypatch.setattr(cluster, "start_compute", started.append)
    monkeypatch.setattr(cluster, "stop_computes", lambda _: True)
    compute_servers.end_in_order(cluster, ["compute-2", "compute-3"], lambda _: None)
    assert started == ["compute-2", "compute-3"]
    monkeypatch.setattr(cluster, "stop_computes", lambda _: False)
    with pytest.raises(StrataError, match="did not end in order, or not in time"):
        compute_servers.end_in_order(cluster, ["compute-2"], lambda _: None)
    # One that ended in time, and says that something could not be written.
    log = cluster.computes["compute-2"].log
    log.parent.mkdir(parents=True)
    log.write_text(f"earlier: {compute_servers.NOT_IN_ORDER}\n")

    def stop(_: object) -> bool:
        log.open("a").write(said)
        return True

    monkeypatch.setattr(cluster, "stop_computes", stop)
    said = "Shutdown complete\n"
    compute_servers.end_in_order(cluster, ["compute-2"], lambda _: None)
    said = f"[ERROR] {compute_servers.NOT_IN_ORDER}no quorum\n"
    with pytest.raises(StrataError, match="did not end in order"):
        compute_servers.end_in_order(cluster, ["compute-2"], lambda _: None)
    # Nobody ends in order without the memory node.
    memory = cluster.memory["memory-1"]
    compute_servers.end_all(cluster, lambda _: None)
    monkeypatch.setattr(memory, "pid", lambda: 1)
    monkeypatch.setattr(memory, "illness", lambda: "storage is away")
    compute_servers.end_all(cluster, lambda _: None)


def test_what_status_says() -> None:
    variables = {"Strata_cluster_epoch": "3", "Strata_cluster_holds_lease": "1", "Threads_connected": "5", "Uptime": "70"}
    well = compute_servers.line(Process("compute", "compute-1", 7, "", True), "/f", 6000, variables)
    assert well == Line("compute-1", "serves", 6000, 7, 3, True, 4, 70, False, "", "/f")
    ill = compute_servers.line(Process("compute", "compute-2", 8, "", False, "no lease"), "/f", 6001, {})
    assert (ill.state, ill.has_lease, ill.connections, ill.why) == ("ill", None, None, "no lease")
    cut_off = Process("compute", "compute-4", 9, "", False, f"this server has {several_health.NO_LEASE}, so that")
    assert compute_servers.line(cut_off, "/f", 6002, variables).has_lease is False
    gone = compute_servers.line(Process("compute", "compute-3", None, "", False, "not running"), "/f", None, {})
    assert gone.state == "not running"
    assert compute_servers.exit_code([well]) == RUNNING
    assert compute_servers.exit_code([well, ill]) == compute_servers.exit_code([well, gone]) == DEGRADED
    assert compute_servers.exit_code([gone]) == NOTHING_RUNS
    assert compute_servers.table([well, ill, gone]).row_count == 3


def test_sql_is_for_the_server_that_is_named(tmp_path: Path) -> None:
    cluster = made(tmp_path)
    assert server_cmd._serving(cluster.data, "compute-2").data == cluster.computes["compute-2"].data
    with pytest.raises(StrataError, match="there is no server 'compute-9'"):
        server_cmd._serving(cluster.data, "compute-9")
    with pytest.raises(StrataError, match="--on compute-1 is for a cluster"):
        server_cmd._serving(tmp_path / "none", "compute-1")


def test_gaps_count_from_the_beginning_to_the_end() -> None:
    assert demo_fusion.longest_gap_s([3.0, 1.0, 2.5], 0.5, 3.25) == 1.5
    assert demo_fusion.longest_gap_s([1.0], 0.0, 9.0) == 8.0
    assert demo_fusion.longest_gap_s([], 2.0, 9.0) == 7.0
    assert demo_fusion.longest_gap_s([-5.0, 20.0], 0.0, 1.0) == 1.0


def test_the_demo_knows_its_profiles(tmp_path: Path) -> None:
    server = Server(tmp_path)
    assert Settings().cluster == "" and server.settings().profile == MONOLITHIC
    assert PROFILE in server_cmd.PROFILES


def test_a_memory_node_is_well_when_it_says_so_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = made(tmp_path).memory["memory-1"]
    said = [None, "it prepares", None, None]
    monkeypatch.setattr(node, "illness", lambda: said.pop(0))
    well = several_health.well(node)
    assert not well() and well() and said == []
