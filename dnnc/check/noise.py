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

from dnnc.check.compare import CAP, EXACT, Precision, compare
from dnnc.check.perturb import FLOATS, moved, perturbed_models
from dnnc.check.reference import Reference
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.session.session import Settings
from dnnc.engines.onnxruntime.transport.codec import Raw, from_user, to_user
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.onnx.elements import BY_NUMBER

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


class Meter:
    """Measures the noise floors of the values that ``reference`` has, one variant of it after the other: ``floors`` grows with
    every call of ``more``, so whoever needs no more stops. Over all samples, in the measures of ``compare``."""

    def __init__(
        self,
        reference: Reference,
        specs: Sequence[ValueSpec],
        feeds: Sequence[Values],
        expected: Sequence[Values] | None,
        precisions: Mapping[str, Precision],
        *,
        threads: int,
        optimize: bool,
    ) -> None:
        """``expected``: what the unsplit model gave, where ``reference`` is a part of it; without, its own plain run."""
        self.specs = tuple(ValueSpec(spec.name, spec.element) for spec in specs if spec.name in reference.present)
        self.floors: Floors = dict.fromkeys((spec.name for spec in self.specs), QUIET)
        self._feeds, self._expected, self._precisions = feeds, expected, precisions
        self._reference, self._threads = reference, threads
        self._variants = _variants(reference, optimize)

    def more(self) -> bool:
        """Runs the next variant; False when there is none. One that does not run says nothing."""
        variant = next(self._variants, None)
        if variant is None:
            return False
        model, optimize, generator = variant
        try:
            settings = Settings(threads=self._threads, optimize=optimize)
            program = Program(model, self.specs, settings, self._reference.weights)
            results = []
            for sample in self._feeds:
                given = {name: sample[name] for name in program.input_names}
                results.append(program.run({n: _moved(v, generator) for n, v in given.items()} if generator else given))
        except Exception:  # whatever onnxruntime raises; it may lack a kernel for a model without optimisations
            return True
        self._reference.confirm()
        self._expected = self._expected or results
        for wanted, found in zip(self._expected, results, strict=True):
            for name in self.floors.keys() & wanted.keys():
                self.floors[name] |= self._noise(name, wanted[name], found[name])
        return True

    def _noise(self, name: str, wanted: Any, found: Any) -> Noise:
        precision = self._precisions.get(name, EXACT)
        difference = compare(wanted, found, precision)
        noise = Noise(difference.value, difference.typical)
        unseen = _UNSEEN / max(1, difference.elements)
        # What is right or wrong by how floats were rounded; of a few elements, one is too many.
        if difference.allowed == 0 and precision.rounded and unseen * FACTOR <= CAP:
            noise |= Noise(unseen, unseen)
        return noise


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


__all__ = ["FACTOR", "PERTURBATIONS", "QUIET", "Meter", "Noise"]
