"""Seconds to print and to parse a module of 10,000 and of 100,000 ops: ``python -m tests.bench.ir_text``.

The ops are like those of a transformer after `partition`: distinct names, locations and costs, groups and stages, an attribute
or two. Target: parse + print of 10,000 ops under 2 s on one core, and ten times as many take at most ten times as long (with
a margin for noise). Times are CPU seconds of this one thread, which other work on the machine does not lengthen. The result
is compared with the original, so that nothing is left out.
"""

from __future__ import annotations

import sys
import time

from ir import (
    Cost,
    DType,
    External,
    Func,
    Group,
    Location,
    Module,
    Op,
    Resource,
    StageSet,
    TensorType,
    Value,
    attributes,
    parse_module,
    print_module,
    verify,
)
from tests.bench.machine import header

TARGET = 2.0
"""Seconds for parse + print of 10,000 ops."""
NOISE = 1.3
"""What the ratio of the two sizes may exceed 10 by."""


def large_module(ops: int, salt: int = 0) -> Module:
    """A chain of ``ops`` ops in layers of 16, as a transformer's names and facets look. Another ``salt`` gives other names and
    numbers, so that nothing remembered from one parse serves the next."""
    kinds = ("onnx.MatMul", "onnx.Add", "onnx.Gelu", "onnx.Transpose", "onnx.Softmax")
    body = []
    for i in range(ops):
        kind = kinds[i % len(kinds)]
        layer = i // 16
        read, weight = f"%/encoder{salt}/layer.{(i - 1) // 16}/out_{i - 1}" if i else "%x", f"@encoder.layer.{layer}.weight"
        attrs = {"onnx.Transpose": attributes(perm=(0, 2, 1)), "onnx.Softmax": attributes(axis=-1)}.get(kind, ())
        body.append(
            Op(
                kind,
                (read, weight) if kind in ("onnx.MatMul", "onnx.Add") else (read,),
                (Value(f"%/encoder{salt}/layer.{layer}/out_{i}", TensorType(DType.F32, (1, 128, 768 + layer % 5))),),
                attrs,
                (),
                (Cost(2 * 128 * i + salt, 4 * i + 512, 4 * i, kind="matmul"), Group(i // 3), StageSet((i * 4 // ops,))),
                Location("main", f"/encoder/layer.{layer}/node_{i}", f"encoder.layer.{layer}"),
            )
        )
    weights = tuple(
        Resource(
            f"@encoder.layer.{layer}.weight", TensorType(DType.F32, (768, 768)), External("w.data", layer << 22, 768 * 768 * 4)
        )
        for layer in range((ops + 15) // 16)
    )
    main = Func("@main", (Value("%x", TensorType(DType.F32, (1, 128, 768))),), (body[-1].results[0],), tuple(body))
    return Module("@bench", (*weights, main), attributes(producer="bench"))


def measure(ops: int) -> float:
    """Prints a line; returns seconds for parse + print, the best of three (one for the large size)."""
    best_print = best_parse = float("inf")
    for salt in range(3 if ops <= 10_000 else 1):
        module = large_module(ops, ops + salt)
        start = time.process_time()
        text = print_module(module)
        best_print = min(best_print, time.process_time() - start)
        start = time.process_time()
        again = parse_module(text)
        best_parse = min(best_parse, time.process_time() - start)
        if again != module:
            raise SystemExit("the module does not read back equal")
    start = time.process_time()
    faults = verify(module)
    verifying = time.process_time() - start
    if faults:
        raise SystemExit(f"the module does not verify: {faults[0]}")
    total = best_print + best_parse
    print(
        f"{ops:>7} ops, {len(text) / 1e6:5.1f} MB: print {best_print:.3f} s, parse {best_parse:.3f} s, "
        f"parse + print {total:.3f} s ({total / ops * 1e6:.1f} us per op); verify {verifying:.3f} s"
    )
    return total


def main() -> int:
    """1 when a target is missed."""
    print(header())
    start = time.process_time()
    parse_module("module @empty {}")
    print(f"first parse, building the grammars: {time.process_time() - start:.3f} s")
    small = measure(10_000)
    large = measure(100_000)
    ratio = large / small
    print(f"10,000 ops: {small:.3f} s (target {TARGET} s); 100,000 ops take {ratio:.2f} times as long (linear: 10)")
    return 0 if small < TARGET and ratio < 10 * NOISE else 1


if __name__ == "__main__":
    sys.exit(main())
