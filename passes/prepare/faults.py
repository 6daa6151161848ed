"""Faults of the passes that prepare a model. Codes 40.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class NoRate(Fault, code="E4001"):
    """A type of devices does not say how fast it computes in the element type of mixed precision."""

    message = "device type '{device_type}' states no rate of {dtype}"
    hint = "it states {stated}; 'dnnc topology measure' measures those of this machine, or add rates.{dtype} to the topology"
    device_type: str
    dtype: str
    stated: str
