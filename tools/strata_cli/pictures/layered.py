"""A picture of layers: each in a row below all that use it, in the column of its group, arrows down only.

An arrow that other arrows imply is left out: who uses `row` and, through `row`, `txn`, has one to `row`. A long arrow has a
place of its own in each row that it passes, so that it crosses no box.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .canvas import Arrow, Box, Canvas, Rect, Words, width_of

ROW = 30.0  # height of a box
BETWEEN = 36.0  # rows
APART = 14.0  # two boxes of a row, or a box and an arrow that passes
PASSING = 2.0  # width of an arrow's place in a row
COLUMNS_APART = 36.0
MARGIN = 16.0
AROUND = 12.0  # from a group's edge to its boxes
SWEEPS = 24
MIDDLE = ROW / 2 + 4.5  # of words in a row
STRAIGHTENED = 12  # times


class GroupError(ValueError):
    pass


@dataclass(frozen=True)
class Group:
    name: str
    style: str
    column: int
    boxes: tuple[str, ...]
    folder: str = ""  # what need not be said of each of them

    def label(self, box: str) -> str:
        return box.removeprefix(self.folder)


@dataclass(eq=False)
class Slot:
    """A box; a group's name, in the row above its highest box; or the place where an arrow passes a row, which has no name."""

    name: str
    row: int
    column: int
    width: float
    x: float = 0.0  # of its middle
    above: list["Slot"] = field(default_factory=list)
    below: list["Slot"] = field(default_factory=list)


Uses = Mapping[str, frozenset[str]]


def transitive(uses: Uses, name: str) -> frozenset[str]:
    found: set[str] = set()
    todo = list(uses[name])
    while todo:
        other = todo.pop()
        if other not in found:
            found.add(other)
            todo += uses[other]
    return frozenset(found)


def without_implied(uses: Uses) -> Uses:
    all_below = {name: transitive(uses, name) for name in uses}
    circles = [name for name in uses if name in all_below[name]]
    if circles:
        raise GroupError(f"uses itself in a circle: {', '.join(circles)}")
    return {
        name: frozenset(one for one in direct if not any(one in all_below[other] for other in direct))
        for name, direct in uses.items()
    }


def rows_of(uses: Uses) -> dict[str, int]:
    """Counted from the ground: one more than the highest of what it uses."""
    rows: dict[str, int] = {}

    def row_of(name: str) -> int:
        if name not in rows:
            rows[name] = 1 + max((row_of(other) for other in uses[name]), default=-1)
        return rows[name]

    for name in uses:
        row_of(name)
    return rows


def grouped(layers: Uses, description: Mapping[str, Any]) -> tuple[list[Group], dict[str, str]]:
    """The groups, and of each layer the box that shows it. Every layer has one, and every box a layer."""
    groups, box_of = [], {}
    for table in description["group"]:
        together: dict[str, list[str]] = table.get("together", {})
        groups.append(
            Group(table["name"], table["style"], table["column"], (*table["layers"], *together), table.get("folder", ""))
        )
        members = [(name, name) for name in table["layers"]] + [(one, box) for box, all_ in together.items() for one in all_]
        for layer, box in members:
            if layer in box_of:
                raise GroupError(f"{layer} is in two groups")
            box_of[layer] = box
        for box, all_ in together.items():
            if len({layers.get(one) for one in all_}) != 1:
                raise GroupError(f"{box}: not all of them use the same")
    missing = sorted(layers.keys() - box_of.keys() - {description["ground"]})
    unknown = sorted(box_of.keys() - layers.keys())
    if missing or unknown:
        raise GroupError("; ".join([f"{name} is in no group" for name in missing] + [f"there is no layer {n}" for n in unknown]))
    return groups, box_of


def draw(layers: Mapping[str, Sequence[str]], description: Mapping[str, Any]) -> Canvas:
    ground = description["ground"]
    given: Uses = {name: frozenset(other) for name, other in layers.items()}
    groups, box_of = grouped(given, description)
    box_of[ground] = ground
    boxes: dict[str, frozenset[str]] = {}
    for layer, used in given.items():  # layers.toml lists the lower ones first
        boxes[box_of[layer]] = frozenset(box_of[other] for other in used) - {box_of[layer]}
    uses = without_implied(boxes)
    rows = rows_of(uses)
    return painted(description["title"], groups, ground, arranged(uses, rows, groups, ground))


@dataclass
class Arranged:
    slots: dict[str, Slot]  # of boxes
    headings: dict[str, Slot]  # of groups
    paths: list[tuple[Slot, ...]]  # what an arrow goes along: a box, places in rows, a box; to the ground without the last
    bounds: dict[int, tuple[float, float]]  # of columns


def arranged(uses: Uses, rows: Mapping[str, int], groups: Sequence[Group], ground: str) -> Arranged:
    group_of = {name: group for group in groups for name in group.boxes}
    slots = {
        name: Slot(name, rows[name], group_of[name].column, width_of(group_of[name].label(name)) + 20)
        for name in uses
        if name != ground
    }
    headings = {
        group.name: Slot(group.name, 1 + max(rows[name] for name in group.boxes), group.column, width_of(group.name, bold=True))
        for group in groups
    }
    paths: list[tuple[Slot, ...]] = []
    for name, slot in slots.items():
        for other in sorted(uses[name] - {ground}):
            target = slots[other]
            between = [Slot("", row, target.column, PASSING) for row in range(slot.row - 1, target.row, -1)]
            paths.append((slot, *between, target))
        if ground in uses[name]:
            paths.append((slot, *(Slot("", row, slot.column, PASSING) for row in range(slot.row - 1, 0, -1))))
    for path in paths:
        for upper, lower in pairwise(path):
            upper.below.append(lower)
            lower.above.append(upper)
    passing = [slot for path in paths for slot in path if not slot.name]
    return Arranged(slots, headings, paths, arrange([*headings.values(), *slots.values(), *passing], paths))


def arrange(slots: Sequence[Slot], paths: Sequence[Sequence[Slot]]) -> dict[int, tuple[float, float]]:
    """Gives every slot its place: near what it has arrows to, within its column, a distance from the next one; returns the
    columns' bounds."""
    columns = sorted({slot.column for slot in slots})
    rows = sorted({slot.row for slot in slots})
    cells = {
        (row, column): cell
        for row in rows
        for column in columns
        if (cell := [slot for slot in slots if (slot.row, slot.column) == (row, column)])
    }
    left = MARGIN + AROUND
    bounds: dict[int, tuple[float, float]] = {}
    for column in columns:
        width = max(room_of(cell) for (_, of), cell in cells.items() if of == column)
        bounds[column] = left, left + width
        left += width + COLUMNS_APART

    def place(key: tuple[int, int], wish: Callable[[Slot], float]) -> None:
        """A heading, which has no arrows, stands at the left."""
        first, last = bounds[key[1]]
        is_heading = [bool(slot.name) and not slot.above and not slot.below for slot in cells[key]]
        wishes = [first if alone else wish(slot) for slot, alone in zip(cells[key], is_heading, strict=True)]
        spread(cells[key], wishes, (first, last))

    def near(slot: Slot, of: Sequence[Slot]) -> float:
        return sum(other.x for other in of) / len(of) if of else slot.x

    for key in cells:
        place(key, lambda slot: sum(bounds[slot.column]) / 2)
    for sweep in range(SWEEPS):
        for key in sorted(cells, reverse=sweep % 2 == 0):
            if sweep >= SWEEPS - 4:
                place(key, lambda slot: near(slot, [*slot.above, *slot.below]))
            elif sweep % 2 == 0:
                place(key, lambda slot: near(slot, slot.above))
            else:
                place(key, lambda slot: near(slot, slot.below))
    for _ in range(STRAIGHTENED):
        wished = {slot: slot.x for slot in slots} | straightened(paths)
        for key in cells:
            place(key, wished.__getitem__)
    return bounds


def straightened(paths: Sequence[Sequence[Slot]]) -> dict[Slot, float]:
    """Where each arrow would pass its rows if it went straight down."""
    wanted: dict[Slot, float] = {}
    for path in paths:
        passed = [slot for slot in path if not slot.name]
        for slot in passed:
            wanted[slot] = sum(other.x for other in passed) / len(passed)
    return wanted


def room_of(cell: Sequence[Slot]) -> float:
    return sum(slot.width for slot in cell) + APART * max(len(cell) - 1, 0)


def spread(cell: Sequence[Slot], wishes: Sequence[float], bounds: tuple[float, float]) -> None:
    """As near to the wishes, in their order, as the distances allow: neighbours that would touch become one block."""
    order = sorted(range(len(cell)), key=lambda index: (wishes[index], index))
    blocks: list[tuple[list[int], float]] = []  # whose, and where the first one's left edge should be

    def wish_of(members: Sequence[int]) -> float:
        offset, total = 0.0, 0.0
        for index in members:
            total += wishes[index] - cell[index].width / 2 - offset
            offset += cell[index].width + APART
        return total / len(members)

    def end_of(members: Sequence[int], start: float) -> float:
        return start + room_of([cell[index] for index in members]) + APART

    def bounded(members: Sequence[int]) -> float:
        room = room_of([cell[index] for index in members])
        return max(bounds[0], min(wish_of(members), bounds[1] - room))

    for index in order:
        members = [index]
        while blocks and end_of(*blocks[-1]) > bounded(members):
            members = blocks.pop()[0] + members
        blocks.append((members, bounded(members)))
    for members, start in blocks:
        x = start
        for index in members:
            cell[index].x = float(round(x + cell[index].width / 2))
            x += cell[index].width + APART


def painted(title: str, groups: Sequence[Group], ground: str, found: Arranged) -> Canvas:
    slots = found.slots
    top_row = max(heading.row for heading in found.headings.values())

    def top_of(row: int) -> float:
        return MARGIN - BETWEEN / 4 + (top_row - row) * (ROW + BETWEEN)

    rects = {name: Rect(slot.x - slot.width / 2, top_of(slot.row), slot.width, ROW) for name, slot in slots.items()}
    right = max(last for _, last in found.bounds.values()) + AROUND
    rects[ground] = Rect(MARGIN, top_of(0), right - MARGIN, ROW)
    canvas = Canvas(title, right + MARGIN, rects[ground].bottom + MARGIN)
    for group in groups:
        heading, (first, last) = found.headings[group.name], found.bounds[group.column]
        top, bottom = top_of(heading.row) + BETWEEN / 4, max(rects[name].bottom for name in group.boxes) + AROUND
        canvas.boxes.append(
            Box(group.name, Rect(first - AROUND, top, last - first + 2 * AROUND, bottom - top), group.style, True)
        )
        canvas.words.append(
            Words(group.name, heading.x, top_of(heading.row) + MIDDLE + BETWEEN / 4, bold=True, inside=group.name)
        )
    labels = {name: group.label(name) for group in groups for name in group.boxes} | {ground: ground}
    for name, rect in rects.items():
        canvas.boxes.append(Box(name, rect))
        canvas.words.append(Words(labels[name], rect.x + rect.width / 2, rect.y + MIDDLE, inside=name))
    leaving, coming = ports(found.paths)
    for path in found.paths:
        first_slot, last_slot = path[0], path[-1]
        start = port(first_slot, path[1], leaving) if len(path) > 1 else first_slot.x
        points = [(start, rects[first_slot.name].bottom)]
        for slot in path[1:]:
            if not slot.name:
                points += [(slot.x, top_of(slot.row)), (slot.x, top_of(slot.row) + ROW)]
        to_ground = len(path) == 1 or not last_slot.name
        end = (last_slot.x, rects[ground].y) if to_ground else (port(last_slot, path[-2], coming), rects[last_slot.name].y)
        canvas.arrows.append(Arrow(first_slot.name, ground if to_ground else last_slot.name, (*points, end)))
    return canvas


Ends = dict[Slot, list[Slot]]


def ports(paths: Sequence[tuple[Slot, ...]]) -> tuple[Ends, Ends]:
    """Of each box, what its arrows go to and come from, in the order of where that is."""
    leaving: Ends = {}
    coming: Ends = {}
    for path in paths:
        if len(path) > 1:
            leaving.setdefault(path[0], []).append(path[1])
            if path[-1].name:
                coming.setdefault(path[-1], []).append(path[-2])
    for ends in (*leaving.values(), *coming.values()):
        ends.sort(key=lambda slot: slot.x)
    return leaving, coming


def port(box: Slot, other: Slot, ends: Ends) -> float:
    around = ends[box]
    at = next(index for index, slot in enumerate(around) if slot is other)
    step = min((box.width - 16) / len(around), 24.0)
    return box.x + (at - (len(around) - 1) / 2) * step
