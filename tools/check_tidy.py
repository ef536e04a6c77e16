#!/usr/bin/env python3
"""clang-tidy 14 over the kernel's sources, with Clang's thread-safety analysis; a file already found clean is skipped.

A file's key is what the compiler sees of it (its preprocessed text), so a change of a header checks all its users.
Neighbours are checked as one translation unit, and apart where their names clash.
"""

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

JOBS = 2
GROUP_MAX = 6
GCC_ONLY = ("-Winvalid-pch", "-finline-small-functions", "-findirect-inlining")
COMPILE_ERROR = "[clang-diagnostic-error"
EXTRA = [
    "--extra-arg=-Wthread-safety",
    "--extra-arg=-Wno-unknown-warning-option",
    "--extra-arg=-Wno-unused-command-line-argument",
]


@dataclass(frozen=True)
class Unit:
    path: Path
    directory: str
    command: tuple[str, ...]

    def arguments_for(self, source: Path) -> list[str]:
        return [str(source) if word == str(self.path) else word for word in self.command if word != "ccache"]

    def flags(self) -> list[str]:
        words = [word for word in self.command if word != str(self.path)]
        return [word for n, word in enumerate(words) if word != "-o" and (n == 0 or words[n - 1] != "-o")]

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
    return shlex.join(word for n, word in enumerate(words) if n not in dropped and word not in GCC_ONLY)


def write_database(build: Path, folder: Path) -> None:
    """The build's compile commands as clang-tidy is to see them."""
    entries = json.loads((build / "compile_commands.json").read_text())
    for entry in entries:
        entry["command"] = without_precompiled(entry["command"])
    (folder / "compile_commands.json").write_text(json.dumps(entries))


def units(root: Path, database_folder: Path) -> list[Unit]:
    database = json.loads((database_folder / "compile_commands.json").read_text())
    found = [Unit(Path(e["file"]), e["directory"], tuple(shlex.split(e["command"]))) for e in database]
    source = root / "src"
    kernel = [u for u in found if u.path.is_relative_to(source) and u.path.exists()]
    return sorted((u for u in kernel if not u.path.stem.endswith(("_test", "_fuzz", "_bench"))), key=lambda u: u.path)


@dataclass(frozen=True)
class Check:
    """What is the same for all files of one run."""

    root: Path
    cache: Path
    config: bytes
    deadline: float
    keys: dict[Unit, str] = field(default_factory=dict)

    def unclean(self, chosen: list[Unit]) -> tuple[list[Unit], list[str]]:
        """The files to check, and a word on each that does not even preprocess."""
        with ThreadPoolExecutor(JOBS) as pool:
            keys = dict(zip(chosen, pool.map(lambda u: u.key(self.config), chosen), strict=True))
        self.keys.update({unit: key for unit, key in keys.items() if key is not None})
        broken = [f"{u.path.relative_to(self.root)}: does not preprocess\n" for u in chosen if keys[u] is None]
        return [u for u in chosen if u in self.keys and not (self.cache / self.keys[u]).exists()], broken

    def together(self, group: list[Unit]) -> str:
        """Empty: clean. Otherwise the findings, or why it was not checked."""
        left = self.deadline - time.monotonic()
        names = ", ".join(str(unit.path.relative_to(self.root)) for unit in group)
        if left <= 0:
            return f"{names}: NOT CHECKED, the time is over\n"
        try:
            done = self.run(group, left)
        except subprocess.TimeoutExpired:
            return f"{names}: NOT CHECKED, the time is over\n"
        if done.returncode == 0:
            for unit in group:
                (self.cache / self.keys[unit]).touch()
            return ""
        if len(group) > 1 and COMPILE_ERROR in done.stdout:  # names of theirs clash
            middle = len(group) // 2
            return self.together(group[:middle]) + self.together(group[middle:])
        return done.stdout + ("" if done.stdout.strip() else done.stderr)

    def run(self, group: list[Unit], left: float) -> subprocess.CompletedProcess[str]:
        source, folder = group[0].path, self.cache
        if len(group) > 1:
            folder = self.cache / ("group-" + self.keys[group[0]][:16])
            folder.mkdir(exist_ok=True)
            source = folder / "all.cc"
            source.write_text("".join(f'#include "{unit.path}"  // NOLINT(bugprone-suspicious-include)\n' for unit in group))
            entry = {"directory": group[0].directory, "file": str(source), "arguments": group[0].arguments_for(source)}
            (folder / "compile_commands.json").write_text(json.dumps([entry]))
        command = ["nice", "-n", "5", "clang-tidy-14", "--quiet", f"--config-file={self.root / '.clang-tidy'}"]
        command += ["-p", str(folder), *EXTRA, str(source)]
        return subprocess.run(command, capture_output=True, text=True, timeout=left)


def groups_of(chosen: list[Unit]) -> list[list[Unit]]:
    """Neighbours of one folder, read together: most of a check's time goes into the headers they share."""
    groups: list[list[Unit]] = []
    for unit in chosen:
        last = groups[-1] if groups else []
        if last and len(last) < GROUP_MAX and last[0].path.parent == unit.path.parent and last[0].flags() == unit.flags():
            last.append(unit)
        else:
            groups.append([unit])
    return sorted(groups, key=len, reverse=True)


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
    check = Check(root, cache, config, time.monotonic() + arguments.time_limit_s)
    unclean, findings = check.unclean(chosen)
    with ThreadPoolExecutor(JOBS) as pool:
        findings += [text for text in pool.map(check.together, groups_of(unclean)) if text]
    for text in findings:
        print(text, end="")
    print(f"{len(chosen)} files, {len(findings)} places with findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
