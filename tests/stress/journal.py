"""What clients have sent and what they were answered, in a file; and what is wrong, with the statements that came before it."""

import threading
import time
from collections import Counter, deque
from pathlib import Path

BEFORE = 12  # statements of the client that are told with a problem
PROBLEMS_TOLD = 40
SAME_TOLD = 3  # of one kind of problem
SHOWN_CHARS = 300


class Journal:
    """Thread-safe."""

    def __init__(self, file: Path) -> None:
        self._latch = threading.Lock()
        self._began = time.monotonic()
        self._file = file.open("w")
        self._last: dict[str, deque[str]] = {}
        self._kinds: Counter[str] = Counter()
        self.problems: list[str] = []
        self.answers: Counter[int] = Counter()  # 0: no error
        self.excused: Counter[str] = Counter()

    def close(self) -> None:
        with self._latch:
            self._file.close()

    def answered(self, who: str, statement: str, code: int, text: str, began: float) -> None:
        now = time.monotonic()
        shown = statement if len(statement) < SHOWN_CHARS else statement[:SHOWN_CHARS] + "..."
        said = f"{began - self._began:8.3f} {now - began:7.3f} s  {who}  {shown}" + (f"  -> {code} {text}" if code else "")
        with self._latch:
            self.answers[code] += 1
            self._last.setdefault(who, deque(maxlen=BEFORE)).append(said)
            self._write(said)

    def note(self, text: str) -> None:
        """What happens beside the statements."""
        with self._latch:
            self._write(f"{time.monotonic() - self._began:8.3f}  ---  {text}")

    def excuse(self, text: str) -> None:
        with self._latch:
            self.excused[text] += 1

    def wrong(self, kind: str, text: str, who: str = "") -> None:
        """`kind`: problems that have the same cause, of which a few are enough."""
        with self._latch:
            self._kinds[kind] += 1
            self._write(f"{time.monotonic() - self._began:8.3f}  !!!  {kind}: {text}")
            if self._kinds[kind] <= SAME_TOLD and len(self.problems) < PROBLEMS_TOLD:
                before = [f"    {line}" for line in self._last.get(who, ())]
                self.problems.append("\n".join([f"{kind}: {text}", *(["  what this client sent:", *before] if before else [])]))

    def totals(self) -> Counter[str]:
        """How often each kind of problem was seen."""
        with self._latch:
            return Counter(self._kinds)

    def _write(self, line: str) -> None:
        if not self._file.closed:
            self._file.write(line + "\n")
            self._file.flush()
