"""What the control counts as an anomaly, and what as a failure of its own. Without servers."""

from pathlib import Path

from .checker import check
from .control import DIVERGED, OF_FAMILIES, GaleraCampaign, is_broken, name_of
from .history import Append, End, History, Level, Mode, Read, Transaction


def stale_read() -> History:
    """The append was acknowledged before the read began, which does not show it."""
    writer = Transaction(0, Level.RC, 1.0, single=True, end=End.committed, ended=2.0, operations=[Append([4], 1, 1.5, 1)])
    read = Read([4], Mode.plain, 3.5, lists={})
    reader = Transaction(1, Level.RC, 3.0, single=True, end=End.committed, ended=4.0, operations=[read])
    return History([writer, reader], final={4: [1]})


def test_a_kind_of_anomaly_is_counted_once_for_each_history_and_kept_the_first_time(tmp_path: Path) -> None:
    campaign = GaleraCampaign(tmp_path, 3)
    for number in range(2):
        history = stale_read()
        campaign._keep(history, check(history), tmp_path / f"{number}.jsonl")
    assert campaign.found == {"stale read": 2}
    assert not campaign.broken
    assert [file.name for file in tmp_path.glob("*.jsonl")] == ["0.jsonl"]


def test_what_does_not_work_is_no_anomaly(tmp_path: Path) -> None:
    campaign = GaleraCampaign(tmp_path, 3)
    history = stale_read()
    history.problems = ["client 2: RuntimeError: (1047, 'WSREP has not yet prepared node')"]
    campaign._keep(history, check(history), tmp_path / "history.jsonl")
    assert campaign.broken == history.problems
    assert campaign.found == {"stale read": 1}


def test_problems_that_are_the_controls_own() -> None:
    for text in ("client 3 hangs", "server-1 has ended (signal 6):\n", "CHECK TABLE parent: [...]", "client 1: AssertionError: "):
        assert is_broken(text)
    for text in ("parent 7 has gone by itself", "server 2 has other lists than server 1 has, of the keys [1]", "a cycle"):
        assert not is_broken(text)


def test_names_of_anomalies() -> None:
    assert name_of("client", "server 2 has other lists than server 1 has, of the keys [1]") == DIVERGED
    assert name_of("client", "parent 7 has gone by itself", OF_FAMILIES) == OF_FAMILIES
    assert name_of("G2 write skew", "a cycle ...") == "G2 write skew"
    assert name_of("G-single read skew", "a cycle\n    T1 was over\n    before T2 began") == "G-single read skew, in real time"
