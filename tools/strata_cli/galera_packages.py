"""The private Galera: Debian's galera-4, the library with which MariaDB servers replicate each other's write sets, unpacked under
build/galera and never installed. Only what compares with it fetches it; nothing of the engine needs it."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from . import paths, private_apt
from .shell import StrataError

PACKAGE = "galera-4"
SERIES = "26.4."  # Of the interface that MariaDB 10.4 and later have.
FOLDER = paths.BUILD / "galera"
ROOT = FOLDER / "root"
VERSION_FILE = FOLDER / "VERSION"

Say = Callable[[str], None]


def library() -> Path:
    return ROOT / "usr" / "lib" / "galera" / "libgalera_smm.so"


def is_ready() -> bool:
    """VERSION is written last, so its presence means that everything before it was done."""
    return VERSION_FILE.exists() and library().exists()


def version() -> str:
    return VERSION_FILE.read_text().strip()


def fetch(say: Say) -> None:
    if is_ready():
        return
    say("Galera: reading the package lists (private apt configuration)")
    private_apt.refresh()
    debs = FOLDER / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    candidates = usable(private_apt.binary_versions(PACKAGE))
    for chosen in candidates:
        say(f"Galera {chosen}: downloading")
        if private_apt.download(["download", "-q", f"{PACKAGE}={chosen}"], debs):
            _unpack(debs, chosen)
            return
    tried = ", ".join(candidates) or "none listed"
    raise StrataError(f"{PACKAGE} could not be downloaded (tried: {tried}); see build/logs/setup-apt.log")


def usable(versions: set[str]) -> list[str]:
    """Newest first."""
    return private_apt.newest_first(v for v in versions if v.split(":", 1)[-1].startswith(SERIES))


def _unpack(debs: Path, chosen: str) -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    for deb in debs.glob(f"{PACKAGE}_{chosen.replace(':', '%3a')}_*.deb"):
        subprocess.run(["dpkg", "-x", str(deb), str(ROOT)], check=True)
    shutil.rmtree(debs)
    if not library().exists():
        raise StrataError(f"{PACKAGE} {chosen} holds no {library().relative_to(ROOT)}")
    _check_libraries()
    VERSION_FILE.write_text(chosen + "\n")


def _check_libraries() -> None:
    listed = subprocess.run(["ldd", str(library())], capture_output=True, text=True).stdout
    missing = re.findall(r"^\s*(\S+) => not found", listed, re.MULTILINE)
    if missing:
        raise StrataError(f"Galera needs libraries that this system does not have: {', '.join(missing)}")
