"""Random changes of a build directory that do not update its digests."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import onnx


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(folder: Path, random: Random) -> None:
    """Flips up to three bits of a file."""
    path = random.choice(files_of(folder))
    data = bytearray(path.read_bytes())
    for _ in range(random.randint(1, 3)):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def resize(folder: Path, random: Random) -> None:
    """Inserts or appends bytes to a file, removes one byte, or truncates it."""
    path = random.choice(files_of(folder))
    data = path.read_bytes()
    at = random.choice((len(data), random.randrange(len(data))))
    path.write_bytes(data[:at] + random.choice((b"", random.randbytes(random.randint(1, 64)), data[at + 1 :])))


def swap(folder: Path, random: Random) -> None:
    """Exchanges two files, of the same suffix where there are two."""
    files = files_of(folder)
    suffix = random.choice(files).suffix
    alike = [path for path in files if path.suffix == suffix]
    one, other = random.sample(alike if len(alike) > 1 else files, 2)
    aside = folder / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def link(folder: Path, random: Random) -> None:
    """Replaces a file by a symbolic link to a copy of it or of another file, or ``stages`` by a link to a copy of it."""
    path = random.choice([*files_of(folder), folder / "stages"])
    target = folder.parent / "elsewhere"
    if path.is_dir():
        shutil.copytree(path, target)
        shutil.rmtree(path)
    else:
        shutil.copy(random.choice((path, *files_of(folder))), target)
        path.unlink()
    path.symlink_to(target)


def remove(folder: Path, random: Random) -> None:
    """Removes a file, renames it, or puts a FIFO or a folder in its place."""
    path = random.choice(files_of(folder))
    content = path.read_bytes()
    path.unlink()
    match random.randrange(4):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.with_name(f"{path.name}.bak").write_bytes(content)


def add(folder: Path, random: Random) -> None:
    """Writes a file that the manifest does not list."""
    name = random.choice(("notes", "stages/stage9.onnx", "weights.data", "stages/other.data", "stages/stage0.onnx.data"))
    (folder / name).write_bytes(random.randbytes(100))


def graph(folder: Path, random: Random) -> None:
    """Changes the operator, operands or attribute of a node, or a weight, or appends a node to a model."""
    path = random.choice([path for path in files_of(folder) if path.suffix == ".onnx"])
    model = onnx.load(str(path), load_external_data=False)
    node = random.choice(model.graph.node) if model.graph.node else onnx.NodeProto()
    match random.randrange(5):
        case 0:
            node.op_type = random.choice(("Neg", "Sin", "Identity", "Add", "Sub", "Mul"))
        case 1 if len(node.input) > 1:
            node.input[0], node.input[1] = node.input[1], node.input[0]
        case 2 if model.graph.initializer:
            tensor = random.choice(model.graph.initializer)
            for entry in tensor.external_data:
                entry.value = {"location": "../../etc/passwd", "offset": "0", "length": entry.value}.get(entry.key, entry.value)
            tensor.name = random.choice(model.graph.initializer).name
        case 3 if node.attribute:
            node.attribute[0].i += 1
            node.attribute[0].f += 1
        case _:
            name = model.graph.output[0].name
            model.graph.node.append(onnx.helper.make_node("Abs", [f"{name}0"], [name]))
            node.output[0] = f"{name}0"
    path.write_bytes(model.SerializeToString())


def change_leaf(data: Any, random: Random) -> None:
    """Changes one entry of a JSON document: removes it, exchanges it with another, shuffles its list, or gives it another
    value."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
            places.append((value, key))
            walk(inner)

    walk(data)
    holder, key = random.choice(places)
    other, other_key = random.choice(places)
    value = holder[key]
    match random.randrange(5):
        case 0:
            del holder[key]
        case 1:
            holder[key], other[other_key] = other[other_key], value
        case 2 if isinstance(holder, list):
            random.shuffle(holder)
        case 3:
            holder[key] = random.choice((None, -1, 10**30, "", "x", [], {}, True))
        case _:
            more = {int: lambda: value + 1, float: lambda: value * 2, str: lambda: f"{value}1", bool: lambda: not value}
            holder[key] = more.get(type(value), lambda: [value])()


def document(folder: Path, random: Random, name: str) -> None:
    path = folder / name
    data = json.loads(path.read_text())
    try:
        change_leaf(data, random)
        path.write_text(json.dumps(data, indent=random.choice((None, 2))))
    except ValueError:  # an entry was put inside itself
        path.write_text("{}")


def manifest(folder: Path, random: Random) -> None:
    document(folder, random, "manifest.json")


def plan(folder: Path, random: Random) -> None:
    document(folder, random, "plan.json")


def trace(folder: Path, random: Random) -> None:
    document(folder, random, "trace.json")


def program(folder: Path, random: Random) -> None:
    """Removes or replaces a line of plan.ir, or replaces a word."""
    path = folder / "plan.ir"
    lines = path.read_text().splitlines()
    at = random.randrange(len(lines))
    match random.randrange(3):
        case 0:
            del lines[at]
        case 1:
            lines[at] = lines[random.randrange(len(lines))]
        case 2:
            words = lines[at].split(" ")
            words[random.randrange(len(words))] = random.choice(" ".join(lines).split())
            lines[at] = " ".join(words)
    path.write_text("\n".join(lines) + "\n")


KINDS: tuple[Callable[[Path, Random], None], ...] = (
    flip,
    resize,
    swap,
    link,
    remove,
    add,
    graph,
    manifest,
    plan,
    trace,
    program,
)
