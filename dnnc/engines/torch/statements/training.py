"""Emitters of losses, attention, and the ops of a training step in the dialect ``grad``: optimizers, dropout masks."""

from __future__ import annotations

from dnnc.engines.torch.statements.call import Call, Emitter, listed
from dnnc.engines.torch.statements.faults import AttentionNotWritten
from ir.core.attributes import decimal
from ir.ops.grads import DETACH
from ir.ops.loss_scale import LOSS_SCALE, moved_by
from ir.ops.optimizers import (
    ADAFACTOR,
    ADAFACTOR_SQUARES,
    COUNTS,
    EMA,
    NESTEROV,
    RATE,
    STATE,
    UpdateOperands,
    hyperparameters,
    in_place,
)
from ir.ops.rates import KINDS, TABLE, RateSchedule


def _cross_entropy(call: Call) -> str:
    """SoftmaxCrossEntropyLoss: the loss, and the log-probabilities if they are a result."""
    loss = f"F.cross_entropy({_loss_operands(call)})"
    if len(call.op.results) == 1:
        return loss
    return f"{loss}, torch.log_softmax({call.arg(0)}, dim=1)"


def _likelihood(call: Call) -> str:
    return f"F.nll_loss({_loss_operands(call)})"


def _loss_operands(call: Call) -> str:
    """Scores, labels and options. torch wants 64-bit labels; without ``ignore_index`` it ignores label -100, ONNX none."""
    labels = call.arg(1) if call.dtype(1) == "torch.int64" else f"{call.arg(1)}.long()"
    weight = f", {call.arg(2)}" if call.present(2) else ""
    ignored = call.get("ignore_index")
    ignore = f", ignore_index={int(ignored)}" if ignored is not None else ""
    return f"{call.arg(0)}, {labels}{weight}{ignore}, reduction={call.word('reduction', 'mean', 'none', 'sum', 'mean')}"


def _attention(call: Call) -> str:
    """Results 1 and 2, if present, are the present key and value."""
    if len(call.op.results) > 3 or call.present(6) or call.get("softcap", 0.0):
        raise call.fault(AttentionNotWritten(call.op.name))
    heads, kv_heads = call.get("q_num_heads", 0), call.get("kv_num_heads", 0)
    scale = call.float("scale", 0.0) if call.get("scale") is not None else "None"
    mask, causal = call.arg(3), bool(call.get("is_causal", 0))
    past = f", {call.arg(4)}, {call.arg(5)}" if call.present(4) else ""
    q, k, v = (call.arg(i) for i in range(3))
    if call.rank(0) == 3:
        q, k, v = (
            f"{name}.unflatten(-1, ({count}, -1)).transpose(1, 2)" for name, count in ((q, heads), (k, kv_heads), (v, kv_heads))
        )
    text = f"attention({q}, {k}, {v}, {mask}, {scale}, {causal}{past})"
    first = f"{text}[0]"
    if call.rank(0) == 3:
        first = f"{first}.transpose(1, 2).flatten(2)"
    return first if len(call.op.results) == 1 else f"attention_results({text}, {call.rank(0) == 3})"


def _rotary(call: Call) -> str:
    heads, width = call.get("num_heads", 0), call.get("rotary_embedding_dim", 0)
    positions = call.arg(3)
    interleaved = bool(call.get("interleaved", 0))
    return f"rotary({call.arg(0)}, {call.arg(1)}, {call.arg(2)}, {positions}, {heads}, {width}, {interleaved})"


def _accumulate(call: Call) -> str:
    """The mean over the microbatches: when phase U begins, the operand holds their sum."""
    count = call.get("microbatches")
    return call.arg(0) if count == 1 else f"{call.arg(0)} / {count}"


def _optimizer(call: Call) -> str:
    """Updates the weight and its state in place if they are resources (``grad.assign`` then copies a tensor onto itself), else
    in copies. A step that is not taken leaves the operands as they are."""
    name, states = call.op.name.removeprefix("grad."), len(call.op.results) - 1
    tensors = 2 + states + int(name in COUNTS)
    operands = [_changed(call, i) for i in range(tensors)]
    if call.op.name == ADAFACTOR and states == 1:  # no state of columns
        operands.insert(3, "None")
    rate, scale, taken = (call.arg(i) if call.present(i) else "" for i in range(tensors, tensors + 3))
    numbers = {key: repr(value) for key, value in hyperparameters(call.op).items()}
    if rate:
        numbers["learning_rate"] += f" * {rate}"
    if call.get(NESTEROV, 0):
        numbers[NESTEROV] = "True"
    if scale:
        numbers["scale"] = scale
    if sums := len(UpdateOperands.of(call.op).sums):
        numbers["shape"] = listed(call.get("shape"))
        last = len(call.op.operands)
        numbers["sums"] = f"({', '.join(map(call.arg, range(last - sums, last)))})"
    text = f"{name}({', '.join(operands)}, {', '.join(f'{key}={value}' for key, value in numbers.items())})"
    if not taken:
        return text
    same = ", ".join([call.arg(0), *map(call.arg, range(2, 2 + states))])
    return f"{text} if {taken} else {f'({same})' if states else same}"


def _adafactor_squares(call: Call) -> str:
    scale = f", scale={call.arg(2)}" if call.present(2) else ""
    gradient, step, *behind = (call.arg(i) for i in (0, 1, *range(3, len(call.op.operands))))
    sums = f"({', '.join(behind[2:])})" if len(behind) > 1 else "()"
    states = [*behind[:2], "None"][:2]
    numbers = ", ".join(f"{key}={decimal(call.get(key))!r}" for key in ("beta2_decay", "epsilon1"))
    numbers += f", shape={listed(call.get('shape'))}"
    return f"adafactor_squares({gradient}, {', '.join(states)}, {step}, {sums}, {numbers}{scale})"


def _changed(call: Call, place: int) -> str:
    """An operand that may be changed in place, as a copy unless it is a resource."""
    copied = place in in_place(call.op) and call.op.operands[place][:1] != "@"
    return f"{call.arg(place)}.clone()" if copied else call.arg(place)


def _ema(call: Call) -> str:
    return f"ema({_changed(call, 0)}, {call.arg(1)}, {call.arg(2)}, decay={decimal(call.get('decay'))!r})"


def _rate(call: Call) -> str:
    """A number of Python: only other numbers are multiplied by it."""
    schedule = RateSchedule.of(call.op)
    if schedule.kind == TABLE:
        return f"table_rate({call.arg(0)}, {schedule.values!r})"
    numbers = "".join(f", {key}={getattr(schedule, key)!r}" for key in KINDS[schedule.kind])
    return f"learning_rate_factor({call.arg(0)}, {schedule.kind!r}{numbers})"


def _loss_scale(call: Call) -> str:
    growth, backoff, interval = moved_by(call.op)
    operands = ", ".join(map(call.arg, range(4)))
    return f"moved_loss_scale({operands}, growth={growth!r}, backoff={backoff!r}, interval={interval})"


def _mask(call: Call) -> str:
    number, ratio = int(call.get("number")), call.float("ratio", 0.0)
    return f"dropout_mask({call.arg(0)}, {number}, {ratio}, {listed(call.shape(-1))}, {call.dtype(-1)})"


def _normal(call: Call) -> str:
    return _drawn(call, "randn", decimal(call.get("scale")), decimal(call.get("mean")))


def _uniform(call: Call) -> str:
    low = decimal(call.get("low"))
    return _drawn(call, "rand", decimal(call.get("high")) - low, low)


def _drawn(call: Call, function: str, scale: float, shift: float) -> str:
    """Random numbers times ``scale`` plus ``shift``."""
    generator = f"generator_of({call.arg(0)}, {int(call.get('number'))})"
    text = f"torch.{function}({listed(call.shape(-1))}, generator={generator}, dtype=torch.float32)"
    text += (f" * {scale!r}" if scale != 1.0 else "") + (f" + {shift!r}" if shift else "")
    return f"({text}).to({call.arg(0)}.device, {call.dtype(-1)})"


EMITTERS: dict[str, Emitter] = {
    "onnx.Attention": _attention,
    "onnx.NegativeLogLikelihoodLoss": _likelihood,
    "onnx.RotaryEmbedding": _rotary,
    "onnx.SoftmaxCrossEntropyLoss": _cross_entropy,
    "grad.accumulate": _accumulate,
    DETACH: lambda call: f"{call.arg(0)}.detach()",
    ADAFACTOR_SQUARES: _adafactor_squares,
    EMA: _ema,
    "grad.mask": _mask,
    "grad.normal": _normal,
    "grad.uniform": _uniform,
    LOSS_SCALE: _loss_scale,
    RATE: _rate,
    **{f"grad.{name}": _optimizer for name in STATE},
}
"""Full name of an op -> its emitter."""
