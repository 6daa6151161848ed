"""Cost of ONNX Runtime's own operators: by the formulas of what they fuse, with the bytes of packed weights."""

from __future__ import annotations

import pytest

from dnnc.onnx.schemas import RULES
from ir.core.types import DType
from passes.prepare.cost import FORMULAS
from tests.passes.prepare.cost.test_cost import cost_of, tensor

U8, I8, I32 = DType.U8, DType.I8, DType.I32
MS = "onnx.com.microsoft."


def test_what_has_a_type_has_a_cost() -> None:
    """Those whose work depends on what their specification leaves open are counted by their bytes."""
    missing = {name for name in RULES if f"onnx.{name}" not in FORMULAS}
    assert missing == {
        f"com.microsoft.{name}"
        for name in (
            *("DequantizeWithOrder", "LongformerAttention", "QOrderedGelu", "QOrderedLayerNormalization"),
            *("QuantizeWithOrder", "RelativePositionBias"),
        )
    }


def test_a_packed_weight_is_read_packed() -> None:
    """MatMulNBits of 4 bits: a product of 2 M K N, 2 flops per weight to unpack, half a byte per weight and its scales."""
    m, k, n, block = 3, 64, 48, 16
    operands = [tensor(1, m, k), tensor(n, k // block, block // 2, dtype=U8), tensor(n * k // block)]
    cost = cost_of(MS + "MatMulNBits", operands, tensor(1, m, n), weights=(1, 2), K=k, N=n, bits=4, block_size=block)
    assert cost.flops == 2 * m * k * n + 2 * k * n
    assert cost.weight == n * k // 2 + 4 * n * k // block
    assert (cost.read, cost.write) == (4 * m * k + cost.weight, 4 * m * n)
    rounded = cost_of(
        *(MS + "MatMulNBits", operands, tensor(1, m, n)),
        **{"weights": (1, 2), "K": k, "N": n, "bits": 4, "block_size": block, "accuracy_level": 4},
    )
    assert (rounded.kind, rounded.flops) == ("matmul-blocks", 2 * m * k * n + 5 * m * k)
    assert (rounded.read, rounded.write, rounded.weight) == (cost.read, cost.write, cost.weight)
    assert cost.scalar > 0 == rounded.scalar, "rows that are rounded meet weights as they are packed"


def test_grouped_queries_look_at_the_whole_cache() -> None:
    batch, length, heads, shared, width, past = 1, 3, 8, 2, 16, 13
    q, kv = tensor(batch, length, heads * width), tensor(batch, length, shared * width)
    cache = [tensor(batch, shared, past, width)] * 2
    after = tensor(batch, shared, past + length, width)
    operands = [q, kv, kv, *cache, tensor(batch, dtype=I32), tensor(dtype=I32)]
    given = {"num_heads": heads, "kv_num_heads": shared}
    cost = cost_of(MS + "GroupQueryAttention", operands, q, after, after, **given)
    whole = cost_of("onnx.Attention", [tensor(1, heads, length, width), *[tensor(1, heads, past + length, width)] * 2], q)
    assert cost.flops == whole.flops
    assert cost.read >= 2 * 4 * shared * past * width
    assert cost.write == 4 * (heads * length * width + 2 * shared * (past + length) * width)


def test_a_cache_that_stays_is_read_once_and_written_where_it_is_new() -> None:
    """A step of two samples reads their caches up to the whole length, or a window; others are copied."""
    batch, heads, shared, width, room = 2, 8, 2, 16, 64
    q, kv = tensor(batch, 1, heads * width), tensor(batch, 1, shared * width)
    cache = tensor(batch, shared, room, width)
    operands = [q, kv, kv, cache, cache, tensor(batch, dtype=I32), tensor(dtype=I32)]
    given = {"num_heads": heads, "kv_num_heads": shared}
    small, bytes_ = 4 * (batch + 1), 4 * batch * shared * room * width
    name = MS + "GroupQueryAttention"
    copied = cost_of(name, operands, q, cache, cache, **given)
    stays = cost_of(name, operands, q, cache, cache, weights=(3, 4), **given)
    assert copied.flops == stays.flops
    assert copied.write == 4 * batch * heads * width + 2 * bytes_
    assert (stays.weight, stays.write) == (0, 4 * batch * heads * width + 2 * 4 * batch * shared * width)
    assert stays.read == 2 * bytes_ + 4 * batch * (heads + 2 * shared) * width + small
    window = cost_of(name, operands, q, cache, cache, weights=(3, 4), local_window_size=16, **given)
    assert (4 * window.flops, stays.read - window.read) == (stays.flops, 2 * bytes_ * 3 // 4)


def test_a_tensor_scatter_writes_its_update_into_a_state() -> None:
    cache, update, positions = tensor(2, 4, 64, 16), tensor(2, 4, 3, 16), tensor(2, dtype=DType.I64)
    copied = cost_of("onnx.TensorScatter", [cache, update, positions], cache)
    stays = cost_of("onnx.TensorScatter", [cache, update, positions], cache, weights=(0,))
    new = 4 * 2 * 4 * 3 * 16
    assert (copied.read, copied.write) == (4 * 2 * 4 * 67 * 16 + 16, 4 * 2 * 4 * 64 * 16)
    assert (stays.read, stays.write, stays.weight) == (new + 16, new, 0)


def test_a_fused_attention_is_its_projection_and_its_attention() -> None:
    batch, length, heads, width = 2, 5, 4, 8
    hidden = heads * width
    x = tensor(batch, length, hidden)
    weights = [tensor(hidden, 3 * hidden), tensor(3 * hidden)]
    fused = cost_of(MS + "Attention", [x, *weights], x, weights=(1, 2), num_heads=heads)
    core = cost_of(MS + "MultiHeadAttention", [x, x, x], x, num_heads=heads)
    projection = cost_of("onnx.Gemm", [tensor(batch * length, hidden), *weights], tensor(batch * length, 3 * hidden))
    assert fused.flops == core.flops + projection.flops
    assert fused.weight == 4 * (hidden * 3 * hidden + 3 * hidden)


def test_transposed_batches_multiply_the_same() -> None:
    plain = cost_of(MS + "FusedMatMul", [tensor(2, 3, 4), tensor(2, 4, 5)], tensor(2, 3, 5))
    turned = [tensor(4, 2, 3), tensor(2, 4, 5)]
    assert (
        plain.flops == cost_of(MS + "FusedMatMul", turned, tensor(2, 3, 5), transA=1, transBatchA=1).flops == 2 * 2 * 3 * 4 * 5
    )


def test_a_quantised_lstm_costs_what_an_lstm_costs() -> None:
    steps, batch, inputs, hidden = 7, 2, 24, 32
    whole = [tensor(steps, batch, inputs), tensor(1, 4 * hidden, inputs), tensor(1, 4 * hidden, hidden)]
    result = tensor(steps, 1, batch, hidden)
    packed = [whole[0], tensor(1, inputs, 4 * hidden, dtype=I8), tensor(1, hidden, 4 * hidden, dtype=I8)]
    quantised = cost_of(MS + "DynamicQuantizeLSTM", packed, result, weights=(1, 2))
    plain = cost_of("onnx.LSTM", whole, result, weights=(1, 2))
    assert plain.flops < quantised.flops < 1.1 * plain.flops
    assert 4 * quantised.weight == plain.weight


def test_only_the_experts_that_a_token_meets_are_read() -> None:
    experts, hidden, inner = 8, 16, 32
    operands = [tensor(1, hidden), tensor(1, experts), tensor(experts, inner, hidden), None, tensor(experts, hidden, inner)]
    cost = cost_of(MS + "MoE", operands, tensor(1, hidden), weights=(2, 4), k=2)
    assert cost.weight == 4 * 2 * 2 * hidden * inner
    assert cost.flops >= 2 * 2 * 2 * hidden * inner


def test_packed_experts_are_unpacked_once_for_all_tokens_that_meet_them() -> None:
    """Steps grow with the experts that are met, then only by the activations."""
    experts, hidden, inner = 4, 32, 64
    gate_up, down = tensor(experts, 2 * inner, hidden // 2, dtype=U8), tensor(experts, hidden, inner // 2, dtype=U8)

    def steps(tokens: int) -> float:
        operands = [tensor(tokens, hidden), tensor(tokens, experts), gate_up, tensor(experts, 2 * inner), None, down]
        given = {"weights": (2, 5), "k": 2, "expert_weight_bits": 4}
        return cost_of(MS + "QMoE", operands, tensor(tokens, hidden), **given).scalar

    one, two, four, eight = map(steps, (1, 2, 4, 8))
    token = (eight - four) / 4
    assert token > 0
    assert two == pytest.approx(2 * one, abs=2), "two experts more"
    assert four - 4 * token == pytest.approx(8 * (one - token), abs=20), "twice as many experts, of several tokens each"


def test_looked_up_rows_are_what_is_read() -> None:
    data, scales, ids = tensor(1000, 16, dtype=U8), tensor(1000, 2), tensor(3, dtype=DType.I64)
    cost = cost_of(MS + "GatherBlockQuantized", [data, ids, scales], tensor(3, 32), weights=(0, 2), bits=4, block_size=16)
    assert (cost.flops, cost.weight, cost.read) == (2 * 96, 3 * 16 + 3 * 8, 3 * 16 + 3 * 8 + 24)


def test_a_query_alone_takes_longer_for_its_scores_than_one_of_several() -> None:
    """Keys and values are packed once for several queries; for one, each is met element by element."""
    heads, shared, width, room = 8, 2, 16, 256

    def steps(length: int) -> int:
        q, kv = tensor(1, length, heads * width), tensor(1, length, shared * width)
        cache = tensor(1, shared, room, width)
        operands = [q, kv, kv, cache, cache, tensor(1, dtype=I32), tensor(dtype=I32)]
        given = {"num_heads": heads, "kv_num_heads": shared}
        return cost_of(MS + "GroupQueryAttention", operands, q, cache, cache, weights=(3, 4), **given).scalar

    assert steps(1) > heads * room * width
    assert steps(2) == steps(64) < 16 * steps(1)
    row, columns = tensor(4, 1, width), tensor(4, width, room)
    assert cost_of("onnx.MatMul", [row, columns], tensor(4, 1, room)).scalar > 0
    assert cost_of("onnx.MatMul", [row, tensor(width, room)], tensor(4, 1, room), weights=(1,)).scalar == 0
