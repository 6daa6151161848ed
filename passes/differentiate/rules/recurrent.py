"""Rules of RNN, GRU and LSTM: one kernel goes back through time, products of what it gives are the gradients of X, W and R.

The kernel ``grad.LSTM`` gives the gradient of the gates before their activations, of all steps. It computes the gates again
from X and the hidden states Y, in one product of all steps: to keep them would take five times the bytes of Y. The rest are
products over all steps at once, with costs and layouts of their own; those of weights are of phase W.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.core.types import TensorType
from passes.differentiate.site import Rule, Site

Gradients = Sequence[str | None]
GATES = {"onnx.RNN": 1, "onnx.GRU": 3, "onnx.LSTM": 4}
_KEYS = ("activations", "direction", "linear_before_reset")


def recurrent(site: Site) -> Gradients:
    """``X [T, B, I], W [D, G H, I], R [D, G H, H], bias [D, 2 G H], lengths, initial h [D, B, H], initial c, peepholes``."""
    _refuse(site)
    name, gates, dtype = site.op.name, GATES[site.op.name], site.type(0).dtype
    steps, batch, _ = site.shape(0)
    directions, rows, hidden = site.shape(2)
    if rows != gates * hidden:
        raise site.fault(f"{gates} gates of {hidden} units have {gates * hidden} rows, not {rows}")
    state = TensorType(dtype, (directions, batch, hidden))
    states = TensorType(dtype, (steps, directions, batch, hidden))
    gated = TensorType(dtype, (steps, directions, batch, rows))
    apart = name == "onnx.GRU"  # what reaches R h and its bias passes the reset gate, what reaches W x does not
    read = [site.operand(i) for i in (0, 1, 2, 3, 5, 6)]
    if gates == 1:
        read[0] = read[1] = read[3] = ""  # the slope follows from the state
    found = site.multi(
        f"grad.{name.removeprefix('onnx.')}",
        (
            *(site.gradient(i) or "" for i in range(3)),
            *read,
            site.result(0, states),
        ),
        [
            gated,
            gated if apart and (site.wants(2) or site.wants(3)) else None,
            states if site.wants(2) else None,
            state if site.wants(5) else None,
            state if site.wants(6) else None,
        ],
        **{key: site.op.get(key) for key in _KEYS if site.op.get(key) is not None},
    )
    by_x = found[0]
    by_h = found[1] if apart else by_x
    x = w = r = b = None
    if site.wants(0):
        x = _product(site, by_x, site.operand(1), "tdbg,dgi->tbi", site.shape(0))
    if site.wants(1):
        w = _product(site, by_x, site.operand(0), "tdbg,tbi->dgi", site.shape(1))
    if site.wants(2):
        r = _product(site, by_h, found[2], "tdbg,tdbh->dgh", site.shape(2))
    if site.wants(3):
        sums = [site.sum(by_x, (0, 2)), site.sum(by_h, (0, 2)) if apart else ""]
        b = site.emit("onnx.Concat", (sums[0], sums[1] or sums[0]), site.type(3), axis=1)
    return x, w, r, b, None, found[3] or None, found[4] or None, None


def _product(site: Site, one: str, other: str, equation: str, shape: tuple[int, ...]) -> str:
    """Einsum; of one direction without its dimension, as engines have it as one product of matrices."""
    alone = site.shape_of(one)[1] == 1
    result = equation.partition("->")[2]
    if alone:
        left, right = equation.partition("->")[0].split(",")
        one, other = (_without(site, name, term) for name, term in ((one, left), (other, right)))
        equation = equation.replace("d", "")
    kept = tuple(size for letter, size in zip(result, shape, strict=True) if letter != "d" or not alone)
    return site.reshape(
        site.emit("onnx.Einsum", (one, other), TensorType(site.type_of(one).dtype, kept), equation=equation), shape
    )


def _without(site: Site, name: str, term: str) -> str:
    """The tensor without the dimension ``d`` of its term, of length 1."""
    return site.reshape(name, [size for letter, size in zip(term, site.shape_of(name), strict=True) if letter != "d"])


def _refuse(site: Site) -> None:
    """Raises InvalidInput for forms that the kernel does not compute."""
    if site.present(4) or site.present(7) or site.op.get("layout", 0) or site.op.get("clip") or site.op.get("input_forget", 0):
        raise site.fault("lengths, peepholes, clipping, coupled gates and a batch that comes first have no rule")
    if site.op.name == "onnx.GRU" and not site.op.get("linear_before_reset", 0):
        raise site.fault(
            "a reset gate before the product of states has no rule", "export it with linear_before_reset = 1, as PyTorch does"
        )


RULES: dict[str, Rule] = {name: recurrent for name in GATES}
"""By the op's full name."""
