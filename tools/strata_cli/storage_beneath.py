"""Storage nodes beneath a server that somebody else starts: MariaDB's test runner, the differential and isolation tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .cluster import FIRST_COMPUTE, Cluster
from .profile_list import MONOLITHIC, OF_ONE_WRITER
from .server import DEFAULT_PORT
from .shell import StrataError

# A server on a fresh folder is another node: it waits so long for the one before, if that was killed.
LEASE_S = 3


@contextmanager
def storage_beneath(profile: str, folder: Path, preset: str = "release") -> Iterator[tuple[str, ...]]:
    """Etcd and storage nodes of a new database in `folder`, gone afterwards; yields the options of a server that runs on them.

    Profile monolithic needs nothing and yields nothing.
    """
    if profile == MONOLITHIC:
        yield ()
        return
    if profile not in OF_ONE_WRITER:
        raise StrataError(f"profile '{profile}' is not available here; there is: {', '.join((MONOLITHIC, *OF_ONE_WRITER))}")
    _remove(Cluster(folder, preset=preset))
    cluster = Cluster(folder, preset=preset)
    cluster.lease_s = LEASE_S
    try:
        cluster.start(profile, with_compute=False)
        yield tuple(cluster.compute_settings(FIRST_COMPUTE, DEFAULT_PORT).options)
    finally:
        _remove(cluster)


def _remove(cluster: Cluster) -> None:
    cluster.kill()
    if cluster.exists():
        cluster.wipe()
