"""All orders of steps, breadth first, and what is wrong with them.

A violation comes with the shortest way to it. Beside what a step itself may violate (S1, S2, S4 to S7) the graph is
looked at for S3: from every state every tick can still end by normal steps alone (no doomed state), and no process has
to be lucky for that (no cycle in which every kind of step that is possible throughout is taken, and nothing ends).
"""

from __future__ import annotations

import re
import time
from array import array
from dataclasses import dataclass, field

from protocol import NORMAL, Names, Rules, State, canonical, initial, successors


@dataclass
class Result:
    """What a search found. `violations`: what is wrong, and the steps that lead there."""

    states: int
    steps: int
    complete: bool
    seconds: float = 0.0
    violations: dict[str, list[str]] = field(default_factory=dict)


class _Graph:
    """States by number, in the order in which they were found, and the normal steps between them."""

    def __init__(self, root: State) -> None:
        self.states = [root]
        self.number = {root: 0}
        self.parent = array("i", [-1])
        self.label = [""]
        self.source = array("I")
        self.target = array("I")
        self.kind = array("H")
        self.kinds: dict[str, int] = {}
        self.steps = 0

    def know(self, state: State, parent: int, label: str) -> int:
        """The number of a state that `parent` leads to."""
        found = self.number.setdefault(state, len(self.states))
        if found == len(self.states):
            self.states.append(state)
            self.parent.append(parent)
            self.label.append(label)
        return found

    def join(self, source: int, target: int, label: str) -> None:
        """A normal step. Sources come in ascending order."""
        self.source.append(source)
        self.target.append(target)
        self.kind.append(self.kinds.setdefault(_kind(label), len(self.kinds)))

    def path(self, state: int) -> list[tuple[str, State]]:
        """The shortest way to a state."""
        steps = []
        while state > 0:
            steps.append((self.label[state], self.states[state]))
            state = self.parent[state]
        return steps[::-1]


def explore(rules: Rules, limit: int = 3_000_000) -> Result:
    """Looks at every state, `limit` at most, or at all up to the first violation that a step itself makes."""
    began = time.monotonic()
    root = initial(rules)
    graph = _Graph(root)
    violations: dict[str, list[tuple[str, State]]] = {}
    at = 0
    while at < len(graph.states) and len(graph.states) < limit and not violations:
        for step in successors(graph.states[at], rules):
            graph.steps += 1
            found = graph.know(step.state, at, step.label)
            if step.bad:
                violations.setdefault(step.bad, [*graph.path(at), (step.label, step.state)])
            if step.kind == NORMAL and found != at:
                graph.join(at, found, step.label)
        at += 1
    complete = at == len(graph.states)
    if complete:
        violations = _endless(graph)
    result = Result(len(graph.states), graph.steps, complete or bool(violations))
    result.violations = {what: _retell(root, rules, path) for what, path in violations.items()}
    result.seconds = time.monotonic() - began
    return result


def _endless(graph: _Graph) -> dict[str, list[tuple[str, State]]]:
    """S3: the first state from which something can never end, and the first fair cycle."""
    found = {}
    doomed = _doomed(graph)
    if doomed is not None:
        found["S3 a tick can never end"] = graph.path(doomed)
    cycle = _fair_cycle(graph)
    if cycle is not None:
        entry, kinds = cycle
        found[f"S3 a cycle without an end: {'; '.join(kinds)}"] = graph.path(entry)
    return found


def _doomed(graph: _Graph) -> int | None:
    """The first state from which normal steps lead to no end."""
    n = len(graph.states)
    first = _offsets(n, graph.target)
    place, back = array("I", first), array("I", bytes(4 * len(graph.source)))
    for source, target in zip(graph.source, graph.target, strict=True):
        back[place[target]] = source
        place[target] += 1
    ends = [k for k in range(n) if graph.states[k].ended]
    can = bytearray(n)
    for k in ends:
        can[k] = 1
    while ends:
        v = ends.pop()
        for e in range(first[v], first[v + 1]):
            if not can[back[e]]:
                can[back[e]] = 1
                ends.append(back[e])
    doomed = can.find(0)
    return doomed if doomed >= 0 else None


def _offsets(n: int, of: array[int]) -> array[int]:
    """Where the edges of each state begin, if they are sorted by it."""
    first = array("I", bytes(4 * (n + 1)))
    for v in of:
        first[v + 1] += 1
    for v in range(n):
        first[v + 1] += first[v]
    return first


def _fair_cycle(graph: _Graph) -> tuple[int, list[str]] | None:
    """(entry, kinds of its steps) of the first strongly connected set of states in which nothing needs to end."""
    first = _offsets(len(graph.states), graph.source)
    names = list(graph.kinds)
    best: tuple[int, list[str]] | None = None
    for members in _components(graph, first):
        inside = set(members)
        taken: set[int] = set()
        throughout: set[int] | None = None
        for u in members:
            edges = range(first[u], first[u + 1])
            possible = {graph.kind[e] for e in edges}
            taken |= {graph.kind[e] for e in edges if graph.target[e] in inside}
            throughout = possible if throughout is None else throughout & possible
        if not (throughout or set()) - taken and (best is None or min(members) < best[0]):
            best = min(members), sorted(names[k] for k in taken)
    return best


def _components(graph: _Graph, first: array[int]) -> list[list[int]]:
    """Tarjan's strongly connected components of more than one state, ended states left out."""
    n = len(graph.states)
    ended = bytearray(s.ended for s in graph.states)
    index, low, on = array("i", [-1]) * n, array("i", [0]) * n, bytearray(n)
    counter, stack, found = 0, [], []
    for root in range(n):
        if index[root] >= 0 or ended[root]:
            continue
        work = [(root, first[root])]
        while work:
            v, e = work.pop()
            if index[v] < 0:
                index[v] = low[v] = counter
                counter += 1
                stack.append(v)
                on[v] = 1
            if e < first[v + 1]:
                work.append((v, e + 1))
                u = graph.target[e]
                if index[u] < 0 and not ended[u]:
                    work.append((u, first[u]))
                elif on[u]:
                    low[v] = min(low[v], index[u])
                continue
            if work:
                above = work[-1][0]
                low[above] = min(low[above], low[v])
            if low[v] == index[v]:
                members = []
                while not members or members[-1] != v:
                    members.append(stack.pop())
                    on[members[-1]] = 0
                if len(members) > 1:
                    found.append(members)
    return found


def _kind(label: str) -> str:
    """The kind of a step for fairness: its first words, without names and numbers."""
    words = [w for w in label.replace(":", " ").split() if not any(c.isdigit() for c in w)]
    return " ".join(words[:3])


def _retell(root: State, rules: Rules, path: list[tuple[str, State]]) -> list[str]:
    """The labels of a path with one name a member and one number a dispatch throughout."""
    schedulers = {p.id: p.id for p in root.schedulers}
    workers = {p.id: p.id for p in root.workers}
    numbers = {0: 0}
    told, s, top = [], root, 0
    for label, want in path:
        names = _names_of(s, rules, label, want)
        for new in (s.top + 1, s.top + 2):
            if new in names.numbers or re.search(rf"\b{new}\)?$", label):
                top += 1
                numbers[new] = top
        for known, now in ((schedulers, names.schedulers), (workers, names.workers)):
            for i in now:
                if i not in known:
                    known[i] = max(known.values()) + 1
        text = re.sub(r"\bS(\d+)", lambda m, k=schedulers: f"S{k.get(int(m[1]), m[1])}", label)
        text = re.sub(r"\bW(\d+)", lambda m, k=workers: f"W{k.get(int(m[1]), m[1])}", text)
        text = re.sub(
            r"(dispatch|fence|watermark|message|->) (\d+)",
            lambda m, k=numbers: f"{m[1]} {k.get(int(m[2]), m[2]) if m[2] != '0' else 'none'}",
            text,
        )
        told.append(text)
        schedulers = {new: schedulers[old] for old, new in names.schedulers.items() if old} | _gone(schedulers)
        workers = {new: workers[old] for old, new in names.workers.items() if old} | _gone(workers)
        numbers = {new: numbers[old] for old, new in names.numbers.items() if old in numbers}
        s = want
    return told


def _gone(known: dict[int, int]) -> dict[int, int]:
    """Keeps the highest name in use, so that no name is given twice."""
    return {-1: max(known.values())}


def _names_of(s: State, rules: Rules, label: str, want: State) -> Names:
    for step in successors(s, rules, raw=True):
        if step.label == label:
            state, names = canonical(step.state)
            if state == want:
                return names
    raise AssertionError(label)


def tell(name: str, result: Result) -> str:
    """A result as text."""
    lines = [f"{name}: {result.states} states, {result.steps} steps, {result.seconds:.0f} s"]
    if not result.complete:
        lines[0] += " (CUT at the limit)"
    if not result.violations:
        lines.append("  no violation" + ("" if result.complete else " as far as it was looked at"))
    for what, path in result.violations.items():
        lines.append(f"  VIOLATION {what}, after {len(path)} steps:")
        lines += [f"    {n:2}. {label}" for n, label in enumerate(path, 1)]
    return "\n".join(lines)
