"""Boxes, words and arrows at places; the SVG of them, and whether anything lies where it must not.

The canvas has a light ground of its own, so that a picture reads the same on a white page and on a dark one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from xml.sax.saxutils import escape

Point = tuple[float, float]

# Hundredths of the font's size that a character of DejaVu Sans is wide, from the space to the tilde. It is the widest of the
# fonts that FONT names: what fits with it fits with the others.
REGULAR = (
    "32 40 46 84 64 95 78 27 39 39 50 84 32 36 32 34 64 64 64 64 64 64 64 64 64 64 34 34 84 84 84 53 100 68 69 70 77 63 58 77 75 "
    "29 29 66 56 86 75 79 60 79 69 63 61 73 68 99 69 61 69 39 34 39 84 50 50 61 63 55 63 62 35 63 63 28 28 58 28 97 63 61 63 63 "
    "41 52 39 63 59 82 59 59 52 64 34 64 84"
)
BOLD = (
    "35 46 52 84 70 100 87 31 46 46 52 84 38 42 38 37 70 70 70 70 70 70 70 70 70 70 40 40 84 84 84 58 100 77 76 73 83 68 68 82 "
    "84 37 37 77 64 100 84 85 73 85 77 72 68 81 77 110 77 72 73 46 37 46 84 50 50 67 72 59 72 68 44 72 71 34 34 67 34 104 71 69 "
    "72 72 49 60 48 71 65 92 65 65 58 71 37 71 84"
)
WIDTHS = {False: [int(word) for word in REGULAR.split()], True: [int(word) for word in BOLD.split()]}
FONT = "'DejaVu Sans', Verdana, 'Segoe UI', Helvetica, Arial, sans-serif"
SIZE = 13.0
LINE = 18.0  # from one line of words to the next
HEAD = 8.0  # length of an arrow's head


@dataclass(frozen=True)
class Style:
    fill: str
    edge: str


PAPER = "#fbfbf8"
INK = "#1c2733"
ARROW = "#4a5866"
STYLES = {
    "group": Style("#eef1f4", "#b9c3cd"),
    "kernel": Style("#e3edf9", "#a9c3e3"),
    "shared": Style("#e9f3e4", "#b3d0a4"),
    "storage": Style("#fbf0dc", "#e0c38c"),
    "tool": Style("#f3e8f6", "#cfb2d8"),
    "process": Style("#dbe8f8", "#5a83b5"),
    "store": Style("#f7e6c4", "#b58a3c"),
    "registry": Style("#dcefd3", "#6a9a55"),
    "ours": Style("#ffffff", "#5a83b5"),
    "file": Style("#f1ede4", "#a39a86"),
    "plain": Style("#ffffff", "#8a97a4"),
}


@dataclass(frozen=True)
class Rect:
    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def holds(self, other: "Rect") -> bool:
        return self.x <= other.x and self.y <= other.y and other.right <= self.right and other.bottom <= self.bottom

    def meets(self, other: "Rect") -> bool:
        return self.x < other.right and other.x < self.right and self.y < other.bottom and other.y < self.bottom

    def on_edge(self, point: Point) -> bool:
        x, y = point
        within = self.x <= x <= self.right and self.y <= y <= self.bottom
        return within and (x in (self.x, self.right) or y in (self.y, self.bottom))

    def is_crossed(self, start: Point, end: Point) -> bool:
        """Whether the line has a part inside, not only on the edge (Liang and Barsky's way of cutting)."""
        low, high = 0.0, 1.0
        for at, delta, first, last in (
            (start[0], end[0] - start[0], self.x, self.right),
            (start[1], end[1] - start[1], self.y, self.bottom),
        ):
            if delta == 0:
                if not first < at < last:
                    return False
                continue
            enter, leave = sorted(((first - at) / delta, (last - at) / delta))
            low, high = max(low, enter), min(high, leave)
        return low < high


@dataclass(frozen=True)
class Box:
    name: str
    rect: Rect
    style: str = "plain"
    ground: bool = False  # arrows may cross it


@dataclass(frozen=True)
class Words:
    """One line. `inside` names the box that has to have room for it; a label of an arrow stands in none."""

    text: str
    x: float
    baseline: float
    bold: bool = False
    centred: bool = True
    inside: str = ""

    def rect(self) -> Rect:
        width = width_of(self.text, self.bold)
        return Rect(self.x - width / 2 if self.centred else self.x, self.baseline - 0.8 * SIZE, width, SIZE)


@dataclass(frozen=True)
class Arrow:
    start: str
    end: str
    points: tuple[Point, ...]
    both: bool = False


def width_of(text: str, bold: bool = False) -> float:
    return sum(WIDTHS[bold][ord(letter) - 32] for letter in text) * SIZE / 100


@dataclass
class Canvas:
    title: str
    width: float
    height: float
    boxes: list[Box] = field(default_factory=list)
    words: list[Words] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)

    def problems(self) -> list[str]:
        return [*self._boxes_meet(), *self._words_out_of_place(), *self._arrows_astray()]

    def _boxes_meet(self) -> Iterator[str]:
        paper = Rect(0, 0, self.width, self.height)
        for box in self.boxes:
            if not paper.holds(box.rect):
                yield f"{box.name} leaves the picture"
        for one, other in combinations(self.boxes, 2):
            if one.rect.meets(other.rect) and not one.rect.holds(other.rect) and not other.rect.holds(one.rect):
                yield f"{one.name} and {other.name} overlap"

    def _words_out_of_place(self) -> Iterator[str]:
        of = {box.name: box.rect for box in self.boxes}
        for line in self.words:
            place = line.rect()
            if not of.get(line.inside, Rect(0, 0, self.width, self.height)).holds(place):
                yield f"'{line.text}' leaves {line.inside or 'the picture'}"
            for box in self.boxes:
                if box.name != line.inside and place.meets(box.rect) and not box.rect.holds(place):
                    yield f"'{line.text}' and {box.name} overlap"
            for arrow in self.arrows:
                if any(place.is_crossed(*part) for part in pairwise(arrow.points)):
                    yield f"the arrow from {arrow.start} to {arrow.end} crosses '{line.text}'"
        for first, second in combinations(self.words, 2):
            if first.rect().meets(second.rect()):
                yield f"'{first.text}' and '{second.text}' overlap"

    def _arrows_astray(self) -> Iterator[str]:
        of = {box.name: box.rect for box in self.boxes}
        for arrow in self.arrows:
            ends = of[arrow.start], of[arrow.end]
            if not ends[0].on_edge(arrow.points[0]) or not ends[1].on_edge(arrow.points[-1]):
                yield f"the arrow from {arrow.start} to {arrow.end} does not reach from edge to edge"
            for box in self.boxes:
                if box.ground or (any(box.rect.holds(end) for end in ends) and box.rect not in ends):
                    continue  # what an end stands in
                if any(box.rect.is_crossed(*part) for part in pairwise(arrow.points)):
                    yield f"the arrow from {arrow.start} to {arrow.end} crosses {box.name}"

    def svg(self) -> str:
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(self.width)} {number(self.height)}" '
            f'width="{number(self.width)}" height="{number(self.height)}" font-family="{FONT}" font-size="{number(SIZE)}" '
            f'fill="{INK}" role="img">',
            f"<title>{escape(self.title)}</title>",
            "<!-- Made by tools/check_pictures.py; do not edit. -->",
            f'<rect width="{number(self.width)}" height="{number(self.height)}" rx="8" fill="{PAPER}"/>',
        ]
        for box in self.boxes:
            at, style = box.rect, STYLES[box.style]
            lines.append(
                f'<rect x="{number(at.x)}" y="{number(at.y)}" width="{number(at.width)}" height="{number(at.height)}" rx="4" '
                f'fill="{style.fill}" stroke="{style.edge}"/>'
            )
        for arrow in self.arrows:
            points = " ".join(f"{number(x)},{number(y)}" for x, y in arrow.points)
            lines.append(f'<polyline points="{points}" fill="none" stroke="{ARROW}" stroke-width="1.2"/>')
            lines.append(head(arrow.points[-2], arrow.points[-1]))
            if arrow.both:
                lines.append(head(arrow.points[1], arrow.points[0]))
        for line in self.words:
            anchor = ' text-anchor="middle"' if line.centred else ""
            weight = ' font-weight="bold"' if line.bold else ""
            place = f'x="{number(line.x)}" y="{number(line.baseline)}"'
            lines.append(f"<text {place}{anchor}{weight}>{escape(line.text)}</text>")
        return "\n".join([*lines, "</svg>", ""])


def head(before: Point, tip: Point) -> str:
    along_x, along_y = tip[0] - before[0], tip[1] - before[1]
    length = (along_x**2 + along_y**2) ** 0.5
    along_x, along_y = along_x / length * HEAD, along_y / length * HEAD
    back_x, back_y = tip[0] - along_x, tip[1] - along_y
    side_x, side_y = -along_y * 0.4, along_x * 0.4
    corners = (tip, (back_x + side_x, back_y + side_y), (back_x - side_x, back_y - side_y))
    return f'<polygon points="{" ".join(f"{number(x)},{number(y)}" for x, y in corners)}" fill="{ARROW}"/>'


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
