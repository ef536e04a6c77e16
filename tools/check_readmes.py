#!/usr/bin/env python3
"""Every folder of src/ and cmd/ that holds sources has a README.md with a purpose."""

import sys
from pathlib import Path

PURPOSE_CHARS_MIN = 80


def check_tree(root: Path) -> list[str]:
    problems: list[str] = []
    places = [root / name for name in ("src", "cmd") if (root / name).is_dir()]
    for folder in sorted(p for place in places for p in place.iterdir() if p.is_dir()):
        if not any(p.suffix in (".h", ".cc") for p in folder.iterdir()):
            continue
        readme = folder / "README.md"
        if not readme.exists():
            problems.append(f"{folder.relative_to(root)}: README.md is missing")
        elif len(readme.read_text().strip()) < PURPOSE_CHARS_MIN:
            problems.append(f"{readme.relative_to(root)}: says nothing")
    return problems


def main() -> int:
    problems = check_tree(Path(__file__).resolve().parents[1])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
