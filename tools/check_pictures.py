#!/usr/bin/env python3
"""The pictures in docs/pictures are what is made from their descriptions, and nothing in them overlaps.

processes.svg is made from processes.txt, modules.svg from src/layers.toml and modules.toml. `--write` makes them anew.
"""

import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from strata_cli.pictures import layered, nested
from strata_cli.pictures.canvas import Canvas

PLACE = Path("docs") / "pictures"


def pictures(root: Path) -> dict[str, Canvas]:
    layers = tomllib.loads((root / "src" / "layers.toml").read_text())["layers"]
    groups = tomllib.loads((root / PLACE / "modules.toml").read_text())
    return {
        "processes.svg": nested.draw((root / PLACE / "processes.txt").read_text()),
        "modules.svg": layered.draw(layers, groups),
    }


def check_tree(root: Path, write: bool) -> list[str]:
    try:
        drawn = pictures(root)
    except (nested.DescriptionError, layered.GroupError) as error:
        return [f"{PLACE}: {error}"]
    problems: list[str] = []
    for name, canvas in drawn.items():
        problems += [f"{PLACE / name}: {problem}" for problem in canvas.problems()]
        path = root / PLACE / name
        if write:
            path.write_text(canvas.svg())
        elif not path.exists() or path.read_text() != canvas.svg():
            problems.append(f"{PLACE / name}: it is not current: run tools/check_pictures.py --write")
    return problems


def main() -> int:
    problems = check_tree(Path(__file__).resolve().parents[1], "--write" in sys.argv[1:])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
