"""A directed graph with labelled edges, its strongly connected components, and short cycles in them."""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

STARTS_MOST = 2000  # in a large component a short cycle will do, the shortest may take too long
TIMED_STARTS_MOST = 100  # the ways back in time are long
EdgeKind = Literal["ww", "wr", "rw", "order", "time"]


@dataclass(frozen=True)
class Edge:
    source: int
    target: int
    # "order": a snapshot comes before the end of its own transaction; "time": one was over before the other began.
    kind: EdgeKind
    key: int = -1
    value: int = 0  # ww, rw: the value that was appended over what source wrote or read; wr: the last value read
    absent: bool = False  # rw: the row did not exist

    def __str__(self) -> str:
        return f"{self.kind} key {self.key} value {self.value}" if self.key >= 0 else self.kind


class Graph:
    def __init__(self, edges: Iterable[Edge]) -> None:
        self.out: dict[int, dict[int, Edge]] = defaultdict(dict)
        for edge in edges:
            if edge.source != edge.target:
                self._add(edge)

    def _add(self, edge: Edge) -> None:
        """One edge between two nodes is enough: the one that makes the worse anomaly."""
        known = self.out[edge.source].get(edge.target)
        if known is None or _rank(edge) < _rank(known):
            self.out[edge.source][edge.target] = edge

    def components(self) -> list[set[int]]:
        """Tarjan's, without recursion; only components of more than one node."""
        index: dict[int, int] = {}
        low: dict[int, int] = {}
        on_stack: set[int] = set()
        stack: list[int] = []
        found: list[set[int]] = []
        for root in list(self.out):
            if root in index:
                continue
            work = [(root, iter(self.out[root]))]
            index[root] = low[root] = len(index)
            stack.append(root)
            on_stack.add(root)
            while work:
                node, targets = work[-1]
                for target in targets:
                    if target not in index:
                        index[target] = low[target] = len(index)
                        stack.append(target)
                        on_stack.add(target)
                        work.append((target, iter(self.out.get(target, ()))))
                        break
                    if target in on_stack:
                        low[node] = min(low[node], index[target])
                else:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[node])
                    if low[node] == index[node]:
                        component = _pop_until(stack, node)
                        on_stack -= component
                        if len(component) > 1:
                            found.append(component)
        return found

    def shortest_path(self, start: int, goal: int, inside: set[int], kinds: tuple[str, ...]) -> list[Edge] | None:
        came: dict[int, Edge] = {}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for target, edge in self.out.get(node, {}).items():
                if target not in inside or target in came or edge.kind not in kinds:
                    continue
                came[target] = edge
                if target == goal:
                    return _path_back(came, start, goal)
                queue.append(target)
        return None

    def shortest_cycle(self, component: set[int]) -> list[Edge]:
        """The fewest anti-dependencies first, then the fewest edges: what is left is the plainest way to say what is wrong."""
        for kinds in (("ww",), ("ww", "wr", "order")):
            if cycle := self._best(component, kinds, kinds):
                return cycle
        cycle = self._best(component, ("rw",), ("ww", "wr", "order"))
        cycle = cycle or self._best(component, ("rw",), ("ww", "wr", "order", "rw"))
        assert cycle is not None
        return cycle

    def timed_cycle(self, component: set[int]) -> list[Edge]:
        """Of a component that has none but with edges of time."""
        for first, rest in ((("ww", "wr"), ("ww", "wr", "order", "time")), (("rw",), ("ww", "wr", "order", "time"))):
            if cycle := self._best(component, first, rest, TIMED_STARTS_MOST):
                return cycle
        cycle = self._best(component, ("rw",), ("ww", "wr", "order", "rw", "time"), TIMED_STARTS_MOST)
        assert cycle is not None
        return cycle

    def _best(
        self, component: set[int], first: tuple[str, ...], rest: tuple[str, ...], starts_most: int = STARTS_MOST
    ) -> list[Edge] | None:
        """The shortest cycle that begins with one edge of `first` and goes back by edges of `rest`."""
        best: list[Edge] | None = None
        tried = 0
        for node in sorted(component):
            for target, edge in self.out[node].items():
                if target not in component or edge.kind not in first:
                    continue
                back = self.shortest_path(target, node, component, rest)
                if back is not None and (best is None or len(back) + 1 < len(best)):
                    best = [edge, *back]
                tried += 1
                if best is not None and (len(best) == 2 or tried > starts_most):
                    return best
        return best


def _rank(edge: Edge) -> int:
    return {"ww": 0, "wr": 1, "order": 2, "time": 3, "rw": 4}[edge.kind]


def _pop_until(stack: list[int], node: int) -> set[int]:
    component: set[int] = set()
    while True:
        component.add(popped := stack.pop())
        if popped == node:
            return component


def _path_back(came: dict[int, Edge], start: int, goal: int) -> list[Edge]:
    path = [came[goal]]
    while path[-1].source != start:
        path.append(came[path[-1].source])
    return path[::-1]


def name_of(cycle: Sequence[Edge]) -> str:
    """Adya's name of a cycle of dependencies; with edges of time it is none of those."""
    if any(edge.kind == "time" for edge in cycle):
        return "order against real time"
    anti = [edge for edge in cycle if edge.kind == "rw"]
    if not anti:
        return "G0 dirty write" if all(edge.kind == "ww" for edge in cycle) else "G1c circular information flow"
    if len(anti) > 1:
        return "G2 phantom" if any(edge.absent for edge in anti) else "G2 write skew"
    others = [edge for edge in cycle if edge.kind not in ("rw", "order")]
    if len(others) == 1 and others[0].kind == "ww" and others[0].key == anti[0].key:
        return "P4 lost update"
    return "G-single read skew"
