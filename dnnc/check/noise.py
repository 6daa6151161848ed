"""Measures how far the values of a model move if nothing but rounding changes.

When a model is cut, onnxruntime sums in another order and fuses other ops. How much that changes a value depends on the model:
almost nothing in plain 32-bit floats; after a quantisation, a whole step if a value is rounded the other way; more in a deep
net that amplifies it. So it is measured. The unsplit model, or the part of it that one stage computes, runs unchanged, then
without onnxruntime's graph optimisations, and ``PERTURBATIONS`` times with its float inputs and weights moved by one unit in
the last place, up or down at random. The *noise floor* of a value is the largest difference among these runs from the value
that the unsplit model computed.

The programs of the stages are not measured, so a fault in them cannot raise its own tolerance.
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
"""A difference may be this many noise floors, since a few runs rarely show the largest effect of rounding."""
_UNSEEN = 3 / (PERTURBATIONS + 2)
"""Number of elements that may change though none did in any run: after n trials without an event, its rate may be up to 3/n
(Hanley and Lippman-Hand, JAMA 249, 1983)."""


@dataclass(frozen=True, slots=True)
class Noise:
    """A noise floor in the two measures of ``Difference``."""

    value: float = 0.0
    typical: float = 0.0

    def __or__(self, other: Noise) -> Noise:
        return Noise(max(self.value, other.value), max(self.typical, other.typical))


QUIET = Noise()
Floors = dict[str, Noise]
Values = Mapping[str, Any]


class Meter:
    """Measures the noise floors of the values of ``reference``, over all samples, in the measures of ``compare``. Each call of
    ``more`` runs one variant of the model and raises ``floors``, so a caller stops when the floors suffice."""

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
        """``expected``: the values of the unsplit model, if ``reference`` is a part of it; None: those of its first run."""
        self.specs = tuple(ValueSpec(spec.name, spec.element) for spec in specs if spec.name in reference.present)
        self.floors: Floors = dict.fromkeys((spec.name for spec in self.specs), QUIET)
        self._feeds, self._expected, self._precisions = feeds, expected, precisions
        self._reference, self._threads = reference, threads
        self._variants = _variants(reference, optimize)

    def more(self) -> bool:
        """Runs the next variant; False if there is none. A variant that fails to run leaves the floors as they are."""
        variant = next(self._variants, None)
        if variant is None:
            return False
        model, optimize, generator = variant
        try:
            settings = Settings(threads=self._threads, optimize=optimize)
            program = Program(model, self.specs, settings, self._reference.weights)
            results = []
            for sample in self._feeds:
                inputs = {name: sample[name] for name in program.input_names}
                results.append(program.run({n: _moved(v, generator) for n, v in inputs.items()} if generator else inputs))
        except Exception:  # of onnxruntime, which may lack a kernel for a model without optimisations
            return True
        self._reference.confirm()
        self._expected = self._expected or results
        for expected, actual in zip(self._expected, results, strict=True):
            for name in self.floors.keys() & expected.keys():
                self.floors[name] |= self._noise(name, expected[name], actual[name])
        return True

    def _noise(self, name: str, expected: Any, actual: Any) -> Noise:
        precision = self._precisions.get(name, EXACT)
        difference = compare(expected, actual, precision)
        noise = Noise(difference.value, difference.typical)
        unseen = _UNSEEN / max(1, difference.elements)
        # Values compared for equality that depend on rounded floats. In a small tensor one element is too large a share.
        if difference.allowed == 0 and precision.rounded and unseen * FACTOR <= CAP:
            noise |= Noise(unseen, unseen)
        return noise


def _variants(reference: Reference, optimize: bool) -> Iterator[tuple[bytes, bool, np.random.Generator | None]]:
    """Models to run; for each, whether onnxruntime optimises it, and the generator that moves its inputs."""
    yield reference.model, optimize, None
    yield reference.model, not optimize, None
    for seed, model in enumerate(perturbed_models(reference, PERTURBATIONS)):
        yield model, optimize, np.random.Generator(np.random.Philox([1, seed]))


def _moved(value: Any, generator: np.random.Generator) -> Any:
    """The input with every float moved by one unit in the last place."""
    if not isinstance(value, Raw) or BY_NUMBER[value.element].name not in FLOATS:
        return value
    return from_user(moved(to_user(value), generator))
