"""The canonical order: a topological order that depends on structure alone and keeps what belongs together together.

Copies of a block must be *contiguous* in it and in the same inner order; then finding them is a matter of strings, every
stretch of the order is a convex region, and replacing stretches by calls leaves no cycle. A depth-first order alone does not
do: what several layers share (a mask, the output of an encoder) is met first inside one of them and tears it apart, the N-1
regions for N layers of other folders.

So the order follows the *post-dominator tree*: the parent of an op is the nearest op that everything computed from it runs
through. A subtree is a stretch. What 24 layers share hangs high, beside the layers, and comes before all of them; what one
layer alone uses hangs inside it. Siblings are visited depth-first by what they need: first those that depend on arguments of
the function, then larger subtrees before smaller (a small private computation stands right before its reader), then ports in
order.

A function with several sinks (ops that nothing reads): the deepest gives the tree above. What only another sink needs is
ordered likewise by itself, and stands right behind the last op that it reads if sinks like it are common (the caches that
each layer gives out), else at the end (a head on the trunk).

Nothing looks at names, nor at the order of the ops but for sinks whose results nobody asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from passes.graph.folding.program import Program

END = 1 << 62


def canonical_order(program: Program) -> list[int]:
    """The ops of ``program`` in canonical order; O((ops + operands) log ops)."""
    count = len(program.keys)
    makers = [_makers(program, op) for op in range(count)]
    readers: list[list[int]] = [[] for _ in range(count)]
    depth = [0] * count
    fed = [False] * count
    for op in range(count):
        for maker in makers[op]:
            readers[maker].append(op)
            depth[op] = max(depth[op], depth[maker] + 1)
        fed[op] = any(
            fed[program.maker[value]] if program.maker[value] >= 0 else program.names[value][0] == "%"
            for value in program.reads[op]
        )
    rank = {program.maker[value]: position for position, value in reversed(list(enumerate(program.results)))}
    sinks = sorted((op for op in range(count) if not readers[op]), key=lambda op: (-depth[op], rank.get(op, count), op))
    common = Counter(program.keys[op] for op in sinks)
    done = [False] * count
    lists = []
    for sink in sinks:
        members = _ancestors(sink, makers, done)
        lists.append(_tree_order(members, makers, readers, fed))
    # Behind which op of the first list each op stands.
    place = [0] * count
    entries: list[tuple[int, int, int, int]] = []
    for number, ops in enumerate(lists):
        if number == 0:
            behind = dict(zip(ops, range(len(ops)), strict=True))
        else:
            own = set(ops)
            outside = [place[maker] for op in ops for maker in makers[op] if maker not in own]
            late = END if common[program.keys[ops[-1]]] == 1 else -1
            behind = dict.fromkeys(ops, max([late, *outside]))
        for position, op in enumerate(ops):
            place[op] = behind[op]
            entries.append((place[op], number, position, op))
    entries.sort()
    return [op for _, _, _, op in entries]


def _makers(program: Program, op: int) -> list[int]:
    """Ops that ``op`` reads from, in the order of its ports, each once."""
    return [maker for maker in dict.fromkeys([program.maker[value] for value in program.reads[op]]) if maker >= 0]


def _ancestors(sink: int, makers: Sequence[Sequence[int]], done: list[bool]) -> list[int]:
    """The ops that ``sink`` needs and that are not done, ascending; they are done then."""
    found, todo = [], [sink]
    done[sink] = True
    while todo:
        op = todo.pop()
        found.append(op)
        for maker in makers[op]:
            if not done[maker]:
                done[maker] = True
                todo.append(maker)
    return sorted(found)


def _tree_order(
    members: Sequence[int], makers: Sequence[Sequence[int]], readers: Sequence[Sequence[int]], fed: Sequence[bool]
) -> list[int]:
    """The order of ``members`` (ascending, the last is the one sink) along their post-dominator tree."""
    index = {op: i for i, op in enumerate(members)}
    parent = _post_dominators([[index[reader] for reader in readers[op] if reader in index] for op in members])
    count = len(members)
    size = [1] * count
    needs: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]  # at a parent: (reader, port, child that it reads)
    for i, op in enumerate(members):
        if parent[i] >= 0:
            size[parent[i]] += size[i]
        for port, maker in enumerate(makers[op]):
            child = index.get(maker)
            if child is not None:
                needs[parent[child]].append((i, port, child))
    forest = _Positions(size)
    children: list[list[int]] = [[] for _ in range(count)]
    for node in range(count):  # children come before their parent
        wanted: dict[int, list[tuple[bool, int, int, int, int]]] = {}
        for reader, port, child in needs[node]:
            branch, offset = (node, 0) if reader == node else forest.find(reader)
            wanted.setdefault(branch, []).append((not fed[members[child]], -size[child], offset, port, child))
        children[node] = _visit(node, wanted)
        forest.join(node, children[node])
    return [members[i] for i in _post_order(count - 1, children)]


def _post_dominators(readers: Sequence[Sequence[int]]) -> list[int]:
    """For each node the nearest that all its readers lead through; -1 for the last, the sink. Nodes are in topological order.

    Ancestors are met by jump pointers (Myers 1983, *An applicative random-access stack*): O(log n) each."""
    count = len(readers)
    parent, jump, depth = [-1] * count, [-1] * count, [0] * count
    jump[-1] = count - 1
    for node in range(count - 2, -1, -1):
        meet = readers[node][0]
        for other in readers[node][1:]:
            while meet != other:
                if depth[meet] < depth[other]:
                    meet, other = other, meet
                elif depth[meet] == depth[other]:
                    meet, other = (jump[meet], jump[other]) if jump[meet] != jump[other] else (parent[meet], parent[other])
                    continue
                meet = jump[meet] if depth[jump[meet]] >= depth[other] else parent[meet]
        parent[node], depth[node] = meet, depth[meet] + 1
        far = jump[meet]
        jump[node] = jump[far] if depth[meet] - depth[far] == depth[far] - depth[jump[far]] else meet
    return parent


def _visit(node: int, wanted: dict[int, list[tuple[bool, int, int, int, int]]]) -> list[int]:
    """The children of ``node`` depth-first by need: ``wanted`` of the node, then of each child before the child."""
    order: list[int] = []
    seen = {node}
    stack = [(node, iter(sorted(wanted.get(node, ()))))]
    while stack:
        top, needs = stack[-1]
        for *_, child in needs:
            if child not in seen:
                seen.add(child)
                stack.append((child, iter(sorted(wanted.get(child, ())))))
                break
        else:
            stack.pop()
            order.append(top)
    return order[:-1]


class _Positions:
    """Where each node stands in the order of the subtree that it is in so far: union-find with offsets."""

    def __init__(self, size: Sequence[int]) -> None:
        self.size = size
        self.parent = list(range(len(size)))
        self.start = [0] * len(size)  # of a node's stretch, from the start of its parent's here

    def find(self, node: int) -> tuple[int, int]:
        """The root of the tree that ``node`` is in, and the node's place in that tree's order: the last of its stretch."""
        path, root = [], node
        while self.parent[root] != root:
            path.append(root)
            root = self.parent[root]
        total = 0
        for step in reversed(path):
            total += self.start[step]
            self.parent[step], self.start[step] = root, total
        return root, total + self.size[node] - 1

    def join(self, node: int, children: Sequence[int]) -> None:
        """Makes the stretches of ``children`` stand before ``node``, in this order."""
        start = 0
        for child in children:
            self.parent[child], self.start[child] = node, start
            start += self.size[child]


def _post_order(root: int, children: Sequence[Sequence[int]]) -> list[int]:
    """Every node behind its children, the children in order."""
    reverse, stack = [], [root]
    while stack:
        node = stack.pop()
        reverse.append(node)
        stack.extend(children[node])
    return reverse[::-1]
