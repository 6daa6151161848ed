"""What a message names of a person's module: the submodule, the operator, the line of the source."""

from __future__ import annotations

import functools
import inspect
import linecache
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType

import torch

_TORCH = Path(torch.__file__).parent
_LIBRARIES = tuple(str(folder.resolve()) for folder in (_TORCH, _TORCH.parent / "onnxscript", Path(__file__).parents[3]))
_STANDARD = str(Path(linecache.__file__).resolve().parent)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>[0-9]+), in ')


def of_node(node: torch.fx.Node) -> str:
    """The module and line that a node of an exported program comes from: ``module 'head.drop' (Dropout2d), model.py:12``."""
    stack = node.meta.get("nn_module_stack") or {}
    path, kind = list(stack.values())[-1] if stack else ("", "")
    kind = kind if isinstance(kind, str) else kind.__name__
    lines = [(found["file"], int(found["line"])) for found in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    own = [line for line in lines if is_persons(line[0])]
    told = [_module(path, kind)] if path else []
    return ", ".join([*told, *(f"{Path(file).name}:{line}" for file, line in own[-1:])])


def operator(node: torch.fx.Node) -> str:
    """The operator that a node calls, as a person knows it: ``cdist`` for ``aten._cdist_forward.default``."""
    name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
    return name.strip("_").removesuffix("_forward")


def of_error(error: BaseException, root: torch.nn.Module) -> tuple[str, str]:
    """The module and line at which an export failed, and the operator or the text of that line. Both are empty if unknown."""
    names = _names(root)
    for one in reversed([*causes(error)]):
        inside, line_of, source = "", "", ""
        for frame, line in traceback.walk_tb(one.__traceback__):
            node = frame.f_locals.get("node")
            if isinstance(node, torch.fx.Node) and node.op == "call_function":
                return of_node(node), operator(node)
            file = frame.f_code.co_filename
            inside = _inside(frame, names) or inside
            if is_persons(file):
                line_of, source = f"{Path(file).name}:{line}", linecache.getline(file, line).strip()
        if line_of:
            return ", ".join(filter(None, (inside, line_of))), source
    return "", ""


def of_frame(frame: FrameType | None, root: torch.nn.Module) -> str:
    """The innermost line of a person's code among a frame and its callers, and the innermost module that these are calls of."""
    if frame is None:
        return ""
    stack, names = [*traceback.walk_stack(frame)], _names(root)  # the innermost first
    inside = next((told for one, _ in stack if (told := _inside(one, names))), "")
    own = ((one.f_code.co_filename, number) for one, number in stack if is_persons(one.f_code.co_filename))
    line = next((f"{Path(file).name}:{number}" for file, number in own), "")
    return ", ".join(filter(None, (inside, line)))


def _names(root: torch.nn.Module) -> dict[int, str]:
    return {id(part): name for name, part in root.named_modules() if name}


def _inside(frame: FrameType, names: Mapping[int, str]) -> str:
    """The part of the module that this is a call of; empty where it is none."""
    part = frame.f_locals.get("self")
    named = isinstance(part, torch.nn.Module) and id(part) in names
    return _module(names[id(part)], type(part).__name__) if named else ""


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, its cause, the cause of that, and so on: the root cause is last."""
    found: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in found:
        found.append(at)
        yield at
        at = at.__cause__ or at.__context__


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]


def _module(path: str, kind: str) -> str:
    return f"module '{path}' ({kind.rpartition('.')[2]})"


@functools.cache
def is_persons(file: str) -> bool:
    """Whether the file belongs neither to torch, nor to the exporter, this package or the standard library."""
    if file.startswith("<"):
        return False
    path = str(Path(file).resolve())
    standard = path.startswith(_STANDARD) and "-packages" not in path
    return not standard and not path.startswith(_LIBRARIES)


def described(module: torch.nn.Module, path: str) -> str:
    """The name of a part in a message: ``module 'head' (Head)``; the class alone where the part is the whole module."""
    kind = type(module)
    return _module(path, kind.__name__) if path else kind.__name__


def custom_functions(results: Iterable[torch.Tensor]) -> list[str]:
    """The person's own autograd functions that computed these results: ``autograd.Function 'Reverse', model.py:12``."""
    waiting, seen, found = [one.grad_fn for one in results], set[int](), dict[str, None]()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        waiting += [before for before, _ in node.next_functions]
        kind = getattr(node, "_forward_cls", None)
        if kind is not None and is_persons(inspect.getfile(kind)):
            line = inspect.getsourcelines(kind)[1]
            found[f"autograd.Function '{kind.__name__}', {Path(inspect.getfile(kind)).name}:{line}"] = None
    return list(found)
