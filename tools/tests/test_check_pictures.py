"""The documentation's pictures: current, deterministic, readable, and nothing in them overlaps; descriptions that are wrong are
refused."""

import shutil
import tomllib
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from check_pictures import PLACE, check_tree, pictures
from strata_cli.pictures import layered, nested
from strata_cli.pictures.canvas import ARROW, INK, PAPER, STYLES, Arrow, Box, Canvas, Rect, Words

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {"base": [], "page": ["base"], "redo": ["base", "page"], "wal": ["base", "page", "redo"], "io": ["base"]}
GROUPS = {
    "title": "Some",
    "ground": "base",
    "group": [
        {"name": "Pages", "style": "kernel", "column": 0, "layers": ["page", "redo", "wal"]},
        {"name": "Files", "style": "shared", "column": 1, "layers": ["io"]},
    ],
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    shutil.copy(ROOT / "src" / "layers.toml", tmp_path / "src")
    shutil.copytree(ROOT / PLACE, tmp_path / PLACE)
    return tmp_path


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_committed_pictures_are_what_is_made_from_their_descriptions() -> None:
    assert check_tree(ROOT, write=False) == []


def test_the_same_text_makes_the_same_bytes() -> None:
    first, second = pictures(ROOT), pictures(ROOT)
    assert [canvas.svg() for canvas in first.values()] == [canvas.svg() for canvas in second.values()]


def test_what_is_made_is_well_formed_and_has_all_words() -> None:
    for canvas in pictures(ROOT).values():
        svg = ElementTree.fromstring(canvas.svg())
        assert [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")] == [w.text for w in canvas.words]


def test_words_and_arrows_stand_out_on_whatever_they_stand_on() -> None:
    for ground in (PAPER, *(style.fill for style in STYLES.values())):
        assert contrast(INK, ground) >= 7  # what is asked of small print
        assert contrast(ARROW, ground) >= 4.5


def test_a_changed_layer_makes_the_picture_of_modules_stale(tree: Path) -> None:
    layers = tree / "src" / "layers.toml"
    assert check_tree(tree, write=False) == []
    layers.write_text(layers.read_text().replace('lock = ["base"]', 'lock = ["base", "sort"]'))
    stale = f"{PLACE}/modules.svg: it is not current: run tools/check_pictures.py --write"
    assert check_tree(tree, write=False) == [stale]
    assert check_tree(tree, write=True) == []
    assert check_tree(tree, write=False) == []


def test_a_new_layer_has_to_be_put_into_a_group(tree: Path) -> None:
    with (tree / "src" / "layers.toml").open("a") as layers:
        layers.write('memnode = ["base"]\n')
    assert check_tree(tree, write=False) == [f"{PLACE}: memnode is in no group"]


def test_every_layer_is_shown_and_whatever_uses_it_stands_above() -> None:
    table = tomllib.loads((ROOT / "src" / "layers.toml").read_text())["layers"]
    groups = tomllib.loads((ROOT / PLACE / "modules.toml").read_text())
    of = {box.name: box.rect for box in pictures(ROOT)["modules.svg"].boxes}
    _, shown = layered.grouped({name: frozenset(used) for name, used in table.items()}, groups)
    shown["base"] = "base"
    for layer, used in table.items():
        for other in used:
            assert shown[layer] == shown[other] or of[shown[layer]].bottom < of[shown[other]].y, (layer, other)


def test_arrows_that_others_imply_are_left_out() -> None:
    canvas = layered.draw(LAYERS, GROUPS)
    assert canvas.problems() == []
    drawn = {(arrow.start, arrow.end) for arrow in canvas.arrows}
    assert drawn == {("wal", "redo"), ("redo", "page"), ("page", "base"), ("io", "base")}


def test_a_circle_of_layers_is_refused() -> None:
    with pytest.raises(layered.GroupError, match="uses itself in a circle"):
        layered.draw({**LAYERS, "page": ["base", "wal"]}, GROUPS)


def test_a_long_arrow_passes_beside_the_boxes_between() -> None:
    layers = {**LAYERS, "sort": ["base"], "engine": ["wal", "sort"]}
    one = {"name": "All", "style": "kernel", "column": 0, "layers": ["page", "redo", "wal", "sort", "engine", "io"]}
    canvas = layered.draw(layers, {**GROUPS, "group": [one]})
    assert canvas.problems() == []
    long = next(arrow for arrow in canvas.arrows if (arrow.start, arrow.end) == ("engine", "sort"))
    assert len(long.points) > 2


def test_overlaps_and_words_without_room_are_found() -> None:
    box = Box("a", Rect(10, 10, 60, 40))
    canvas = Canvas("", 200, 200, [box, Box("b", Rect(50, 30, 60, 40))])
    assert canvas.problems() == ["a and b overlap"]
    canvas.boxes[1] = Box("b", Rect(20, 20, 10, 10))
    assert canvas.problems() == []
    canvas.words = [Words("more than there is room for", 40, 45, inside="a")]
    assert canvas.problems() == ["'more than there is room for' leaves a"]
    canvas.words = []
    canvas.boxes[1] = replace(box, name="b", rect=Rect(10, 120, 60, 40))
    canvas.arrows = [Arrow("a", "b", ((40, 50), (40, 120)))]
    assert canvas.problems() == []
    canvas.boxes.append(Box("between", Rect(0, 70, 100, 20)))
    assert canvas.problems() == ["the arrow from a to b crosses between"]
    canvas.boxes[2] = Box("between", Rect(0, 70, 100, 20), ground=True)
    assert canvas.problems() == []
    canvas.words = [Words("it", 40, 112)]
    assert canvas.problems() == ["the arrow from a to b crosses 'it'"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("column a: x\n  box b: y\nb => a", "line 3 is neither a box nor an arrow"),
        ("box a: x\nbox b: y", "one box, row or column that holds all others, not 2"),
        ("column all\n  box a: x\na -> b", "an arrow names b, which is nowhere"),
        ("column all\n  row up\n    box a: x\n    box b: y\n  row down\n    box c: x\n    box d: y\na -> d", "no straight arrow"),
    ],
)
def test_a_description_that_cannot_be_drawn_is_refused(text: str, message: str) -> None:
    with pytest.raises(nested.DescriptionError, match=message):
        nested.draw(text)


def test_what_is_in_a_box_makes_it_as_large_as_it_has_to_be() -> None:
    canvas = nested.draw("title: T\ncolumn a [gap=40]: outer\n  box b: the longest line of all / short\n  box c: x\nb -> c: why")
    assert canvas.problems() == []
    rects = {box.name: box.rect for box in canvas.boxes}
    assert rects["a"].holds(rects["b"]) and rects["a"].holds(rects["c"])
    assert rects["c"].y - rects["b"].bottom == 40
