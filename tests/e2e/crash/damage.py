"""Damage to the files of a storage node that stands still."""

import random
from dataclasses import dataclass
from pathlib import Path

# Files that hold nothing, that nobody reads again, or that RocksDB makes for people.
HARMLESS = ("spare-", "LOCK", "OPTIONS-", "LOG", "IDENTITY", "lock")
PLACES_MAX = 3
BYTES_MAX = 64


@dataclass(frozen=True)
class Harm:
    path: Path
    text: str


def damage_some_file(data: Path, rng: random.Random) -> Harm:
    """Changes some bytes of one file: of the log or of the pages, evenly."""
    pages = "written" if (data / "written").exists() else "pages"
    folder = data / rng.choice(("log", pages))
    files = [path for path in sorted(folder.rglob("*")) if _counts(path)]
    if not files:
        files = [path for path in sorted(data.rglob("*")) if _counts(path)]
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    used = len(content.rstrip(b"\0")) or len(content)  # Most of a log file's room may be unused.
    places = []
    for _ in range(rng.randint(1, PLACES_MAX)):
        first = rng.randrange(used)
        last = min(used, first + rng.randint(1, BYTES_MAX))
        for place in range(first, last):
            content[place] ^= rng.randint(1, 255)
        places.append(f"{first}-{last - 1}")
    path.write_bytes(content)
    return Harm(path, f"{path.relative_to(data)}, bytes {', '.join(places)} of {used}")


def _counts(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0 and not path.name.startswith(HARMLESS)
