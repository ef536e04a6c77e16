"""python -m upgrade NAME: makes folders/NAME-clean.tar.xz and folders/NAME-killed.tar.xz with the build that is there, for the
tests of all later ones. Once per data format, before a commit that changes it lands."""

import argparse
import json
import shutil
import tarfile
from pathlib import Path

from strata_cli import paths
from strata_cli.server import Server, Settings, choose_port

from .contents import SMALL, facts, fill, kept_files, leave_unfinished

FOLDERS = Path(__file__).resolve().parent / "folders"
PLACE = paths.BUILD / "upgrade"
PORT = 23560


def pack(server: Server, name: str) -> None:
    archive = FOLDERS / f"{name}.tar.xz"
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for place in kept_files(server.datadir):
            packed.add(place, arcname=place.name)
    print(f"{paths.relative(archive)}: {archive.stat().st_size:,} bytes")


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
        pack(server, name)
        (FOLDERS / f"{name}.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
    finally:
        server.kill()
        shutil.rmtree(server.data, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="such as 3-before-foreign-keys")
    parser.add_argument("--no-foreign-keys", action="store_true", help="of a build that has none")
    arguments = parser.parse_args()
    FOLDERS.mkdir(exist_ok=True)
    make(f"{arguments.name}-clean", killed=False, family=not arguments.no_foreign_keys)
    make(f"{arguments.name}-killed", killed=True, family=not arguments.no_foreign_keys)


if __name__ == "__main__":
    main()
