"""Functions that generated programs call for RNN, GRU and LSTM: see ``helpers``, to which this file belongs.

Shapes are those of ONNX: x ``[T, B, I]``, w ``[D, G H, I]``, r ``[D, G H, H]``, bias ``[D, 2 G H]`` (that of the products with
x, then that of the products with h), states ``[D, B, H]``, all states ``[T, D, B, H]``. ``backward``: of each of the D
directions, whether it runs from the last step to the first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def in_torch_order(kind: str, part: Tensor, *, back: bool = False) -> Tensor:
    """The gates of a weight, a bias or a gradient, along its first dimension, in torch's order, or ``back`` in ONNX's: of an
    LSTM input, forget, cell, output (ONNX: input, output, forget, cell), of a GRU reset, update, new (ONNX: update, reset,
    new). ``kind`` as of ``recurrent``."""
    order = {"lstm": (0, 2, 3, 1), "gru": (1, 0, 2)}.get(kind, ())
    gates = part.chunk(max(1, len(order)))
    return torch.cat([gates[order.index(i) if back else order[i]] for i in range(len(order))]) if order else part


def recurrent(
    kind: str,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None,
    h: Tensor | None,
    c: Tensor | None,
    backward: tuple[bool, ...],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``kind`` is the name of torch's function: ``lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``. Returns all states, the last
    state h and, of an LSTM, the last c."""
    steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
    if any(state is not None and state.shape[1] != batch for state in (h, c)):
        raise ValueError("initial states of another number of samples")  # torch ends the process
    both = backward == (False, True)
    turned = len(backward) == 1 and backward[0]
    parameters = []
    for d in range(len(backward)):
        biases = bias[d].chunk(2) if bias is not None else ()
        parameters += [in_torch_order(kind, part) for part in (w[d], r[d], *biases)]
    start = x.new_zeros(len(backward), batch, hidden) if h is None else h
    given = (start, torch.zeros_like(start) if c is None else c) if kind == "lstm" else start
    x = x.flip(0) if turned else x
    y, *last = getattr(torch, kind)(x, given, parameters, bias is not None, 1, 0.0, False, both, False)
    y = y.flip(0) if turned else y
    y = y.reshape(steps, batch, len(backward), hidden).transpose(1, 2)
    return y, last[0], last[1] if kind == "lstm" else None


def in_time(part: Tensor, backward: bool) -> Tensor:
    """The steps in the order in which a direction runs."""
    return part.flip(0) if backward else part


def recurrent_backward(
    kind: str,
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],
    x: Tensor | None,
    w: Tensor | None,
    r: Tensor,
    bias: Tensor | None,
    h: Tensor | None,
    c: Tensor | None,
    y: Tensor,
    backward: tuple[bool, ...],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Back-propagation through time. ``grads``: those of all states, of the last h and of the last c; None is zero.

    Returns the gradients of the gates before their activations, as they are added to products with x and as they are added to
    products with h (these differ for a GRU), the states before each step, and the gradients of the initial h and c. Without
    gates, the states alone tell the slopes: x, w and bias are None."""
    steps = lstm_backward if kind == "lstm" else gru_backward
    found = []
    for d, turned in enumerate(backward):
        states = in_time(y[:, d], turned)
        start = torch.zeros_like(states[0]) if h is None else h[d]
        before = torch.cat([start.unsqueeze(0), states[:-1]])
        dy = torch.zeros_like(states) if grads[0] is None else in_time(grads[0][:, d], turned)
        dh = torch.zeros_like(start) if grads[1] is None else grads[1][d]
        dc = torch.zeros_like(start) if grads[2] is None else grads[2][d]
        if kind in ("lstm", "gru") and x is not None and w is not None:
            bias_x, bias_h = (None, None) if bias is None else bias[d].chunk(2)
            memory = torch.zeros_like(start) if c is None else c[d]
            made = steps(dy, dh, dc, in_time(x, turned), w[d], bias_x, bias_h, r[d], before, memory)
        else:
            made = rnn_backward(kind, dy, dh, dc, r[d], states)
        found.append((*(in_time(part, turned).unsqueeze(1) for part in (made[0], made[1], before)), *made[2:]))
    one = len(found) == 1
    gates, gates_h, all_before = (found[0][i] if one else torch.cat([made[i] for made in found], 1) for i in range(3))
    start_h, start_c = (torch.stack([made[i] for made in found]) for i in (3, 4))
    return gates, gates_h, all_before, start_h, start_c if kind == "lstm" else None


def lstm_backward(
    dy: Tensor,
    dh: Tensor,
    dc: Tensor,
    x: Tensor,
    w: Tensor,
    one: Tensor | None,
    two: Tensor | None,
    r: Tensor,
    before: Tensor,
    c: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """c' = f c + i g, h' = o tanh(c'): one direction of ``recurrent_backward``. ``one``, ``two``: the biases."""
    width = r.shape[1]
    gates = F.linear(x, w, one if one is None or two is None else one + two)
    gates.flatten(0, 1).addmm_(before.flatten(0, 1), r.t())
    gates[..., : 3 * width].sigmoid_()
    gates[..., 3 * width :].tanh_()
    i, o, f, g = gates.chunk(4, -1)
    old = torch.empty_like(before)
    old[0] = c
    cells = i * g
    for t in range(len(cells)):
        cells[t].addcmul_(f[t], old[t])
        if t + 1 < len(cells):
            old[t + 1] = cells[t]
    bounded = cells.tanh_()
    # The gradients of gates i, f, g are those of c' times a slope each, that of o is that of h' times one: from here on
    # ``slopes`` holds these, then the gradients themselves.
    through = torch.addcmul(o, o, bounded * bounded, value=-1.0)
    forgets = f.clone()
    slopes = torch.empty_like(gates)
    to_i, to_o, to_f, to_g = slopes.chunk(4, -1)
    torch.mul(g, torch.addcmul(i, i, i, value=-1.0), out=to_i)
    torch.mul(bounded, torch.addcmul(o, o, o, value=-1.0), out=to_o)
    torch.mul(old, torch.addcmul(f, f, f, value=-1.0), out=to_f)
    torch.addcmul(i, i, g * g, value=-1.0, out=to_g)
    for t in reversed(range(len(cells))):
        dh = dy[t] + dh
        dc = torch.addcmul(dc, dh, through[t])
        to_i[t].mul_(dc)
        to_o[t].mul_(dh)
        slopes[t, :, 2 * width :].view(-1, 2, width).mul_(dc.unsqueeze(1))
        dh, dc = torch.mm(slopes[t], r), dc * forgets[t]
    return slopes, slopes, dh, dc


def lstm_gradients(
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None,
    h: Tensor | None,
    c: Tensor | None,
    backward: tuple[bool, ...],
    wanted: tuple[bool, ...],
) -> list[Tensor | None]:
    """All gradients of an LSTM of one direction by torch's own kernels, which run forward again for what they keep. ``grads``:
    those of all states, of the last h and of the last c; None is zero.

    Returns those that are ``wanted`` of x, w ``[4 H, I]``, r ``[4 H, H]``, the gates, summed over steps and samples
    ``[1, 4 H]``, and of the initial h and c; the others are None."""
    start = x.new_zeros(1, x.shape[1], r.shape[2])
    gated = {"w": w[0], "r": r[0]}
    if bias is not None:
        gated["bias_x"], gated["bias_h"] = bias[0].chunk(2)
    gated = {name: in_torch_order("lstm", part) for name, part in gated.items()}
    values = {"x": in_time(x, backward[0]), **gated, "h": start if h is None else h, "c": start if c is None else c}
    names = ("x", "w", "r", "bias_x", "h", "c")
    learned = [name for name, want in zip(names, wanted, strict=True) if want]
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_(name in learned) for name, value in values.items()}
        sequence, *parameters, first_h, first_c = leaves.values()
        made = torch.lstm(sequence, (first_h, first_c), parameters, bias is not None, 1, 0.0, True, False, False)
        of_states = in_time(grads[0][:, 0], backward[0]) if grads[0] is not None else None
        sums = []
        for one, grad in zip(made, (of_states, *grads[1:]), strict=True):
            if grad is not None:
                one.register_hook(lambda _, grad=grad: grad)  # type: ignore[no-untyped-call]
                sums.append(one.sum())
        gradients = torch.autograd.grad(sums, [leaves[name] for name in learned])  # given gradients, it imports SymPy: 33 MB
    found = dict(zip(learned, gradients, strict=True))
    for name in gated.keys() & found.keys():
        found[name] = in_torch_order("lstm", found[name], back=True)
    if "x" in found:
        found["x"] = in_time(found["x"], backward[0])
    if "bias_x" in found:
        found["bias_x"] = found["bias_x"].unsqueeze(0)
    return [found.get(name) for name in names]


def gru_backward(
    dy: Tensor,
    dh: Tensor,
    dc: Tensor,
    x: Tensor,
    w: Tensor,
    one: Tensor | None,
    two: Tensor | None,
    r: Tensor,
    before: Tensor,
    c: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """n = tanh(W x + s (R h)), h' = (1 - z) n + z h, with update z and reset s: one direction of ``recurrent_backward``."""
    width = r.shape[1]
    by_x, by_h = F.linear(x, w, one), F.linear(before, r, two)
    z, s = by_x[..., : 2 * width].add_(by_h[..., : 2 * width]).sigmoid_().chunk(2, -1)
    product = by_h[..., 2 * width :]
    n = by_x[..., 2 * width :].addcmul_(s, product).tanh_()
    # The slopes of z, s and n, the last as products with x and as those with h see it: each times the gradient of h'.
    bent = (1 - z) * torch.addcmul(torch.ones_like(n), n, n, value=-1.0)
    slopes_h = by_h  # in the place of the products
    torch.mul(bent * product, torch.addcmul(s, s, s, value=-1.0), out=slopes_h[..., width : 2 * width])
    torch.mul(before - n, torch.addcmul(z, z, z, value=-1.0), out=slopes_h[..., :width])
    torch.mul(bent, s, out=slopes_h[..., 2 * width :])
    given = torch.empty_like(before)
    for t in reversed(range(len(given))):
        dh = torch.add(dy[t], dh, out=given[t])
        slopes_h[t].view(-1, 3, width).mul_(dh.unsqueeze(1))
        dh = torch.addmm(dh * z[t], slopes_h[t], r)
    return torch.cat([slopes_h[..., : 2 * width], bent.mul_(given)], -1), slopes_h, dh, dc


def rnn_backward(
    kind: str, dy: Tensor, dh: Tensor, dc: Tensor, r: Tensor, states: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h' = tanh or relu of W x + R h: one direction of ``recurrent_backward``."""
    gates = torch.empty_like(states)
    for t in reversed(range(len(gates))):
        slope = 1 - states[t] * states[t] if kind == "rnn_tanh" else (states[t] > 0).to(states.dtype)
        torch.mul(slope, dy[t] + dh, out=gates[t])
        dh = torch.mm(gates[t], r)
    return gates, gates, dh, dc
