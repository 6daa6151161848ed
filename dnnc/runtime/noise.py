"""What rounding does to one model: how far its values move while nothing but rounding changes.

onnxruntime sums in another order, and fuses other ops, when a model is cut. How much that changes a value depends on the model:
in plain 32-bit floats next to nothing; behind a quantisation one rounding the other way is a whole step, and a deep net that
amplifies makes more of it. So it is measured. The unsplit model, or the part of it that one stage computes, runs as it is,
without onnxruntime's graph optimisations, and ``PERTURBATIONS`` times with its float inputs and weights moved by one unit in
the last place, up or down at random. The largest difference of a value from what the unsplit model gave is its *noise floor*.

The stages' own programs take no part in it: a fault in them cannot raise its own tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnc.backend.perturb import FLOATS, moved, perturbed_models
from dnnc.backend.reference import Reference
from dnnc.runtime.codec import Raw, from_user, to_user
from dnnc.runtime.compare import CAP, EXACT, Precision, compare
from dnnc.runtime.edges import ValueSpec
from dnnc.runtime.elements import BY_NUMBER
from dnnc.runtime.program import Program

PERTURBATIONS = 4
FACTOR = 3.0
"""How many noise floors a difference may have: a few runs see little of the tail of what rounding does."""
_UNSEEN = 3 / (PERTURBATIONS + 2)
"""Elements that may change though none did in any run: n trials without an event leave rates up to 3/n (Hanley and
Lippman-Hand, JAMA 249, 1983)."""


@dataclass(frozen=True, slots=True)
class Noise:
    """A noise floor, in both measures of ``Difference``."""

    value: float = 0.0
    typical: float = 0.0

    def __or__(self, other: Noise) -> Noise:
        return Noise(max(self.value, other.value), max(self.typical, other.typical))


QUIET = Noise()
Floors = dict[str, Noise]
Values = Mapping[str, Any]


def floors(
    reference: Reference,
    specs: Sequence[ValueSpec],
    feeds: Sequence[Values],
    expected: Sequence[Values] | None,
    precisions: Mapping[str, Precision],
    *,
    threads: int,
    optimize: bool,
) -> Floors:
    """The noise floor of each value that ``reference`` has, in the measure of ``compare``; over all samples. ``expected``: what
    the unsplit model gave of them, for a part of it; without, the plain run. A variant that does not run says nothing."""
    present = tuple(ValueSpec(spec.name, spec.element) for spec in specs if spec.name in reference.present)
    worst: Floors = dict.fromkeys((spec.name for spec in present), QUIET)
    right = expected
    for model, level, generator in _variants(reference, optimize):
        try:
            program = Program(model, present, threads=threads, optimize=level, folder=reference.folder)
            results = []
            for sample in feeds:
                given = {name: sample[name] for name in program.input_names}
                results.append(program.run({n: _moved(v, generator) for n, v in given.items()} if generator else given))
        except Exception:  # whatever onnxruntime raises; a model without optimisations may lack a kernel
            continue
        right = right or results
        for wanted, found in zip(right, results, strict=True):
            for name in worst:
                if name in wanted:
                    precision = precisions.get(name, EXACT)
                    difference = compare(wanted[name], found[name], precision)
                    worst[name] |= Noise(difference.value, difference.typical)
                    unseen = _UNSEEN / max(1, difference.elements)
                    # What is right or wrong by how floats were rounded; of a few elements, one is too many.
                    if difference.allowed == 0 and precision.rounded and unseen * FACTOR <= CAP:
                        worst[name] |= Noise(unseen, unseen)
    return worst


def _variants(reference: Reference, optimize: bool) -> Iterator[tuple[bytes, bool, np.random.Generator | None]]:
    """Models to run, each with whether onnxruntime optimises it and what draws how its inputs move."""
    yield reference.model, optimize, None
    yield reference.model, not optimize, None
    for seed, model in enumerate(perturbed_models(reference, PERTURBATIONS)):
        yield model, optimize, np.random.Generator(np.random.Philox([1, seed]))


def _moved(value: Any, generator: np.random.Generator) -> Any:
    """An input with every float moved by one unit in the last place."""
    if not isinstance(value, Raw) or BY_NUMBER[value.element].name not in FLOATS:
        return value
    return from_user(moved(to_user(value), generator))


__all__ = ["FACTOR", "PERTURBATIONS", "QUIET", "Floors", "Noise", "floors"]
