"""Numbers of IR text outside of every range: each is a fault of the text at its line, never a crash."""

from __future__ import annotations

import pytest

from ir import load_module
from ir.core.diagnostics import InvalidInput
from ir.core.ranges import whole

HUGE = "1" + "0" * 400
LONG = "9" * 5000


def module(op: str = "", *, head: str = "", symbols: str = "", type_: str = "tensor<4xf32>") -> str:
    return f"""module @m{head} {{
{symbols}
  func @main(%x : {type_}) -> (%y : {type_}) {{
    %y = onnx.Relu(%x) : {type_} {op}
  }}
}}
"""


def topology(kind: str = "", device: str = "", host: str = "", link: str = "") -> str:
    return f"""  topology @t {{
    type t {{rates = {{f32 = 1.0}}{kind}}}
    host h {{cores = 1{host}}}
    device a {{type = t, host = h{device}}}
    device b {{type = t, host = h}}
    link l {{ends = [a, b], bandwidth = 1.0{link}}}
  }}"""


def plan(text: str = "", stage: str = "") -> str:
    return f"""  plan @p {{
    objective = throughput
    comm = sum
    value = 1.0
    port_value = 1.0
    bound = 1.0
    status = optimal
    single = inf
    {text}
    stage {{index = 0, device_type = ""{stage}}}
  }}"""


CASES = [
    *(module(f"time<@core = {number}>") for number in ("nan", "inf", "-1.0", "1e301", HUGE, LONG)),
    *(module(f"cost<flops = {number}, kind = matmul>") for number in ("-1", HUGE, LONG)),
    *(module(f"{facet}<{number}>") for facet in ("group", "color", "stage") for number in ("-1", HUGE, LONG)),
    module("transfer<nan>"),
    *(
        module(type_=f"tensor<{dims}xf32>")
        for dims in (LONG, HUGE, "9007199254740992", "x".join(["9999999"] * 9), "1x" * 64 + "2")
    ),
    module(symbols=f'  resource @w : tensor<{"999999999x" * 600}f32> = external("w", offset = 0, length = 4)'),
    module(symbols=f"  resource @w : bytes<{1 << 60}> = declared"),
    module(symbols=f'  resource @w : tensor<4xf32> = external("w", offset = {1 << 63}, length = 16)'),
    module(symbols=f"  resource @w : tensor<4xf32> = random(normal, seed = {HUGE})"),
    *(module(head=f" {{opset.onnx = {number}}}") for number in ("nan", "1.0", "-1", LONG, str(1 << 40), '"20"', "[1]")),
    module(head=" {producer = 1}"),
    *(
        module(symbols=topology(kind=f", {key} = {number}"))
        for key in ("overhead", "memory_bandwidth")
        for number in ("nan", "1e300")
    ),
    *(module(symbols=topology(device=f", memory = {number}")) for number in ("-1", HUGE, str(1 << 63))),
    *(module(symbols=topology(link=f", latency = {number}")) for number in ("-1.0", "inf", "1e31", "1e-320", HUGE)),
    *(module(symbols=topology(kind=f", efficiency = {{conv = {number}}}")) for number in ("0.0", "1e-300", "nan", "2.0")),
    *(
        module(symbols=f"  mesh @g [{axes}] on [a]")
        for axes in (f"x = {HUGE}", ", ".join(f"x{i} = 99999999999" for i in range(500)))
    ),
    *(module(symbols=plan(text)) for text in ("microbatches = 0", f"microbatches = {1 << 40}", f"microbatches = {LONG}")),
    *(
        module(symbols=plan(stage=f", {text}"))
        for text in ("compute = nan", "compute = 1e300", f"weights = {1 << 62}", "ops = -1")
    ),
    *(
        module(symbols=f"  schedule @s {{\n    kind = x\n    {text}\n  }}")
        for text in ("period = nan", f"microbatches = {1 << 60}", "latency = -1.0")
    ),
    module('{id = "\\ud800"}'),
    'module @"\\udfff" {\n}\n',
]


@pytest.mark.parametrize("text", CASES, ids=[f"{number}" for number in range(len(CASES))])
def test_a_number_out_of_range_is_a_fault_at_its_line(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_module(text, "m.ir")
    first = caught.value.diagnostics[0]
    assert first.where == "m.ir"
    assert first.span is not None


def test_whole_reads_what_its_range_holds() -> None:
    assert whole("-0042") == -42
    assert whole(str(1 << 64)) == 1 << 64
    for text in (str((1 << 64) + 1), LONG, f"-{LONG}", "1.5", "x", ""):
        with pytest.raises(ValueError, match=r"too large|invalid literal"):
            whole(text)


@pytest.mark.parametrize("symbols", ["", topology(), plan()])
def test_the_text_around_the_numbers_is_valid(symbols: str) -> None:
    assert load_module(module("group<0>", symbols=symbols))
