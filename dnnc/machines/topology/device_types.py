"""The device type that a table ``[types.NAME]`` describes, and the order in which types are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnc.machines.topology.document import Document
from dnnc.machines.topology.faults import AllReserved, LikeItself
from dnnc.machines.topology.quantities import Quantity, quantity_text
from ir.core.topology import DeviceType
from ir.text.positions import Path
from ir.verifier.machines import MOST_CORES

_TYPE = (
    "like",
    "kind",
    "cores",
    "rates",
    "scalar_rate",
    "memory_bandwidth",
    "memory",
    "reserved",
    "overhead",
    "launch",
    "handover",
    "overlap",
    "efficiency",
    "free_transfers",
    "source",
    "provider",
    "provider_options",
    "products",
)
_PRODUCTS = ("units", "unit_bandwidth", "store_bandwidth", "cache", "cache_bandwidth", "step", "split", "balance")

_SHOWN = 12
"""Names of a circle of types that its message lists."""


def device_type(name: str, doc: Document, path: Path, table: Mapping[str, Any], base: DeviceType) -> DeviceType:
    """The type of ``table``, which is at ``path``; ``base`` has the values of keys that it lacks."""
    doc.keys(path, table, _TYPE, "a device type")
    rates = dict(base.rates) | doc.rates((*path, "rates"), table)
    efficiency = dict(base.efficiency) | doc.fractions((*path, "efficiency"), table)
    provider = doc.provider((*path, "provider"), table, default=base.provider)
    options = dict(base.provider_options) if provider == base.provider else {}
    options |= doc.provider_options((*path, "provider_options"), table, provider)
    inside: Path = (*path, "products")
    products = doc.table(inside, table)
    doc.keys(inside, products, _PRODUCTS, "what products of matrices cost")
    made = DeviceType(
        name,
        doc.text((*path, "kind"), table, default=base.kind),
        tuple(sorted(rates.items())),
        doc.bandwidth((*path, "memory_bandwidth"), table, default=base.memory_bandwidth),
        doc.memory((*path, "memory"), table, default=base.memory),
        doc.seconds((*path, "overhead"), table, default=base.overhead),
        tuple(sorted(efficiency.items())),
        doc.flag((*path, "free_transfers"), table, default=base.free_transfers),
        doc.text((*path, "source"), table, default=base.source),
        doc.seconds((*path, "handover"), table, default=base.handover),
        provider,
        tuple(sorted(options.items())),
        doc.whole((*inside, "units"), products, default=base.units, least=0, most=MOST_CORES) or 0,
        doc.bandwidth((*inside, "unit_bandwidth"), products, default=base.unit_bandwidth),
        doc.bandwidth((*inside, "store_bandwidth"), products, default=base.store_bandwidth),
        doc.memory((*inside, "cache"), products, default=base.cache) or 0,
        doc.bandwidth((*inside, "cache_bandwidth"), products, default=base.cache_bandwidth),
        doc.seconds((*inside, "step"), products, default=base.step),
        doc.seconds((*inside, "split"), products, default=base.split),
        doc.fraction((*inside, "balance"), products, default=base.balance) or 0.0,
        doc.seconds((*path, "launch"), table, default=base.launch),
        doc.memory((*path, "reserved"), table, default=base.reserved) or 0,
        doc.whole((*path, "cores"), table, default=base.cores, least=1, most=MOST_CORES) or 1,
        doc.rate((*path, "scalar_rate"), table, default=base.scalar_rate),
        doc.fraction((*path, "overlap"), table, default=base.overlap),
    )
    if made.memory is not None and 0 < made.reserved >= made.memory:
        texts = (quantity_text(amount, Quantity.MEMORY) for amount in (made.reserved, made.memory))
        doc.fault((*path, "reserved"), AllReserved(name, *texts))
    return made


def unmade_likes(name: str, doc: Document, types: Mapping[str, Any], made: Mapping[str, DeviceType]) -> list[str]:
    """The type ``name`` of a file, the type that it is like, and so on, without the types in ``made`` and those of other files.
    Records a fault in ``doc`` for a circle."""
    chain: dict[str, None] = {}
    like: Any = name
    while isinstance(like, str) and like in types and like not in made:
        if like in chain:
            doc.fault(("types", like), LikeItself(like, " -> ".join([*chain, like][-_SHOWN:])))
            break
        chain[like] = None
        spec = types[like]
        like = spec.get("like") if isinstance(spec, dict) else spec
    return list(chain)
