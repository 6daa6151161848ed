"""What a training step adds to a model, op by op and weight by weight: the one analysis that ``partition`` and
``place`` plan by.

- Which weights train: those with the facet ``optimizer<..>``, which the pass ``training`` writes. Where no weight has one, the
  plan is made without a loss: then all floating-point weights of more than one element train, with two 32-bit states for each
  element.
- Which values have a gradient: floating-point ones that depend on such a weight. That of a value which is made of weights
  alone, such as a transposed one, is a part of its weight's: devices that hold terms of it sum these once a step.
- Seconds of an op: those of ``op_time`` forward, nothing fused, and again with the flops of both gradients and twice the bytes
  backward.
- Where a stage recomputes (attribute ``recompute`` of the entry function, from the pass ``training``), the backward pass of an
  op takes its forward seconds again, and what is saved is that of one microbatch, while its backward pass runs, beside what the
  stage received of the others.
- Seconds of an update: weight, gradient and state are read, weight and state written, at the bandwidth that ops reach, once a
  step; where gradients are scaled (their norm is clipped, or the loss has a scale), they are read once more for their norm, and
  written scaled.
- Bytes: of a weight that trains the weight, its gradient and the optimizer's state; of an op what it saves for its backward
  pass (``Cost.saved``), for each microbatch in flight. A backward pass has alive what the forward pass has, or, where several
  microbatches add to one gradient, the gradients of its own, whichever is more (``waiting_bytes``).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from ir.core.facets import SYNCS, BackwardTime, Cost, OptimizerState, Time, sync_of
from ir.core.module import Func, Module, Resource, State
from ir.core.ops import Op
from ir.core.topology import DeviceType
from ir.core.types import TensorType, Type, type_bytes
from ir.ops import operators
from ir.ops.grads import DETACH
from passes.costs.op_time import bandwidth_of, dtype_of, passes_seconds
from passes.costs.views import bases
from passes.graph.graph import reads
from passes.graph.sizes import sized_results

RECOMPUTE = "recompute"
"""The attribute of an entry function that says what runs again for the backward pass: ``stage``."""
RECOMPUTES = ("none", "stage")
LOSS = "loss"
"""The attribute of an entry function that says which loss it returns, and the names of the inputs that are of it."""
CROSS_ENTROPY = "cross-entropy"
IGNORED = -100
"""The label that does not count, as in torch."""
STATES = 2
"""32-bit numbers that an optimizer keeps of each element where nothing says which it is: Adam's."""
ASYNCHRONOUS = ("pipedream", "2bw")
"""Orders of work without a flush behind each step."""
_RECURRENT = ("onnx.GRU", "onnx.LSTM", "onnx.RNN")
"""They keep their states, which are the first result, beside operands."""


@dataclass(frozen=True, slots=True)
class Learning:
    """``state[weight]``: bytes of optimizer state of each weight that trains; ``values``: those that have a gradient;
    ``update``: the bytes that the update of a weight reads and writes; ``sizes``: bytes of every value of floats; ``base``: the
    value or weight whose memory a view is (``views``)."""

    state: Mapping[str, int]
    values: frozenset[str]
    update: Mapping[str, int]
    sizes: Mapping[str, int]
    base: Mapping[str, str] = field(default_factory=dict)

    def held(self, name: str, size: int, gradients: int = 1) -> int:
        """Bytes that a device holds of a weight of so many: itself and, where it trains, its gradients and state."""
        return size + (gradients * size + self.state[name] if name in self.state else 0)


def learning(module: Module) -> Learning:
    """Of the entry function."""
    resources = module.resources
    state = trained(resources)
    scaled = scales(module)
    update = {name: updated_bytes(type_bytes(resources[name].type) or 0, size, scaled=scaled) for name, size in state.items()}
    func = module.entry
    values = [*func.args, *(value for op in func.ops for value in sized_results(op))]
    sizes = {value.name: type_bytes(value.type) or 0 for value in values if is_float(value.type)}
    return Learning(state, frozenset(_gradients(func, state)), update, sizes, bases(func.ops))


def trained(resources: Mapping[str, Resource]) -> dict[str, int]:
    """The weights that train, with the bytes of their optimizer's state, in order."""
    marked = {name: facet.size for name, r in resources.items() for facet in r.facets if isinstance(facet, OptimizerState)}
    if marked:
        return marked
    floats = {name: r.type for name, r in resources.items() if is_float(r.type) and not isinstance(r.data, State)}
    return {name: STATES * 4 * (t.elements or 0) for name, t in floats.items() if isinstance(t, TensorType) and t.elements != 1}


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Which loss the entry function of a training step returns. ``kind``: ``cross-entropy``, ``mse`` or ``output``; empty of a
    function that says nothing of its loss. Of a cross entropy ``labels`` is the input that holds them, and ``counted`` the one
    that tells how many count in a microbatch, as the mean over those of the step; else both are empty."""

    kind: str = ""
    labels: str = ""
    counted: str = ""

    @classmethod
    def of(cls, func: Func) -> StepLoss:
        names = dict(func.attributes)[LOSS].value if LOSS in dict(func.attributes) else None
        if not isinstance(names, tuple) or not names:
            return cls()
        kind, *inputs = map(str, names)
        return cls(kind, *inputs) if kind == CROSS_ENTROPY and len(inputs) == 2 else cls(kind)


def of_weights(func: Func, weights: Container[str]) -> frozenset[str]:
    """Floating-point values that depend on such weights and, beside them, on resources alone."""
    found: set[str] = set()
    known: set[str] = set()  # with those that depend on no such weight
    for op in func.ops:
        names = reads(op)
        if all(name[:1] == "@" or name in known for name in names):
            known.update(value.name for value in op.results)
            if any(name in found or name in weights for name in names):
                found.update(value.name for value in op.results if is_float(value.type))
    return frozenset(found)


def avoids_sums(module: Module) -> bool:
    """Whether ``sync`` asks for gradients that members agree on otherwise than by all-reduce: no bound may count these sums."""
    return any(sync_of(resource.facets).method not in SYNCS[:2] for resource in module.of_type(Resource))


def made_last(func: Func) -> frozenset[str]:
    """What is read before any op that has a gradient, or by the first one. The backward pass ends when it has made the
    gradients of these: sums of them have nothing left to travel beside."""
    found: set[str] = set()
    for op in func.ops:
        found.update(reads(op))
        cost = op.facet(Cost, Cost())
        if op.facet(BackwardTime) is not None or cost.input_grad + cost.weight_grad > 0:
            break
    return frozenset(found)


def runs_first(func: Func, weights: Container[str]) -> frozenset[str]:
    """Ids of the ops whose backward passes end before the gradient of any of ``weights`` is made, or with the first: no sum of
    these can travel beside them."""
    found: set[str] = set()
    for op in reversed(func.ops):
        found.add(op.id)
        if any(name in weights for name in reads(op)):
            break
    return frozenset(found)


def samples_of(func: Func) -> int:
    """Samples of a microbatch: the first dimension of the first input that has a known one; 1 where none has."""
    shapes = (arg.type.shape for arg in func.args if isinstance(arg.type, TensorType))
    return next((shape[0] for shape in shapes if shape and isinstance(shape[0], int)), 1)


def is_float(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.is_float


def updated_bytes(weight: int, state: int, *, scaled: bool = False) -> int:
    """What the update of a weight of so many bytes moves: weight, gradient and state in, weight and state out. ``scaled``: the
    gradient is also read for its norm, and written scaled."""
    return (6 if scaled else 3) * weight + 2 * state


def scales(module: Module) -> bool:
    """Whether a step scales its gradients: it clips their norm, or its loss has a scale."""
    return any(key in ("clip_norm", "loss_scale") for key, _ in module.entry.attributes)


def recomputes(module: Module) -> bool:
    """Whether stages run their forward passes again in place of keeping what they made."""
    return any(key == RECOMPUTE and attribute.value == "stage" for key, attribute in module.entry.attributes)


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of an op of a microbatch. ``again``: those of ``backward`` in which the forward pass runs again, before any
    gradient is made. ``beside``: seconds of sums of gradients that can travel beside the others (``DeviceType.beside``)."""

    forward: float
    backward: float
    again: float = 0.0
    beside: float = 0.0

    @property
    def both(self) -> float:
        return self.forward + self.backward


def learning_seconds(module: Module, device_type: DeviceType) -> list[Passes]:
    """Of each op of the entry function, in order."""
    again = recomputes(module)
    known: dict[object, Passes] = {}  # ops that are alike share their facets
    found = []
    for op in module.entry.ops:
        alike = id(op.facet(Cost)), id(op.facet(Time)), dtype_of(op)
        if alike not in known:
            cost = op.facet(Cost, Cost())
            forward, backward = passes_seconds(op, device_type, cost.input_grad + cost.weight_grad)
            twice = forward if again and backward else 0.0
            known[alike] = Passes(forward, backward + twice, twice, device_type.beside * backward)
        found.append(known[alike])
    return found


def saved_values(op: Op, found: Learning) -> dict[str, int]:
    """What an op keeps of a microbatch for its backward pass, bytes by value; nothing where no gradient goes through it. A
    value that several ops keep is kept once; what is no operand or result, such as a mask, goes by the op's own name. Of a view
    it keeps the memory that this lies in, and of a view of a weight nothing, for the weight is held."""
    kept = dict[str, int]()
    for name, size in _saved_by(op, found).items():
        base = found.base.get(name, name)
        if base[:1] != "@":
            kept[base] = found.sizes.get(base, size)
    return kept


def _saved_by(op: Op, found: Learning) -> dict[str, int]:
    """The same by the values that the op reads or makes."""
    cost = op.facet(Cost)
    if cost is None or not cost.saved or not any(name in found.values or name in found.state for name in op.operands):
        return {}
    if operators.has(op, operators.KEEPS_RESULT) and found.sizes.get(op.results[0].name) == cost.saved:
        return {op.results[0].name: cost.saved}
    if (names := _kept_by(op, found)) is not None:
        return {name: found.sizes[name] for name in names if name in found.sizes}
    read = {name: found.sizes[name] for name in op.operands if name in found.sizes}
    left = cost.saved - sum(read.values())
    if read and left >= 0:
        own = op.results[0].name if op.name in _RECURRENT and found.sizes.get(op.results[0].name) == left else f"{op.id} saved"
        return {**read, own: left} if left else read
    factors = {name: read[name] for name in op.operands[:2] if name in read}  # of a product, whose bias is not kept
    if sum(factors.values()) == cost.saved:
        return factors
    learned = {name for name in op.operands if name in found.values or name in found.state}
    same = [name for name, size in read.items() if size == cost.saved]  # one of several operands
    one = next((name for name in same if learned - {name}), same[0] if same else f"{op.id} saved")
    return {one: cost.saved}


def _kept_by(op: Op, found: Learning) -> tuple[str, ...] | None:
    """The values that an op keeps where its facts do not tell which: a quotient its divisor, a power its base, and the exponent
    where the base learns; both the result where the second operand learns."""
    if op.name not in ("onnx.Div", "onnx.Pow"):
        return None
    first, second = (name in found.values or name in found.state for name in op.operands)
    own = (op.results[0].name,) if second else ()
    if op.name == "onnx.Div":
        return (op.operands[1], *own)
    return (op.operands[0], *op.operands[1 : 1 + first], *own)


def update_seconds(nbytes: float, device_type: DeviceType) -> float:
    return nbytes / bandwidth_of(device_type) if device_type.memory_bandwidth else 0.0


def step_text(module: Module, microbatches: int) -> str:
    """What the seconds of a training step depend on beside the program and the machines, as text for a digest."""
    state = " ".join(f"{name}:{size}" for name, size in sorted(trained(module.resources).items()))
    again = (" again" if recomputes(module) else "") + (" clipped" if scales(module) else "")
    return f" training of {microbatches}{again}: {state}"


@dataclass(frozen=True, slots=True)
class InFlight:
    """What a device of each stage has at most in a training step: ``microbatches`` before the end of their backward pass, and
    old ``versions`` of weights beside the newest. ``replicas``: how many devices share the stage; ``step``: microbatches of
    a step."""

    microbatches: tuple[int, ...]
    versions: tuple[int, ...]
    replicas: tuple[int, ...]
    step: int

    @classmethod
    def of(cls, microbatches: int, replicas: Sequence[int], family: str = "") -> InFlight:
        """Of steps of so many ``microbatches`` in stages of so many ``replicas``, ordered as ``family`` does
        (``passes.timeline.families``); of an order that follows from seconds and memory, and of stages that share
        devices, as 1F1B: one for each device of the stages from it on, shared among its replicas."""
        every, ahead = sum(replicas), [sum(replicas[stage:]) for stage in range(len(replicas))]
        shared = tuple(replicas), microbatches
        if family == ASYNCHRONOUS[0]:
            return cls(tuple(ahead), tuple(-(-(count - 1) // microbatches) for count in ahead), *shared)
        if family in ASYNCHRONOUS:
            return cls(tuple(ahead), (1,) * len(ahead), *shared)
        most = {"gpipe": microbatches, "zb-h1": every, "zb-h2": 2 * every - 1}
        held = (min(microbatches, most.get(family, count)) for count in ahead)
        return cls(tuple(-(-count // own) for count, own in zip(held, replicas, strict=True)), (0,) * len(ahead), *shared)


def step_seconds(period: float, microbatches: int, replicas: Sequence[int], *, flush: bool = True) -> float:
    """Seconds of a training step in stages of so many replicas, each device of which is busy ``period`` seconds per microbatch
    at most: the pipeline fills, runs and drains. Without a ``flush``, the seconds from a step to the next: it stays full."""
    return (sum(replicas) + max(periods_behind(microbatches, r) for r in replicas) if flush else microbatches) * period


def periods_behind(microbatches: int, replicas: int) -> int:
    """Periods that a stage goes on for behind its first microbatch: of r replicas, each of which takes r periods for one, the
    first gets every r-th."""
    return replicas * (-(-microbatches // replicas) - 1)


def _gradients(func: Func, state: Mapping[str, int]) -> set[str]:
    found: set[str] = set()
    for op in func.ops:
        if op.name != DETACH and any(name in found or name in state for name in reads(op)):
            found.update(value.name for value in op.results if is_float(value.type))
    return found - detached(func)


def detached(func: Func) -> frozenset[str]:
    """Values that have no gradient because a ``grad.detach`` stands on every way from them to a result."""
    if not any(op.name == DETACH for op in func.ops):
        return frozenset()
    reached = {value.name for value in func.results}
    for op in reversed(func.ops):
        if op.name != DETACH and any(value.name in reached for value in op.results):
            reached.update(reads(op))
    return frozenset(value.name for op in func.ops for value in op.results if value.name not in reached)
