"""Files that say whose a data folder is, as the nodes themselves write them (docs/data_formats.md)."""

import struct
from pathlib import Path

import pytest
from strata_cli import node_files
from strata_cli.node_files import crc32c
from strata_cli.shell import StrataError

STAMP = "strata storage node\nformat 1\nname s1\nidentity fedcba9876543210\ndatabase 000000000000002a\nprofile fusion\n"


def folder_of_storage_node(folder: Path) -> Path:
    (folder / "written").mkdir(parents=True)
    (folder / "node.stamp").write_text(f"{STAMP}crc32c {crc32c(STAMP.encode()):08x}\n")
    mark = b"strstore" + struct.pack("<QQ", 42, 7)
    (folder / "written" / "store").write_bytes(mark + struct.pack("<I", crc32c(mark)))
    return folder


def test_the_checksum_is_the_nodes() -> None:
    assert crc32c(b"") == 0 and crc32c(b"123456789") == 0xE3069283


def test_a_copy_of_a_storage_node_becomes_another_one(tmp_path: Path) -> None:
    folder = folder_of_storage_node(tmp_path / "data")
    assert node_files.number_of_store(folder) == 42
    number = node_files.rename_storage_node(folder, "s7")
    assert number not in (0, 42) and node_files.number_of_store(folder) == number
    assert (folder / "written" / "store").read_bytes()[16:24] == struct.pack("<Q", 7), "the epoch stays"
    *lines, checksum = (folder / "node.stamp").read_text().splitlines(keepends=True)
    assert lines[2] == "name s7\n" and lines[3] != "identity fedcba9876543210\n" and len(lines[3]) == len("identity \n") + 16
    assert [*lines[:2], *lines[4:]] == [line for line in STAMP.splitlines(keepends=True) if line[:4] not in ("name", "iden")]
    assert checksum == f"crc32c {crc32c(''.join(lines).encode()):08x}\n"
    assert {path.name for path in folder.iterdir()} == {"node.stamp", "written"}


def test_what_is_damaged_is_not_made_another_ones(tmp_path: Path) -> None:
    for number, name in enumerate(("node.stamp", "written/store")):
        folder = folder_of_storage_node(tmp_path / str(number))
        path = folder / name
        damaged = bytearray(path.read_bytes())
        damaged[20] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(StrataError, match="is damaged"):
            node_files.rename_storage_node(folder, "s7")
        path.write_bytes(b"")
        with pytest.raises(StrataError, match="is damaged"):
            node_files.rename_storage_node(folder, "s7")


def test_the_identity_of_a_server(tmp_path: Path) -> None:
    assert node_files.identity_of_server(tmp_path) == ""
    node_files.write_identity_of_server(tmp_path, "00000000000000ab")
    path = tmp_path / "#strata" / "node-identity"
    text = "strata-node 1 00000000000000ab"
    assert path.read_text() == f"{text} {crc32c(text.encode()):08x}\n"
    assert node_files.identity_of_server(tmp_path) == "00000000000000ab"
    for wrong in (path.read_text().replace("ab", "ac"), "", "strata-node\n"):
        path.write_text(wrong)
        assert node_files.identity_of_server(tmp_path) == ""
