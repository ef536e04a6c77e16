#!/usr/bin/env python3
"""clang-tidy 14 over the kernel's sources, with Clang's thread-safety analysis; a file already found clean is skipped.

A file's key is what the compiler sees of it (its preprocessed text), so a change of a header checks all its users.
"""

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

JOBS = 2
EXTRA = [
    "--extra-arg=-Wthread-safety",
    "--extra-arg=-Wno-unknown-warning-option",
    "--extra-arg=-Wno-unused-command-line-argument",
]


@dataclass(frozen=True)
class Unit:
    path: Path
    command: tuple[str, ...]

    def key(self, config: bytes) -> str | None:
        """None when the file does not even preprocess: the build says why."""
        kept = [a for a in self.command if a not in ("-c", "ccache")]
        kept = [a for n, a in enumerate(kept) if a != "-o" and (n == 0 or kept[n - 1] != "-o")]
        done = subprocess.run([*kept, "-E", "-P"], capture_output=True)
        return hashlib.sha256(config + done.stdout).hexdigest() if done.returncode == 0 else None


def without_precompiled(command: str) -> str:
    """g++'s precompiled headers are not Clang's; and a file shall compile without."""
    words = shlex.split(command)
    at = [n for n, word in enumerate(words) if word == "-include" and words[n + 1].endswith("/cmake_pch.hxx")]
    dropped = {*at, *(n + 1 for n in at)}
    return shlex.join(word for n, word in enumerate(words) if n not in dropped and word != "-Winvalid-pch")


def write_database(build: Path, folder: Path) -> None:
    """The build's compile commands as clang-tidy is to see them."""
    entries = json.loads((build / "compile_commands.json").read_text())
    for entry in entries:
        entry["command"] = without_precompiled(entry["command"])
    (folder / "compile_commands.json").write_text(json.dumps(entries))


def units(root: Path, database_folder: Path) -> list[Unit]:
    database = json.loads((database_folder / "compile_commands.json").read_text())
    found = [Unit(Path(entry["file"]), tuple(shlex.split(entry["command"]))) for entry in database]
    source = root / "src"
    kernel = [u for u in found if u.path.is_relative_to(source) and u.path.exists()]
    return sorted((u for u in kernel if not u.path.stem.endswith(("_test", "_fuzz", "_bench"))), key=lambda u: u.path)


def tidy(root: Path, unit: Unit, cache: Path, config: bytes, deadline: float) -> str:
    """Empty: clean. Otherwise the findings, or why it was not checked."""
    key = unit.key(config)
    if key is None:
        return f"{unit.path.relative_to(root)}: does not preprocess\n"
    stamp = cache / key
    if stamp.exists():
        return ""
    left = deadline - time.monotonic()
    if left <= 0:
        return f"{unit.path.relative_to(root)}: NOT CHECKED, the time is over\n"
    command = ["nice", "-n", "5", "clang-tidy-14", "--quiet", "-p", str(cache), *EXTRA, str(unit.path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        return f"{unit.path.relative_to(root)}: NOT CHECKED, the time is over\n"
    if done.returncode == 0:
        stamp.touch()
        return ""
    return done.stdout + ("" if done.stdout.strip() else done.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--time-limit-s", type=float, default=900)
    parser.add_argument("folders", nargs="*", help="only these folders of src/")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    build = arguments.build if arguments.build.is_absolute() else root / arguments.build
    cache = root / "build" / "checks" / "tidy"
    cache.mkdir(parents=True, exist_ok=True)
    config = (root / ".clang-tidy").read_bytes() + " ".join(EXTRA).encode()
    write_database(build, cache)
    chosen = [u for u in units(root, cache) if not arguments.folders or u.path.parent.name in arguments.folders]
    deadline = time.monotonic() + arguments.time_limit_s
    with ThreadPoolExecutor(JOBS) as pool:
        findings = [t for t in pool.map(lambda u: tidy(root, u, cache, config, deadline), chosen) if t]
    for text in findings:
        print(text, end="")
    print(f"{len(chosen)} files, {len(findings)} with findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
