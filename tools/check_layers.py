#!/usr/bin/env python3
"""Checks every #include of src/, cmd/ and mariadb/ against src/layers.toml.

A folder may include itself and the folders its line names. Headers under <folder>/internal/ are private to the folder.
Tests (*_test.cc, *_fuzz.cc, *_bench.cc, *_test_support.h, what is in a folder testing/) may, besides,
include what the folders they may include are allowed to include.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = (".h", ".cc", ".def")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


@dataclass(frozen=True)
class Layers:
    allowed: dict[str, frozenset[str]]

    @classmethod
    def load(cls, path: Path) -> "Layers":
        table = tomllib.loads(path.read_text())["layers"]
        return cls({folder: frozenset(names) for folder, names in table.items()})

    def problems(self) -> list[str]:
        """The map itself: only known names, no cycles."""
        found = [
            f"layers.toml: {f} names unknown folder {n}" for f, names in self.allowed.items() for n in names - self.allowed.keys()
        ]
        for folder in self.allowed:
            if folder in self.reachable(folder):
                found.append(f"layers.toml: {folder} depends on itself in a circle")
        return found

    def reachable(self, folder: str) -> set[str]:
        seen: set[str] = set()
        todo = list(self.allowed.get(folder, ()))
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += self.allowed.get(name, ())
        return seen


def includes(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1]


def is_test(path: Path) -> bool:
    return path.stem.endswith(("_test", "_fuzz", "_bench", "_test_support")) or path.parent.name == "testing"


def check_file(folder: str, path: Path, text: str, layers: Layers, folders: set[str]) -> list[str]:
    problems: list[str] = []
    allowed = set(layers.allowed.get(folder, frozenset())) | {folder, "base"}
    if is_test(path):
        allowed |= layers.reachable(folder)
    for number, target in includes(text):
        other = target.split("/", 1)[0]
        if "/" not in target or other not in folders:
            continue  # A header beside the file, or one that is not ours.
        if other not in allowed:
            problems.append(f"{path}:{number}: {folder} may not include {target} (see src/layers.toml)")
        if "/internal/" in target and other != folder:
            problems.append(f"{path}:{number}: {target} is private to {other}")
    return problems


def check_tree(root: Path) -> list[str]:
    layers = Layers.load(root / "src" / "layers.toml")
    problems = layers.problems()
    folders = {p.name for p in (root / "src").iterdir() if p.is_dir()} | layers.allowed.keys()
    places = [(p.name, p) for p in sorted((root / "src").iterdir()) if p.is_dir()]
    places += [(name, root / name) for name in ("cmd", "mariadb")]
    for folder, place in places:
        files = [p for p in sorted(place.rglob("*")) if p.suffix in SOURCES]
        if files and folder not in layers.allowed:
            problems.append(f"{place}: the folder is not in src/layers.toml")
        for path in files:
            problems += check_file(folder, path.relative_to(root), path.read_text(errors="replace"), layers, folders)
    return problems


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    problems = check_tree(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
