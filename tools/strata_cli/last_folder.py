"""The data folder that commands mean when none is named: the one used last that is still there."""

from pathlib import Path

from . import paths
from .shell import errors

KEPT = 20  # Tests use many, and delete them.


def _file() -> Path:
    return paths.RUN / "data-folders"


def _known() -> list[Path]:
    """The newest first."""
    try:
        return [Path(line) for line in _file().read_text().splitlines() if line]
    except OSError:
        return []


def use(data: Path) -> Path:
    """Keeps in mind that this one was used."""
    place = data.resolve()
    lines = [str(place), *(str(other) for other in _known() if other != place)][:KEPT]
    paths.RUN.mkdir(parents=True, exist_ok=True)
    new = _file().with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines))
    new.replace(_file())
    return data


def last() -> Path:
    return next((place for place in _known() if place.is_dir()), paths.DATA_DEFAULT)


def named_or_last(data: Path | None) -> Path:
    """Says on stderr which one it is when it is none that a newcomer would expect."""
    if data is not None:
        return use(data) if data.is_dir() else data
    place = last()
    if place != paths.DATA_DEFAULT:
        errors.print(f"data folder {paths.relative(place)}, used last (another one: --data)", markup=False)
    return place
