"""The private PostgreSQL 15: Debian's packages, unpacked under build/postgres and never installed, so that no system service
starts. For experiments with far memory; nothing of the engine needs it."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from . import paths, private_apt
from .shell import StrataError

PACKAGES = ("postgresql-15", "postgresql-client-15", "libpq5")
FOLDER = paths.BUILD / "postgres"
ROOT = FOLDER / "root"
VERSION_FILE = FOLDER / "VERSION"

Say = Callable[[str], None]


def program(name: str) -> Path:
    return ROOT / "usr" / "lib" / "postgresql" / "15" / "bin" / name


def libraries() -> Path:
    """Where libpq is; the others are the system's."""
    return next((ROOT / "usr" / "lib").glob("*-linux-gnu"), ROOT)


def is_ready() -> bool:
    """VERSION is written last, so its presence means that everything before it was done."""
    return VERSION_FILE.exists() and program("postgres").exists()


def version() -> str:
    return VERSION_FILE.read_text().strip()


def fetch(say: Say) -> None:
    if is_ready():
        return
    say("PostgreSQL: reading the package lists (private apt configuration)")
    private_apt.refresh()
    debs = FOLDER / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    candidates = complete_versions()
    for chosen in candidates:
        say(f"PostgreSQL {chosen}: downloading")
        if all(private_apt.download(["download", "-q", f"{package}={chosen}"], debs) for package in PACKAGES):
            _unpack(debs, chosen)
            return
    tried = ", ".join(candidates) or "none listed"
    raise StrataError(f"PostgreSQL 15 could not be downloaded (tried: {tried}); see build/logs/setup-apt.log")


def complete_versions() -> list[str]:
    """Versions that the package lists name for every package, newest first."""
    found = set.intersection(*(private_apt.binary_versions(package) for package in PACKAGES))
    return private_apt.newest_first(version for version in found if version.startswith("15."))


def _unpack(debs: Path, chosen: str) -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    for package in PACKAGES:
        for deb in debs.glob(f"{package}_{chosen.replace(':', '%3a')}_*.deb"):
            subprocess.run(["dpkg", "-x", str(deb), str(ROOT)], check=True)
    shutil.rmtree(debs)
    _check_libraries()
    VERSION_FILE.write_text(chosen + "\n")


def _check_libraries() -> None:
    listed = subprocess.run(["ldd", str(program("postgres"))], capture_output=True, text=True).stdout
    missing = re.findall(r"^\s*(\S+) => not found", listed, re.MULTILINE)
    if missing:
        raise StrataError(f"PostgreSQL needs libraries that this system does not have: {', '.join(missing)}")
