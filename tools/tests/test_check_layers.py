"""check_layers finds what it must and lets the rest pass."""

from pathlib import Path

import pytest
from check_layers import Layers, check_tree

LAYERS = """
[layers]
base = []
page = ["base"]
redo = ["base", "page"]
wal = ["base", "redo"]
mariadb = ["base"]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("base", "page", "redo", "wal"):
        (tmp_path / "src" / folder).mkdir(parents=True)
    (tmp_path / "mariadb").mkdir()
    (tmp_path / "src" / "layers.toml").write_text(LAYERS)
    return tmp_path


def put(tree: Path, name: str, *includes: str) -> None:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f'#include "{target}"\n' for target in includes))


def test_allowed_includes_pass(tree: Path) -> None:
    put(tree, "src/redo/apply.cc", "redo/apply.h", "page/page.h", "base/ids.h", "absl/status/status.h", "beside.h")
    assert check_tree(tree) == []


def test_an_include_against_the_arrow_is_found_with_its_line(tree: Path) -> None:
    put(tree, "src/page/page.h", "base/ids.h", "redo/apply.h")
    assert check_tree(tree) == ["src/page/page.h:2: page may not include redo/apply.h (see src/layers.toml)"]


def test_a_test_may_include_what_its_folder_builds_on(tree: Path) -> None:
    put(tree, "src/wal/log_test.cc", "page/page.h")
    put(tree, "src/wal/testing/fake_log.h", "page/page.h")
    put(tree, "src/wal/log.cc", "page/page.h")
    assert [p.split(":")[0] for p in check_tree(tree)] == ["src/wal/log.cc"]


def test_internal_headers_are_private(tree: Path) -> None:
    put(tree, "src/page/page.cc", "page/internal/layout.h")
    put(tree, "src/redo/apply.cc", "page/internal/layout.h")
    assert check_tree(tree) == ["src/redo/apply.cc:1: page/internal/layout.h is private to page"]


def test_the_plugin_is_checked_too(tree: Path) -> None:
    put(tree, "mariadb/ha_strata.cc", "wal/log.h", "sql/handler.h")
    assert len(check_tree(tree)) == 1


def test_an_unlisted_folder_is_found(tree: Path) -> None:
    put(tree, "src/extra/extra.cc")
    assert "not in src/layers.toml" in check_tree(tree)[0]


NESTED = """
[layers]
base = []
page = ["base"]
node = ["base"]
"node/log" = ["base"]
"node/replay" = ["base", "page", "node/log"]
"""


def test_the_longest_layer_counts(tree: Path) -> None:
    (tree / "src" / "layers.toml").write_text(NESTED)
    put(tree, "src/node/replay/internal/ingest.h", "node/log/log.h", "page/page.h")
    put(tree, "src/node/log/internal/file.h", "node/log/log.h", "node/replay/store.h")
    put(tree, "src/node/node.cc", "node/log/log.h")
    assert check_tree(tree) == [
        "src/node/log/internal/file.h:2: node/log may not include node/replay/store.h (see src/layers.toml)",
        "src/node/node.cc:1: node may not include node/log/log.h (see src/layers.toml)",
    ]


def test_internal_headers_are_for_the_folders_below_too(tree: Path) -> None:
    (tree / "src" / "layers.toml").write_text(NESTED.replace('"node/log" = ["base"]', '"node/log" = ["base", "node"]'))
    put(tree, "src/node/log/log.cc", "node/internal/parts.h")
    put(tree, "src/page/page_test.cc", "node/internal/parts.h")
    assert [problem for problem in check_tree(tree) if "private" in problem] == [
        "src/page/page_test.cc:1: node/internal/parts.h is private to node"
    ]


def test_a_library_links_with_nothing_that_its_folder_may_not_include(tree: Path) -> None:
    for folder, needed in (("page", "strata_base"), ("redo", "strata_page absl::status"), ("base", "strata_redo")):
        text = f"strata_library({folder}\n  SRCS a.cc\n  DEPS {needed})\nstrata_test(x DEPS strata_wal)\n"
        (tree / "src" / folder / "CMakeLists.txt").write_text(text)
    assert check_tree(tree) == ["src/base/CMakeLists.txt: strata_base may not need strata_redo: base is not above redo"]


def test_circles_and_unknown_names_in_the_map_are_found() -> None:
    circle = Layers({"a": frozenset({"b"}), "b": frozenset({"a"})})
    assert len(circle.problems()) == 2
    assert Layers({"a": frozenset({"nowhere"})}).problems() == ["layers.toml: a names unknown folder nowhere"]
