"""When one storage node has all that any has of the logs of several servers."""

from pathlib import Path

import pytest
from strata_cli import several_moment
from strata_cli.cluster import Cluster, Wishes
from strata_cli.several_moment import AUTHORITY, End, Ends, Moment, furthest, lacking
from strata_cli.storage_node import StorageNode


class Nodes:
    """What the nodes of a cluster say; another thing each time they are asked, the last one from then on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.cluster = Cluster(folder)
        self.cluster.create("fusion", Wishes(memory="64M"))
        self.said: dict[str, list[Ends]] = {name: [{1: End(1, 100)}] for name in self.cluster.storage}
        monkeypatch.setattr(several_moment, "ends_of", self._ends_of)
        monkeypatch.setattr(several_moment, "QUIET_S", 0.02)

    def _ends_of(self, node: StorageNode) -> Ends:
        told = self.said[node.name]
        return told.pop(0) if len(told) > 1 else told[0]

    def moment(self, name: str = "s1") -> Moment:
        return Moment(self.cluster, self.cluster.storage[name])

    def make_space(self, node: str, number: int) -> None:
        folder = self.cluster.storage[node].data / "written" / "pages"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"space-{number:08x}.pages").touch()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Nodes:
    return Nodes(monkeypatch, tmp_path / "cluster")


def test_a_later_epoch_counts_more_than_a_longer_log() -> None:
    assert furthest([{1: End(2, 50)}, {1: End(1, 90), 2: End(1, 7)}]) == {1: End(2, 50), 2: End(1, 7)}
    # What the earlier one has behind that was cut off by those who come later.
    assert lacking({1: End(1, 90)}, {1: End(2, 50)}) == [1]
    assert lacking({1: End(2, 50), 4: End(1, 1)}, {1: End(2, 50), 3: End(1, 0)}) == [3]
    assert lacking({}, {1: End(1, 1)}) == [1]


def test_what_is_on_its_way_is_waited_for(nodes: Nodes) -> None:
    behind: Ends = {1: End(1, 100), 2: End(1, 40)}
    nodes.said |= {"s1": [behind, behind, {1: End(1, 100), 2: End(1, 80)}], "s2": [{1: End(1, 100), 2: End(1, 80)}]}
    moment = nodes.moment()
    assert moment.reached(5.0) and moment.lasts() and moment.why == ""
    assert moment.log_end() == 180


def test_what_does_not_come_is_given_up(nodes: Nodes) -> None:
    nodes.said["s3"] = [{1: End(1, 101), AUTHORITY: End(4, 9)}]
    moment = nodes.moment()
    assert not moment.reached(5.0)  # It is not waited for so long: nothing comes any more.
    assert moment.why == "s1 did not get all that other storage nodes have of log 1, the memory node's records"
    assert nodes.moment("s3").reached(5.0)


def test_the_memory_node_goes_on_writing_its_records(nodes: Nodes) -> None:
    nodes.said |= {
        "s1": [{AUTHORITY: End(4, 9)}, {AUTHORITY: End(4, 10)}],
        "s2": [{AUTHORITY: End(4, 10)}, {AUTHORITY: End(4, 30)}],
        "s3": [{AUTHORITY: End(4, 10)}],
    }
    moment = nodes.moment()
    # As far as they were at first.
    assert moment.reached(5.0) and moment.lasts()


def test_somebody_has_more_once_the_node_is_held(nodes: Nodes) -> None:
    nodes.said["s2"] = [{1: End(1, 100)}, {1: End(1, 101)}]
    moment = nodes.moment()
    assert moment.reached(5.0)
    assert not moment.lasts() and "s1 was behind in log 1 again" in moment.why


def test_a_node_that_says_nothing(nodes: Nodes) -> None:
    nodes.said["s2"] = [{}]
    moment = nodes.moment()
    assert not moment.reached(0.0) and "does not answer" in moment.why
    nodes.said["s2"] = [{1: End(1, 100)}, {}]
    moment = nodes.moment()
    assert moment.reached(5.0) and not moment.lasts() and "does not answer" in moment.why


def test_a_space_that_the_others_have_is_waited_for(nodes: Nodes) -> None:
    for name in nodes.cluster.storage:
        nodes.make_space(name, 1)
    nodes.make_space("s2", 2)  # Nobody has been told that it is made.
    assert nodes.moment().reached(5.0)
    nodes.make_space("s3", 2)
    moment = nodes.moment()
    assert not moment.reached(5.0) and moment.why == "s1 has not space-00000002.pages yet"
    nodes.make_space("s1", 2)
    nodes.make_space("s1", 3)
    assert nodes.moment().reached(5.0)


def test_what_a_node_says_of_its_logs(monkeypatch: pytest.MonkeyPatch, nodes: Nodes) -> None:
    monkeypatch.undo()
    node = nodes.cluster.storage["s1"]
    streams = [{"stream": 256, "last_epoch": 3, "log_end": 70}, {"stream": 2, "last_epoch": 1, "log_end": 5}, 7]
    monkeypatch.setattr(node, "status", lambda _: {"streams": streams})
    assert several_moment.ends_of(node) == {AUTHORITY: End(3, 70), 2: End(1, 5)}
    monkeypatch.setattr(node, "status", lambda _: {})
    assert several_moment.ends_of(node) == {}
