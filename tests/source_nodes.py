"""The Python files of the packages, each parsed once for all the rules that are read off them."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar, cast

Node = TypeVar("Node", bound=ast.AST)

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("grammars", "ir", "passes", "dnnc")
"""In the order of the imports: each may import itself and those before it."""


@functools.cache
def sources() -> tuple[Path, ...]:
    """Every Python file of the packages, relative to the root, sorted."""
    return tuple(sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def _walk(tree: ast.Module) -> Iterator[ast.AST]:
    """As ``ast.walk``, without ``Load`` and ``Store``, which are a third of all nodes and say nothing alone."""
    todo: list[ast.AST] = [tree]
    for node in todo:  # grows
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                todo.extend([one for one in value if isinstance(one, ast.AST)])
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                todo.append(value)


@functools.cache
def _nodes() -> dict[type[ast.AST], list[tuple[Path, ast.AST]]]:
    nodes: dict[type[ast.AST], list[tuple[Path, ast.AST]]] = {}
    gc.disable()  # a million nodes that stay: walking over them again and again takes longer than parsing
    for path in sources():
        for node in _walk(tree_of(path)):
            nodes.setdefault(type(node), []).append((path, node))
    gc.freeze()
    gc.enable()
    return nodes


def nodes(kind: type[Node]) -> Iterator[tuple[Path, Node]]:
    """The nodes of one class in all files, lazy imports inside functions included, each with its file."""
    for path, node in _nodes().get(kind, ()):
        yield path, cast(Node, node)
