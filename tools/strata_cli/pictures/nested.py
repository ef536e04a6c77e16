"""A picture of boxes in boxes, described by lines of text:

    title: What runs where
    row all
      column server [process gap=40]: mariadbd
        box glue [ours]: ha_strata.so / the glue
      box files [file]: data files
    server -> files: pages / as they change
    glue <-> files @0.8

A line's indentation says what it is in. A row has what is in it side by side, a column one below the other; the name is for
arrows, `gap` is the room between two, the words behind the colon stand in the box, a line up to each slash. Arrows are straight,
down or sideways; @ says where on the stretch that the two sides have in common. A row or column without words is not drawn.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .canvas import LINE, Arrow, Box, Canvas, Rect, Words, width_of

ITEM = re.compile(r"^( *)(row|column|box) ([\w-]+)(?: \[([^\]]*)\])?(?:: (.+))?$")
ARROW = re.compile(r"^([\w-]+) (<?->) ([\w-]+)(?: @([\d.]+))?(?:: (.+))?$")
PADDING = 12.0
GAP = 12.0
MARGIN = 16.0
AWAY = 7.0  # a label from its arrow


class DescriptionError(ValueError):
    pass


@dataclass
class Item:
    kind: str
    name: str
    style: str
    gap: float
    lines: list[str]
    inside: list["Item"] = field(default_factory=list)
    rect: Rect = field(default_factory=lambda: Rect(0, 0, 0, 0))

    @property
    def drawn(self) -> bool:
        return bool(self.lines) or self.kind == "box"

    @property
    def padding(self) -> float:
        return PADDING if self.drawn else 0.0

    @property
    def heading(self) -> float:
        room = len(self.lines) * LINE
        return room + (6 if self.inside and room else 0)

    def least(self) -> tuple[float, float]:
        sizes = [item.least() for item in self.inside]
        gaps = self.gap * max(len(sizes) - 1, 0)
        own = max((width_of(line, bold=bool(self.inside)) for line in self.lines), default=0.0)
        wide, high = [size[0] for size in sizes], [size[1] for size in sizes]
        if self.kind == "row":
            inner = sum(wide) + gaps, max(high, default=0.0)
        else:
            inner = max(wide, default=0.0), sum(high) + (gaps if sizes else 0.0)
        width = max(own, inner[0]) + 2 * self.padding
        return float(round(width + 0.5)), inner[1] + self.heading + 2 * self.padding

    def place(self, rect: Rect) -> None:
        """What is left over goes to all alike: in a row to the boxes' widths, in a column to the gaps, or above a single one."""
        self.rect = rect
        if not self.inside:
            return
        sizes = [item.least() for item in self.inside]
        x, y = rect.x + self.padding, rect.y + self.padding + self.heading
        width, height = rect.right - self.padding - x, rect.bottom - self.padding - y
        gaps = self.gap * (len(sizes) - 1)
        if self.kind == "row":
            more = (width - sum(size[0] for size in sizes) - gaps) // len(sizes)
            for item, (wide, _) in zip(self.inside, sizes, strict=True):
                item.place(Rect(x, y, wide + more, height))
                x += wide + more + self.gap
            return
        more = (height - sum(size[1] for size in sizes) - gaps) // max(len(sizes) - 1, 1)
        y += more if len(sizes) == 1 else 0
        for item, (_, high) in zip(self.inside, sizes, strict=True):
            item.place(Rect(x, y, width, high))
            y += high + self.gap + more

    def all(self) -> Iterator["Item"]:
        yield self
        for item in self.inside:
            yield from item.all()


@dataclass(frozen=True)
class Wanted:
    start: str
    end: str
    both: bool
    at: float
    lines: list[str]


@dataclass
class Description:
    title: str
    root: Item
    arrows: list[Wanted]


def parse(text: str) -> Description:
    title = ""
    roots: list[Item] = []
    arrows: list[Wanted] = []
    above: list[tuple[int, Item]] = []
    for line_number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("title: "):
            title = line.removeprefix("title: ")
        elif found := ITEM.match(line):
            depth, item = len(found[1]), item_of(found)
            while above and above[-1][0] >= depth:
                above.pop()
            (above[-1][1].inside if above else roots).append(item)
            above.append((depth, item))
        elif found := ARROW.match(line):
            arrows.append(Wanted(found[1], found[3], found[2] == "<->", float(found[4] or 0.5), split(found[5])))
        else:
            raise DescriptionError(f"line {line_number} is neither a box nor an arrow: {line}")
    if len(roots) != 1:
        raise DescriptionError(f"there is one box, row or column that holds all others, not {len(roots)}")
    return Description(title, roots[0], arrows)


def item_of(found: re.Match[str]) -> Item:
    options = (found[4] or "").split()
    gap = next((float(option.removeprefix("gap=")) for option in options if option.startswith("gap=")), GAP)
    style = next((option for option in options if not option.startswith("gap=")), "plain")
    return Item(found[2], found[3], style, gap, split(found[5]))


def split(words: str | None) -> list[str]:
    return words.split(" / ") if words else []


def draw(text: str) -> Canvas:
    description = parse(text)
    root = description.root
    width, height = root.least()
    root.place(Rect(MARGIN, MARGIN, width, height))
    canvas = Canvas(description.title, width + 2 * MARGIN, height + 2 * MARGIN)
    items = {item.name: item for item in root.all()}
    for item in root.all():
        if item.drawn:
            canvas.boxes.append(Box(item.name, item.rect, item.style))
            canvas.words += words_of(item)
    for wanted in description.arrows:
        for name in (wanted.start, wanted.end):
            if name not in items:
                raise DescriptionError(f"an arrow names {name}, which is nowhere")
        arrow, labels = straight(wanted, items[wanted.start].rect, items[wanted.end].rect)
        canvas.arrows.append(arrow)
        canvas.words += labels
    return canvas


def words_of(item: Item) -> Iterator[Words]:
    """A heading stands at the top, the words of a box without boxes in its middle."""
    at = item.rect
    top = at.y + item.padding if item.inside else at.y + (at.height - len(item.lines) * LINE) / 2
    for count, line in enumerate(item.lines):
        bold = bool(item.inside) and count == 0
        yield Words(line, at.x + at.width / 2, top + count * LINE + 0.72 * LINE, bold=bold, inside=item.name)


def straight(wanted: Wanted, start: Rect, end: Rect) -> tuple[Arrow, list[Words]]:
    left, right = max(start.x, end.x), min(start.right, end.right)
    top, bottom = max(start.y, end.y), min(start.bottom, end.bottom)
    labels: list[Words] = []
    points: tuple[tuple[float, float], ...]
    if left < right:
        x = float(round(left + (right - left) * wanted.at))
        points = ((x, start.bottom), (x, end.y)) if start.y < end.y else ((x, start.y), (x, end.bottom))
        middle = (points[0][1] + points[1][1]) / 2 - len(wanted.lines) * LINE / 2
        for count, line in enumerate(wanted.lines):
            labels.append(Words(line, x + AWAY, middle + count * LINE + 0.72 * LINE, centred=False))
    elif top < bottom:
        y = float(round(top + (bottom - top) * wanted.at))
        points = ((start.right, y), (end.x, y)) if start.x < end.x else ((start.x, y), (end.right, y))
        middle = (points[0][0] + points[1][0]) / 2
        above = y - AWAY - (len(wanted.lines) - 1) * LINE
        labels += [Words(line, middle, above + count * LINE, centred=True) for count, line in enumerate(wanted.lines)]
    else:
        raise DescriptionError(f"no straight arrow leads from {wanted.start} to {wanted.end}")
    return Arrow(wanted.start, wanted.end, points, wanted.both), labels
