#!/usr/bin/env python3
"""Checks every #include of src/, cmd/ and mariadb/ against src/layers.toml.

A layer is a folder with a line there, and everything below it that has no line of its own: the longest one counts. A layer
may include itself and the layers its line names. Headers under <folder>/internal/ are for that folder and those below it.
Tests (*_test.cc, *_fuzz.cc, *_bench.cc, *_test_support.h, what is in a folder testing/) may, besides,
include what the layers they may include are allowed to include, and the simulations (folders sim/) of all those.
What a library links with (DEPS of its strata_library) has to be within the layers its folder may include.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = (".h", ".cc", ".def")
LIBRARY = re.compile(r"strata_library\((\w+)\s([^)]*)\)")
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

    def tops(self) -> set[str]:
        return {name.split("/", 1)[0] for name in self.allowed}

    def layer_of(self, place: str) -> str | None:
        """The longest layer that the path is in."""
        parts = place.split("/")
        names = ("/".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((name for name in names if name in self.allowed), None)

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


def check_file(layer: str, path: Path, text: str, layers: Layers, place: str) -> list[str]:
    """`place`: the file's path as an #include would have it."""
    problems: list[str] = []
    allowed = set(layers.allowed[layer]) | {layer, "base"}
    if is_test(path):
        allowed |= layers.reachable(layer)
        allowed |= {f"{name}/sim" for name in allowed} & layers.allowed.keys()
    for number, target in includes(text):
        if "/" not in target or target.split("/", 1)[0] not in layers.tops():
            continue  # A header beside the file, or one that is not ours.
        other = layers.layer_of(target)
        if other not in allowed:
            problems.append(f"{path}:{number}: {layer} may not include {target} (see src/layers.toml)")
        owner = target.partition("/internal/")[0]
        if owner != target and not place.startswith(f"{owner}/"):
            problems.append(f"{path}:{number}: {target} is private to {owner}")
    return problems


def check_libraries(root: Path, layers: Layers) -> list[str]:
    """Whatever a library's folder may not include it may not link with either."""
    listed: dict[str, tuple[Path, list[str]]] = {}
    for path in sorted((root / "src").rglob("CMakeLists.txt")):
        for name, arguments in LIBRARY.findall(path.read_text()):
            listed[f"strata_{name}"] = path, re.split(r"\bDEPS\b", arguments)[-1].split()
    problems: list[str] = []
    for name, (path, needed) in listed.items():
        layer = layers.layer_of(place_of(root, path))
        for other in needed:
            if layer and other in listed:
                target = layers.layer_of(place_of(root, listed[other][0]))
                if target not in layers.allowed[layer] | {layer, "base"}:
                    problems.append(f"{path.relative_to(root)}: {name} may not need {other}: {layer} is not above {target}")
    return problems


def place_of(root: Path, path: Path) -> str:
    name = path.relative_to(root).as_posix()
    return name.removeprefix("src/")


def check_tree(root: Path) -> list[str]:
    layers = Layers.load(root / "src" / "layers.toml")
    problems = layers.problems()
    unlisted: set[Path] = set()
    for top in (root / "src", root / "cmd", root / "mariadb"):
        for path in sorted(top.rglob("*")):
            if path.suffix not in SOURCES:
                continue
            place = place_of(root, path)
            layer = layers.layer_of(place)
            if layer:
                problems += check_file(layer, path.relative_to(root), path.read_text(errors="replace"), layers, place)
            elif path.parent not in unlisted:
                unlisted.add(path.parent)
                problems.append(f"{path.parent.relative_to(root)}: the folder is not in src/layers.toml")
    return problems + check_libraries(root, layers)


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    problems = check_tree(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
