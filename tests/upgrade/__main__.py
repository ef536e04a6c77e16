"""python -m upgrade NAME: makes folders/NAME-clean.tar.xz and folders/NAME-killed.tar.xz with the build that is there, and of
clusters folders/NAME-<profile>.tar.xz, for the tests of all later ones. Once per data format, before a commit that changes it
lands."""

import argparse
import json
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from strata_cli import cluster_backup, paths
from strata_cli.cluster import FIRST_COMPUTE, Cluster
from strata_cli.server import Server, Settings, choose_port

from .contents import OF_CLUSTER, SMALL, facts, fill, kept_files, leave_unfinished

FOLDERS = Path(__file__).resolve().parent / "folders"
PLACE = paths.BUILD / "upgrade"
PORT = 23560


# Of each way in which storage nodes keep pages: written, versions, replayed in place.
PROFILES = ("remote-disk", "logdb-mv", "logdb")


def pack(places: Iterable[Path], name: str) -> None:
    archive = FOLDERS / f"{name}.tar.xz"
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for place in places:
            packed.add(place, arcname=place.name)
    print(f"{paths.relative(archive)}: {archive.stat().st_size:,} bytes")


def write_facts(expected: dict[str, Any], name: str) -> None:
    (FOLDERS / f"{name}.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


def make(name: str, killed: bool, family: bool) -> None:
    server = Server(PLACE / name)
    server.wipe()
    try:
        server.start(Settings(port=choose_port(None, PORT), options=SMALL))
        fill(server, family)
        expected = facts(server)
        if killed:
            held = leave_unfinished(server)
            expected = {**expected, "renamed": facts(server)["renamed"]}
            server.kill()
            del held
        elif not server.stop():
            raise SystemExit("the server did not stop")
        pack(kept_files(server.datadir), name)
        write_facts(expected, name)
    finally:
        server.kill()
        shutil.rmtree(server.data, ignore_errors=True)


def make_cluster(name: str, profile: str) -> None:
    """A backup, which is a storage node's folder as kill -9 would have left it."""
    cluster = Cluster(PLACE / name)
    made = PLACE / f"{name}-backup"
    try:
        cluster.compute_options = OF_CLUSTER
        cluster.start(profile)
        server = cluster.computes[FIRST_COMPUTE]
        fill(server, with_family=True)
        expected = facts(server)
        shutil.rmtree(made, ignore_errors=True)
        cluster_backup.backup(cluster, made, as_json=True)
        pack(sorted(made.iterdir()), name)
        write_facts(expected, name)
    finally:
        cluster.kill()
        shutil.rmtree(made, ignore_errors=True)
        cluster.wipe()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="such as 3-before-foreign-keys")
    parser.add_argument("--no-foreign-keys", action="store_true", help="of a build that has none")
    arguments = parser.parse_args()
    FOLDERS.mkdir(exist_ok=True)
    make(f"{arguments.name}-clean", killed=False, family=not arguments.no_foreign_keys)
    make(f"{arguments.name}-killed", killed=True, family=not arguments.no_foreign_keys)
    for profile in PROFILES:
        make_cluster(f"{arguments.name}-{profile}", profile)


if __name__ == "__main__":
    main()
