"""Emitters of RNN, GRU and LSTM and of their backward kernels.

Attributes beyond those of PyTorch's layers (peepholes, clipping, other activations, lengths of sequences) are refused."""

from __future__ import annotations

from dnnc.engines.torch.statements.call import Call, Emitter
from dnnc.engines.torch.statements.faults import AttributeNotWritten, FormNotWritten

GRADIENTS = "grad.LSTMGradients"
"""An op of programs alone, no op of the IR: of the first nine operands of ``grad.LSTM`` the gradients of X, W and R, without
the dimension of the one direction, the sum of those of the gates, and the gradients of the initial h and c."""
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _form(call: Call) -> tuple[str, str]:
    """The name of torch's function, and for each direction whether it runs backward, as Python text."""
    operator = call.op.name.rpartition(".")[2].removesuffix("Gradients")
    direction = call.get("direction", "forward")
    if direction not in _DIRECTIONS:
        raise call.fault(AttributeNotWritten(call.op.name, "direction", str(direction), tuple(_DIRECTIONS)))
    backward = _DIRECTIONS[direction]
    kind, usual = operator.lower(), _ACTIVATIONS[operator]
    named = tuple(call.get("activations") or usual * len(backward))
    if operator == "RNN":
        if len(set(named)) > 1 or named[0] not in ("Tanh", "Relu"):
            raise call.fault(AttributeNotWritten(call.op.name, "activations", str(named), ("Tanh", "Relu")))
        kind = f"rnn_{named[0].lower()}"
    elif named != usual * len(backward):
        raise call.fault(AttributeNotWritten(call.op.name, "activations", str(named), usual))
    if operator == "GRU" and not call.get("linear_before_reset", 0):
        raise call.fault(AttributeNotWritten(call.op.name, "linear_before_reset", "0", ("1",)))
    return kind, repr(backward)


def _recurrent(call: Call) -> str:
    for key in ("clip", "input_forget", "layout"):
        if call.get(key, 0):
            raise call.fault(AttributeNotWritten(call.op.name, key, str(call.get(key)), ("0",)))
    for number, what in ((4, "lengths of sequences"), (7, "peepholes")):
        if call.present(number):
            raise call.fault(FormNotWritten(call.op.name, what))
    kind, backward = _form(call)
    x, w, r, bias, _, h, c = (call.arg(i) for i in range(7))
    text = f'recurrent("{kind}", {x}, {w}, {r}, {bias}, {h}, {c}, {backward})'
    return _taken(call, text, 3)


def _gradient(call: Call) -> str:
    kind, backward = _form(call)
    dy, dh, dc, *read = (call.arg(i) for i in range(10))
    text = f'recurrent_backward("{kind}", ({dy}, {dh}, {dc}), {", ".join(read)}, {backward})'
    return _taken(call, text, 5)


def _gradients(call: Call) -> str:
    kind, backward = _form(call)
    dy, dh, dc, *read = (call.arg(i) for i in range(9))
    wanted = tuple(bool(value.name) for value in call.op.results)
    return f"{kind}_gradients(({dy}, {dh}, {dc}), {', '.join(read)}, {backward}, {wanted})"


def _taken(call: Call, text: str, count: int) -> str:
    """The results that the op has, of ``count``."""
    have = len(call.op.results)
    return text if have == count else f"{text}[0]" if have == 1 else f"{text}[:{have}]"


EMITTERS: dict[str, Emitter] = {
    **{f"onnx.{name}": _recurrent for name in _ACTIVATIONS},
    **{f"grad.{name}": _gradient for name in _ACTIVATIONS},
    GRADIENTS: _gradients,
}
"""Full name of an op -> its emitter."""

HELPERS: dict[str, tuple[str, ...]] = {
    **{f"onnx.{name}": ("in_torch_order", "recurrent") for name in _ACTIVATIONS},
    **{
        f"grad.{name}": ("in_time", "recurrent_backward", "lstm_backward", "gru_backward", "rnn_backward")
        for name in _ACTIVATIONS
    },
    GRADIENTS: ("in_torch_order", "in_time", "lstm_gradients"),
}
"""Full name of an op -> the functions of ``recurrent_helpers`` that its statement calls."""
