"""Which definition files are of tables that another compute node will not have."""

from pathlib import Path

import pytest
from strata_cli.local_tables import engine_of, in_folder, refuse_loss
from strata_cli.server import Server
from strata_cli.shell import StrataError


def definition(engine: bytes) -> bytes:
    """The least of a .frm file that names an engine: header, no keys, no record, then the texts."""
    texts = b"\x00\x00" + len(engine).to_bytes(2, "little") + engine
    header = bytearray(64)
    header[0:2] = b"\xfe\x01"
    header[6:8] = (64).to_bytes(2, "little")
    header[55:59] = len(texts).to_bytes(4, "little")
    return bytes(header) + texts


def test_only_other_engines_tables_are_local(tmp_path: Path) -> None:
    files = {
        "shop/ours.frm": definition(b"STRATA"),
        "shop/theirs.frm": definition(b"InnoDB"),
        "shop/odd@0020name.frm": definition(b"MyISAM"),
        "shop/view.frm": b"TYPE=VIEW\nquery=select 1",
        "shop/rubbish.frm": b"rubbish",
        "shop/#sql-alter-1-2.frm": definition(b"InnoDB"),
        "mysql/innodb_index_stats.frm": definition(b"InnoDB"),
    }
    for name, contents in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(contents)
    assert in_folder(tmp_path) == ["shop.odd name", "shop.theirs"]


def test_what_is_cut_off_names_no_engine() -> None:
    whole = definition(b"InnoDB")
    assert engine_of(whole) == b"InnoDB"
    assert all(engine_of(whole[:length]) != b"InnoDB" for length in range(len(whole)))


def test_all_servers_that_would_lose_something_are_named(tmp_path: Path) -> None:
    servers = [Server(tmp_path / name) for name in ("one", "two", "three")]
    for server in servers:
        (server.datadir / "shop").mkdir(parents=True)
        server.settings_file.write_text('{"cluster": "/somewhere"}')
    refuse_loss(servers, "not moved", False)
    for number in (0, 2):
        (servers[number].datadir / "shop" / f"t{number}.frm").write_bytes(definition(b"MyISAM"))
    with pytest.raises(StrataError) as raised:
        refuse_loss(servers, "not moved", False)
    said = [f"{servers[number].data} has tables that only this server has (shop.t{number})" for number in (0, 2)]
    to_do = "Move them to the database with ALTER TABLE ... ENGINE=STRATA, or say --lose-local-tables"
    assert str(raised.value) == f"not moved: {'; '.join(said)}. {to_do}"
    refuse_loss(servers, "not moved", True)
