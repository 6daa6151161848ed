"""npz: arrays as input of ``run`` and ``check``, in archives that say one thing and hold another."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from random import Random

import numpy as np

from tests.fuzz.harness import Surface
from tests.fuzz.mutate import STRINGS, mutate_bytes, number_text

MODEL = "zoo:mlp,layers=2,hidden=4,inputs=4,batch=2"


def prepare(base: Path) -> None:
    from dnnc.cli import main

    if main(["compile", MODEL, "-t", "preset:cpu-1", "-q", "-o", str(base / "build")]):
        raise SystemExit("the build cannot be made")


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_of(header: str, data: bytes, version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    """An array file with this header, whatever it says."""
    text = header.encode("utf-8", "surrogatepass") + b"\n"
    stated = len(text) if length is None else length
    size = struct.pack("<H", stated & 0xFFFF) if version[0] == 1 else struct.pack("<I", stated & 0xFFFFFFFF)
    return b"\x93NUMPY" + version + size + text + data


def archive(folder: Path, members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> list[str]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that stands twice
        with zipfile.ZipFile(folder / "x.npz", "w", method) as file:
            for name, data in members:
                file.writestr(zipfile.ZipInfo(name.encode("utf-8", "replace").decode()), data, method)
    return ["run", "{build}", "--inputs", "x.npz", "-q"]


def header(rng: Random) -> str:
    """The header of an array, with one field that is not what it should be."""
    kind = rng.choice(
        ("<f4", "|O", "<f8", "|V8", "<U10", "|S4", "<M8[s]", "<c8", "<i8", "|b1", ">f4", "f4,f4", "", "<f4" * 50, "object")
    )
    shape = rng.choice(
        (
            "(2, 4)",
            "(4, 4)",
            "()",
            "(0,)",
            "(-1, 4)",
            f"({number_text(rng)}, 4)",
            "(2, 4" + ", 1" * 100 + ")",
            "2",
            "[2, 4]",
            "(2.0, 4)",
            "('a',)",
            "(True, 4)",
        )
    )
    order = rng.choice(("False", "True", "1", "None"))
    plain = f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {shape}, }}"
    return rng.choice(
        (
            plain,
            plain,
            plain,
            "{}",
            "[" * 3000,
            "(" * 150,
            "__import__('os').system('id')",
            plain * 2,
            plain.replace("'", "\x00"),
            "9" * 5000,
            f"{{'descr': {shape}}}",
        )
    )


def mutated(rng: Random, folder: Path, base: Path) -> list[str]:
    good = npy(np.arange(8, dtype=np.float32).reshape(rng.choice(((2, 4), (1, 2, 4)))))
    body = np.zeros(8, np.float32).tobytes()
    choices = (
        lambda: npy_of(header(rng), body),
        lambda: npy_of(
            header(rng),
            body,
            rng.choice((b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00")),
            rng.choice((None, 0, 1, 65535, 2**31)),
        ),
        lambda: mutate_bytes(rng, good),
        lambda: npy(
            np.full(
                (rng.choice((1, 2, 3, 4)), rng.choice((3, 4))),
                rng.choice((np.nan, np.inf, 1e38, 1)),
                rng.choice(("f4", "f8", "i4", "u1", "?", "c8")),
            )
        ),
        lambda: good,
        lambda: npy(np.array([rng.choice(STRINGS)])),
    )
    members = [
        (
            rng.choice(
                ("x.npy", "x.npy", "x.npy", "x", "y.npy", "X.npy", "../x.npy", "/x.npy", rng.choice(STRINGS)[:200] + ".npy")
            ),
            rng.choice(choices)(),
        )
    ]
    if rng.random() < 0.2:
        members.append((rng.choice(("x.npy", "z.npy", "x")), good))
    arguments = archive(folder, members, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    if rng.random() < 0.3:
        path = folder / "x.npz"
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    return command(rng, base, arguments)


def command(rng: Random, base: Path, arguments: list[str]) -> list[str]:
    arguments = [word.replace("{build}", str(base / "build")) for word in arguments]
    if rng.random() < 0.4:
        arguments[0] = "check"
    elif rng.random() < 0.3:
        arguments += ["-m", rng.choice(("1", "2", "7"))]
    return arguments


def bomb(rng: Random, folder: Path, base: Path) -> list[str]:
    """A few megabytes that unpack to gigabytes, under the input's name or another."""
    megabyte = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = megabyte.compress(bytes(1 << 20)) + megabyte.flush(zlib.Z_FULL_FLUSH)
    count = 4096
    name = rng.choice((b"x.npy", b"big.npy"))
    start = npy_of(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count << 18},), }}", b"")
    first = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = first.compress(start) + first.flush(zlib.Z_FULL_FLUSH) + block * count + b"\x03\x00"
    size = min(2**32 - 1, len(start) + (count << 20))
    common = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(data), size, len(name), 0)
    local = b"PK\x03\x04" + common + name + data
    central = b"PK\x01\x02" + struct.pack("<H", 20) + common + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    (folder / "x.npz").write_bytes(local + central + end)
    return command(rng, base, ["run", "{build}", "--inputs", "x.npz"])


def lying_shape(rng: Random, folder: Path, base: Path) -> list[str]:
    """A header that promises far more than the file holds."""
    shape = rng.choice(("(1099511627776, 4)", "(2305843009213693952, 4)", "(4294967296, 4294967296)", "(100000000, 4)"))
    data = npy_of(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}", bytes(64))
    return command(rng, base, archive(folder, [("x.npy", data)]))


def many_members(rng: Random, folder: Path, base: Path) -> list[str]:
    good = npy(np.zeros((2, 4), np.float32))
    return command(rng, base, archive(folder, [("x.npy", good), *((f"n{i}.npy", b"") for i in range(20_000))]))


def no_archive(rng: Random, folder: Path, base: Path) -> list[str]:
    data = rng.choice(
        (
            b"",
            b"PK",
            npy(np.zeros((2, 4), np.float32)),
            b"\x80\x04cos\nsystem\n(S'id'\ntR.",
            bytes(1000),
            b"PK\x05\x06" + bytes(18),
        )
    )
    (folder / "x.npz").write_bytes(data)
    return command(rng, base, ["run", "{build}", "--inputs", "x.npz"])


SURFACE = Surface("npz", mutated, (bomb, bomb, lying_shape, lying_shape, many_members, *[no_archive] * 4), prepare, quick=2)
