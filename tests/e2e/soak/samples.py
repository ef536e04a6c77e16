"""What the server holds, taken now and then, and what must not grow."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from strata_cli.server import Server

MEMORY_GROWTH_MAX = 1.05
UNDO_GROWTH_MAX = 2.0
UNDO_SLACK_BYTES = 16 << 20
HISTORY_LEFT_MAX = 1_000


@dataclass(frozen=True)
class Sample:
    at_s: float
    resident_bytes: int
    undo_file_bytes: int
    undo_pages: int
    history: int  # transactions whose versions are not purged yet
    log_bytes: int
    threads: int


def take(server: Server, at_s: float) -> Sample:
    status = dict(server.query("SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Strata%' OR Variable_name = 'Threads_connected'"))
    facts = Path(f"/proc/{server.pid()}/status").read_text().splitlines()
    resident_kib = next(int(line.split()[1]) for line in facts if line.startswith("VmRSS:"))
    folder = server.datadir / "#strata"
    undo = folder / "pages" / "space-00000001.pages"
    return Sample(
        at_s,
        resident_kib * 1024,
        undo.stat().st_size if undo.exists() else 0,
        int(status["Strata_undo_pages"]),
        int(status["Strata_trx_history_length"]),
        sum(path.stat().st_size for path in (folder / "log").iterdir()),
        int(status["Threads_connected"]),
    )


def judge(samples: list[Sample], settled_s: float) -> list[str]:
    """`settled_s`: from then on nothing may grow. Averages over a tenth of the time: single samples meet a peak or not."""
    span = max(samples[-1].at_s / 10, 20)
    settled = [s for s in samples if settled_s - span <= s.at_s <= settled_s]
    last = [s for s in samples if s.at_s >= samples[-1].at_s - span]
    if not settled or samples[-1].at_s < 2 * settled_s:
        return ["too short a run: it has to last at least twice the time to settle"]
    problems: list[str] = []
    before, after = (mean(s.resident_bytes for s in part) for part in (settled, last))
    if after > before * MEMORY_GROWTH_MAX:
        problems.append(f"resident memory grew from {before / 1e6:.0f} to {after / 1e6:.0f} MB after {settled_s:.0f} s")
    early = max(s.undo_file_bytes for s in samples if s.at_s <= settled_s)
    late = max(s.undo_file_bytes for s in samples)
    if late > early * UNDO_GROWTH_MAX + UNDO_SLACK_BYTES:
        problems.append(f"the undo file grew from {early / 1e6:.0f} to {late / 1e6:.0f} MB after {settled_s:.0f} s")
    return problems


def write(path: Path, samples: list[Sample]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(sample) for sample in samples], indent=1) + "\n")
