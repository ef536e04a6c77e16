import time

from strata_cli.waiting import wait_until


def test_ends_when_the_condition_holds() -> None:
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), timeout_s=10, every_s=0.001)
    assert next(answers, None) is None


def test_looks_once_without_time() -> None:
    assert wait_until(lambda: True, timeout_s=0)
    assert not wait_until(lambda: False, timeout_s=0)


def test_gives_up_at_the_deadline() -> None:
    began = time.monotonic()
    assert not wait_until(lambda: False, timeout_s=0.05, every_s=10)
    assert 0.05 <= time.monotonic() - began < 5
