"""Where things are in the checkout. Everything generated is under build/ (or data/ for databases)."""

import hashlib
import os
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
VENV = BUILD / "venv"
LOGS = BUILD / "logs"
RUN = BUILD / "run"
DATA_DEFAULT = ROOT / "data"

# The project's own apt configuration, package lists and downloads (private_apt.py).
APT = BUILD / "apt"

ETCD = BUILD / "etcd"
ETCD_ROOT = ETCD / "root"
ETCD_VERSION_FILE = ETCD / "VERSION"

MARIADB = BUILD / "mariadb"
MARIADB_ROOT = MARIADB / "root"
MARIADB_SOURCE = MARIADB / "source"
MARIADB_GEN = MARIADB / "gen"
MARIADB_VERSION_FILE = MARIADB / "VERSION"
MARIADB_PATHS_CMAKE = MARIADB / "paths.cmake"

# A Unix socket path has at most 107 usable bytes (sockaddr_un.sun_path).
SOCKET_PATH_BYTES_MAX = 107


def preset_dir(preset: str) -> Path:
    return BUILD / preset


def plugin_path(preset: str) -> Path:
    return BUILD / preset / "mariadb" / "ha_strata.so"


def storenode_path(preset: str) -> Path:
    return BUILD / preset / "cmd" / "strata-storenode" / "strata-storenode"


def memnode_path(preset: str) -> Path:
    return BUILD / preset / "cmd" / "strata-memnode" / "strata-memnode"


def venv_bin(name: str) -> Path:
    return VENV / "bin" / name


def hash_of(path: Path) -> str:
    """A short name of a long path."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def socket_path(folder: Path, name: str) -> Path:
    """Of the one socket in that folder, or elsewhere when its path is too long."""
    path = folder / name
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path
    return Path(tempfile.gettempdir()) / f"strata-{os.getuid()}-{hash_of(folder)}.sock"


def relative(path: Path) -> str:
    """A path as the user would type it from the checkout."""
    try:
        return str(path.relative_to(ROOT))
    except ValueError:
        return str(path)
