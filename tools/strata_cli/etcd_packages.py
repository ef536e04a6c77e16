"""The private etcd: Debian's etcd-server, unpacked under build/etcd and never installed, so that no system service starts."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from . import paths, private_apt
from .shell import StrataError

PACKAGE = "etcd-server"
VERSION_MIN = (3, 4)  # The first whose JSON gateway is at /v3/.

Say = Callable[[str], None]


def etcd() -> Path:
    return paths.ETCD_ROOT / "usr" / "bin" / "etcd"


def is_ready() -> bool:
    """VERSION is written last, so its presence means that everything before it was done."""
    return paths.ETCD_VERSION_FILE.exists() and etcd().exists()


def version() -> str:
    return paths.ETCD_VERSION_FILE.read_text().strip()


def fetch(say: Say) -> None:
    if is_ready():
        return
    say("etcd: reading the package lists (private apt configuration)")
    private_apt.refresh()
    debs = paths.ETCD / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    candidates = usable(private_apt.binary_versions(PACKAGE))
    for chosen in candidates:
        say(f"etcd {chosen}: downloading")
        if private_apt.download(["download", "-q", f"{PACKAGE}={chosen}"], debs):
            _unpack(debs, chosen)
            return
    tried = ", ".join(candidates) or "none listed"
    raise StrataError(f"{PACKAGE} could not be downloaded (tried: {tried}); see build/logs/setup-apt.log")


def usable(versions: set[str]) -> list[str]:
    """Newest first, without those that are too old."""
    numbers = {v: re.match(r"(?:\d+:)?(\d+)\.(\d+)", v) for v in versions}
    return private_apt.newest_first(v for v, m in numbers.items() if m and (int(m[1]), int(m[2])) >= VERSION_MIN)


def _unpack(debs: Path, chosen: str) -> None:
    shutil.rmtree(paths.ETCD_ROOT, ignore_errors=True)
    paths.ETCD_ROOT.mkdir(parents=True)
    for deb in debs.glob(f"{PACKAGE}_{chosen.replace(':', '%3a')}_*.deb"):
        subprocess.run(["dpkg", "-x", str(deb), str(paths.ETCD_ROOT)], check=True)
    shutil.rmtree(debs)
    if not etcd().exists():
        raise StrataError(f"{PACKAGE} {chosen} holds no usr/bin/etcd")
    paths.ETCD_VERSION_FILE.write_text(chosen + "\n")
