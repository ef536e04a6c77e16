"""Which files clang-tidy reads as one, and what a file's result is remembered by."""

from pathlib import Path

from check_tidy import GROUP_MAX, Sources, Unit, groups_of, names_of


def unit(path: Path, *flags: str) -> Unit:
    return Unit(path, str(path.parent), ("c++", *flags, "-c", str(path), "-o", f"{path}.o"))


def test_what_a_source_defines() -> None:
    text = (
        "namespace strata::wal {\nusing redo::Reader;\nusing namespace testing;\nconstexpr int kMin = 1, kMax = 3;\n"
        "class Later;\nstruct Walk {\n  int inner(int x);\n};\nstd::vector<int> Tree::walk(int depth) {\n}\n"
        "Status look(int at) {\nTree::Tree() : impl_(make()) {}\nstatic_assert(kMax == 3);\n"
    )
    assert names_of(text) == {f"strata::wal::{name}" for name in ("Reader", "kMin", "kMax", "Later", "Walk", "look")}


def test_files_that_see_what_another_defines_for_itself_are_parted(tmp_path: Path) -> None:
    def write(name: str, text: str) -> Unit:
        (tmp_path / name).write_text(text)
        return unit(tmp_path / name, "-std=c++20")

    write("common.h", "inline int shared() {\n")
    write("public.h", "int open();\n")
    units = [write(f"file{n:02}.cc", f'#include "public.h"\nint own_{n}() {{\n') for n in range(2 * GROUP_MAX - 3)]
    units += [write("open.cc", '#include "public.h"\nint open() {\n')]  # its users may be with it
    apart = [write("own.cc", "int shared() {\n"), write("user.cc", '#include "common.h"\n')]
    groups = groups_of([*units, *apart], Sources(tmp_path))
    assert sorted(u.path for group in groups for u in group) == sorted(u.path for u in [*units, *apart])
    assert len(groups) == 2
    assert all(len(set(group) & set(apart)) == 1 for group in groups)


def test_a_key_changes_with_every_header_that_is_reached(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "b.h").write_text("int b;\n")
    (tmp_path / "a.h").write_text('#include "b/b.h"\n')
    (tmp_path / "other.h").write_text("int o;\n")
    source = tmp_path / "a.cc"
    source.write_text('#include "a.h"\n')
    before = Sources(tmp_path).key(unit(source), b"")
    (tmp_path / "other.h").write_text("int p;\n")
    assert Sources(tmp_path).key(unit(source), b"") == before
    assert Sources(tmp_path).key(unit(source), b"-*") != before
    (tmp_path / "b" / "b.h").write_text("int c;\n")
    assert Sources(tmp_path).key(unit(source), b"") != before
