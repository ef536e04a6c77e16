"""Waiting for something another process or thread brings about: one loop with a deadline, instead of sleeps in many places."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.05) -> bool:
    """Whether the condition came true in time; it is looked at at once, every `every_s`, and once more at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(every_s, left))
    return True
