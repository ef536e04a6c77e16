"""What the backup command does without a server: which of a server's files it copies, and copies again, and what it notices when
it verifies a backup."""

import json
from pathlib import Path

import pytest
from strata_cli import backup_manifest, changing_files
from strata_cli.backup_manifest import Manifest
from strata_cli.backup_server_files import ServerFiles
from strata_cli.shell import StrataError


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def write(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_the_servers_own_files_are_copied_and_what_changes_again(tmp_path: Path) -> None:
    datadir, to = tmp_path / "mysql", tmp_path / "copy"
    left_out = (
        "#strata/control-1",
        "ibdata1",
        "mysql/x.ibd",
        "bin.000001",
        "bin.index",
        "relay.000002",
        "master.info",
        "host.log",
        "a.pid",
    )
    kept = ("mysql/db.frm", "mysql/db.MAD", "test/db.opt", "aria_log_control", "ddl_recovery.log", "gone/t.frm")
    write(datadir, *left_out, *kept)
    to.mkdir()
    files = ServerFiles(datadir, to, "#strata", ["bin", str(datadir / "relay")])
    assert files.copy(writers_held=True) == len(kept)
    assert names(to) == {*kept, "mysql", "test", "gone"}

    (datadir / "mysql" / "db.MAD").write_text("changed")
    write(datadir, "test/new.frm")
    (datadir / "gone" / "t.frm").unlink()
    (datadir / "gone").rmdir()
    assert files.copy(writers_held=True) >= 2
    assert (to / "mysql" / "db.MAD").read_text() == "changed"
    assert names(to) == {*kept, "mysql", "test", "test/new.frm"} - {"gone/t.frm"}


def test_only_what_has_changed_is_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_files, "SURE_AFTER_NS", 0)
    write(tmp_path / "mysql", "a.frm", "b.frm", "c.MYD")
    (tmp_path / "copy").mkdir()
    files = ServerFiles(tmp_path / "mysql", tmp_path / "copy", "#strata", [])
    assert files.copy(writers_held=True) == 3
    assert files.copy(writers_held=True) == 1  # A mapped file may have changed without a new time.
    (tmp_path / "mysql" / "a.frm").write_text("changed")
    assert files.copy(writers_held=True) == 2


def test_what_never_keeps_still_is_left_for_when_its_writers_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mysql", "a.frm", "aria_log")
    (tmp_path / "copy").mkdir()
    copy_file = changing_files.copy_file

    def copy_and_change(source: Path, target: Path) -> None:
        copy_file(source, target)
        if source.name == "aria_log":
            source.write_text(source.read_text() + "+")

    files = ServerFiles(tmp_path / "mysql", tmp_path / "copy", "#strata", [])
    with monkeypatch.context() as busy:
        busy.setattr(changing_files, "copy_file", copy_and_change)
        assert files.copy(writers_held=False) == 1
        assert names(tmp_path / "copy") == {"a.frm"}
        with pytest.raises(StrataError, match="aria_log changes all the time"):
            files.copy(writers_held=True)
    files.copy(writers_held=True)
    assert (tmp_path / "copy" / "aria_log").read_text() == (tmp_path / "mysql" / "aria_log").read_text()


def test_links_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "mysql", "a.frm")
    (tmp_path / "mysql" / "elsewhere").symlink_to(tmp_path)
    (tmp_path / "copy").mkdir()
    with pytest.raises(StrataError, match="symbolic link"):
        ServerFiles(tmp_path / "mysql", tmp_path / "copy", "#strata", []).copy(writers_held=False)


def made_backup(folder: Path, **more: str) -> Manifest:
    write(folder, "strata/control-1", "strata/pages/one", "server/a.frm")
    manifest = Manifest("now", "10", "#strata", "id", 1, 2, 3, None, "", **more)  # type: ignore[arg-type]
    manifest.files, manifest.folders = backup_manifest.describe_files(folder, lambda _: None)
    manifest.write(folder)
    return manifest


def test_every_difference_is_noticed(tmp_path: Path) -> None:
    made = made_backup(tmp_path)
    read = backup_manifest.read(tmp_path)
    assert read == made and sorted(read.files) == ["server/a.frm", "strata/control-1", "strata/pages/one"]
    backup_manifest.verify(tmp_path, read, lambda _: None)
    page = tmp_path / "strata" / "pages" / "one"
    whole = page.read_text()
    for damage in (whole.upper(), whole[:-1], whole + "x"):
        page.write_text(damage)
        with pytest.raises(StrataError, match="pages/one"):
            backup_manifest.verify(tmp_path, read, lambda _: None)
    page.write_text(whole)
    text = (tmp_path / "manifest.json").read_text()
    for damage in (text[:-10], text.replace('"now"', '"then"'), "[]", json.dumps({"format": 99})):
        (tmp_path / "manifest.json").write_text(damage)
        with pytest.raises(StrataError, match=r"damaged|newer version"):
            backup_manifest.read(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(StrataError, match="not finished"):
        backup_manifest.read(tmp_path)


def test_a_chain_is_found_where_it_was_moved_to(tmp_path: Path) -> None:
    base = made_backup(tmp_path / "there" / "monday")
    part = tmp_path / "there" / "tuesday"
    made_backup(part, base_folder=str(tmp_path / "here" / "monday"), base_checksum=base.checksum())
    assert [folder.name for folder, _ in backup_manifest.chain(part)] == ["monday", "tuesday"]
    base.made = "later"
    base.write(tmp_path / "there" / "monday")
    with pytest.raises(StrataError, match="another backup"):
        backup_manifest.chain(part)
