#!/usr/bin/env python3
"""clang-tidy 14 over the kernel's sources, with Clang's thread-safety analysis; a file already found clean is skipped.

A file's key is what it and the project's headers that it reaches contain, so a change of a header checks all its users.
Most of a check's time goes into the library headers that all files share, so many files are checked as one translation
unit: files of which none sees what another defines for itself, and apart where they clash nevertheless.
"""

import argparse
import hashlib
import json
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from strata_cli.draw import takes

JOBS = 2
GROUP_MAX = 24
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

    def flags(self) -> tuple[str, ...]:
        """What makes the same source mean something else."""
        return tuple(word for word in self.command if word.startswith(("-I", "-isystem", "-std", "-m")))

    def additions(self) -> set[str]:
        """What does not harm the neighbours of a file that wants it."""
        return {word for word in self.command if word.startswith("-D") or word == "-fno-exceptions"}


INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


TYPE = re.compile(r"(?:class|struct|enum class|union)\s+(\w+)|using\s+(?:\w+::)*(\w+)\b")
FUNCTION_OR_CONSTANT = re.compile(r"[^(={[;]*(?<![:\w~])(\w+)\s*[(={[;]")
MORE_CONSTANTS = re.compile(r", (k[A-Z]\w*) =")
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)


def names_of(text: str) -> set[str]:
    """What a file defines outside of classes, roughly: clang-format lets such a definition begin its line."""
    namespace = NAMESPACE.search(text)
    lines = [line for line in text.splitlines() if line and line[0] not in "#}/ " and not line.startswith("namespace")]
    matches = (TYPE.match(line) or FUNCTION_OR_CONSTANT.match(line) for line in lines)
    found = {match[match.lastindex or 0] for match in matches if match} - {"namespace", "static_assert", "void"}
    found |= {name for line in lines for name in MORE_CONSTANTS.findall(line)}
    return {f"{namespace[1]}::{name}" if namespace else name for name in found}


@dataclass(frozen=True)
class Source:
    digest: bytes
    names: frozenset[str]
    included: tuple[Path, ...]


class Sources:
    """The files of the project: what each defines, and which headers of the project it reaches."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, Source] = {}

    def key(self, unit: Unit, config: bytes) -> str:
        """What a file's check depends on, of the project."""
        digest = hashlib.sha256(config + shlex.join(unit.command).encode())
        for path in sorted(self._reached(unit.path)):
            digest.update(str(path).encode() + self._look(path).digest)
        return digest.hexdigest()

    def seen(self, path: Path) -> frozenset[str]:
        """What it defines, and what its headers define or declare."""
        return frozenset().union(*(self._look(reached).names for reached in self._reached(path)))

    def own(self, path: Path) -> frozenset[str]:
        """What it defines for itself: no header of it knows that."""
        headers = self._reached(path) - {path}
        return self._look(path).names.difference(*(self._look(header).names for header in headers))

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def _reached(self, start: Path) -> set[Path]:
        reached: set[Path] = set()
        left = [start]
        while left:
            path = left.pop()
            if path not in reached:
                reached.add(path)
                left += self._look(path).included
        return reached

    def _look(self, path: Path) -> Source:
        if path not in self._read:
            text = path.read_text()
            places = [place for name in INCLUDE.findall(text) for place in (self._folder / name, path.parent / name)]
            included = tuple(place for place in places if place.is_file())
            self._read[path] = Source(hashlib.sha256(text.encode()).digest(), frozenset(names_of(text)), included)
        return self._read[path]


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


def units(root: Path, database_folder: Path, folders: tuple[str, ...] = ("src",)) -> list[Unit]:
    database = json.loads((database_folder / "compile_commands.json").read_text())
    found = [Unit(Path(e["file"]), e["directory"], tuple(shlex.split(e["command"]))) for e in database]
    kernel = [u for u in found if any(u.path.is_relative_to(root / each) for each in folders) and u.path.exists()]
    return sorted((u for u in kernel if not u.path.stem.endswith(("_test", "_fuzz", "_bench"))), key=lambda u: u.path)


@dataclass(frozen=True)
class Check:
    """What is the same for all files of one run."""

    root: Path
    cache: Path
    keys: dict[Unit, str]
    deadline: float

    def unclean(self) -> list[Unit]:
        return [unit for unit, key in self.keys.items() if not (self.cache / key).exists()]

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
            additions = set().union(*(unit.additions() for unit in group))
            arguments = [*group[0].arguments_for(source), *sorted(additions)]
            entry = {"directory": group[0].directory, "file": str(source), "arguments": arguments}
            (folder / "compile_commands.json").write_text(json.dumps([entry]))
        command = ["nice", "-n", "5", "clang-tidy-14", "--quiet", f"--config-file={self.root / '.clang-tidy'}"]
        command += ["-p", str(folder), *EXTRA, str(source)]
        return subprocess.run(command, capture_output=True, text=True, timeout=left)


def groups_of(chosen: list[Unit], sources: Sources) -> list[list[Unit]]:
    """Groups of about the same size (in bytes), without two files of which one sees what the other defines for itself."""
    groups: list[list[Unit]] = []
    for flags in sorted({unit.flags() for unit in chosen}):
        alike = [unit for unit in chosen if unit.flags() == flags]
        groups += _parted(alike, -(-len(alike) // GROUP_MAX), sources)
    return [sorted(group, key=lambda u: u.path) for group in sorted(groups, key=len, reverse=True)]


@dataclass
class Group:
    units: list[Unit] = field(default_factory=list)
    own: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    size: int = 0


def _parted(alike: list[Unit], count: int, sources: Sources) -> list[list[Unit]]:
    groups = [Group() for _ in range(count)]
    for unit in sorted(alike, key=lambda u: (-sources.size(u.path), u.path)):
        own, seen = sources.own(unit.path), sources.seen(unit.path)
        free = [group for group in groups if not group.own & seen and not group.seen & own]
        if not free:
            free = [Group()]
            groups += free
        chosen = min(free, key=lambda group: group.size)
        chosen.units.append(unit)
        chosen.own |= own
        chosen.seen |= seen
        chosen.size += sources.size(unit.path)
    return [group.units for group in groups if group.units]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--time-limit-s", type=float, default=900)
    parser.add_argument("--share", type=float, default=1, help="check only so much of the files")
    parser.add_argument("--draw", default="", help="with --share: a word from which they are drawn, such as a commit")
    parser.add_argument("folders", nargs="*", help="only these folders of src/, with those in them: btree, storenode/copy")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    build = arguments.build if arguments.build.is_absolute() else root / arguments.build
    cache = root / "build" / "checks" / "tidy"
    cache.mkdir(parents=True, exist_ok=True)
    config = (root / ".clang-tidy").read_bytes() + " ".join(EXTRA).encode()
    sources = Sources(root / "src")
    write_database(build, cache)
    wanted = tuple(root / "src" / folder.removeprefix("src/") for folder in arguments.folders) or (root,)
    for folder in wanted:
        if not folder.is_dir():
            parser.error(f"there is no {folder.relative_to(root)}: name folders as src/ has them")
    chosen = [u for u in units(root, cache) if any(u.path.is_relative_to(folder) for folder in wanted)]
    chosen = [u for u in chosen if takes(arguments.draw, str(u.path.relative_to(root)), arguments.share)]
    check = Check(root, cache, {unit: sources.key(unit, config) for unit in chosen}, time.monotonic() + arguments.time_limit_s)
    with ThreadPoolExecutor(JOBS) as pool:
        findings = [text for text in pool.map(check.together, groups_of(check.unclean(), sources)) if text]
    for text in findings:
        print(text, end="")
    print(f"{len(chosen)} files, {len(findings)} places with findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
