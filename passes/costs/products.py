"""Seconds of a product of matrices on a device type that computes it in tiles, a *unit* (a streaming multiprocessor) a tile.

One efficiency for all sizes errs where sizes are odd: few rows leave units idle, the last *wave* of tiles is not full, a unit
has a pace of its own along k and writes a tile before it begins the next, and a long product of few tiles is cut along k and
added up afterwards. Of b products [m, k] x [k, n]:

    seconds = overhead + (arithmetic^4 + memory^4)^(1/4)
    arithmetic = least over tiles (tm, tn) and cuts s of   waves * (max(2 tm tn k' / r, (tm + tn) k' e / l, step k' / 32)
                                                                    + tm tn e / w) + added
    tiles = b ceil(m / tm) ceil(n / tn) s,  waves = ceil(tiles / units) - balance (ceil(tiles / units) - max(1, tiles / units))
    k' = k / s, in steps of 32;  added = 0 for s = 1, else split + 2 s b m n 4 / cache_bandwidth
    memory = warm / cache_bandwidth + (bytes - warm) / (memory_bandwidth f)
    warm = (bytes - cold) / (1 + (bytes / cache)^16)

r, l and w are a unit's part of ``rate * efficiency``, ``unit_bandwidth`` and ``store_bandwidth``, e the bytes of an element, f
the efficiency for ``memory``. Cold are weights: until they are read again, all others of the model pass through the cache. The
library picks the tile; which ones there are is fixed here. The other names are fields of ``DeviceType``; fitted and judged by
``python -m tests.bench.referees``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ir.core.facets import Cost
from ir.core.ops import Op
from ir.core.topology import DeviceType
from ir.core.types import TensorType

TILES = ((16, 32), (16, 64), (16, 128), (32, 64), (64, 32), (64, 64), (64, 128), (128, 64), (128, 128), (256, 128), (128, 256),
         (256, 256))  # fmt: skip
CUTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)

MEMORY = "memory"
"""The key of ``DeviceType.efficiency`` with the fraction of ``memory_bandwidth`` that ops reach."""
BITS = "-i8"
"""Behind the class of a product or convolution of 8-bit operands, or of what was dequantised from them: it runs at the rate of
``i8`` whatever it results in."""
BLOCKS = "-blocks"
"""Behind the class of a product by a weight of a few bits whose blocks have a scale each, by rows that are rounded to 8 bits.
Its efficiency is of the rate of ``f32``, not of ``i8``: each block is scaled in floats."""


@dataclass(frozen=True, slots=True)
class Product:
    """``batch`` products [m, k] x [k, n] of elements of ``width`` bytes, which move so many ``bytes`` in all, of which ``cold``
    are in no cache."""

    batch: int
    m: int
    n: int
    k: int
    bytes: int
    width: int
    cold: int = 0

    @property
    def gradients(self) -> tuple[Product, ...]:
        """Of the first operand, and of the second."""
        rest = self.bytes, self.width, self.cold
        return Product(self.batch, self.m, self.k, self.n, *rest), Product(self.batch, self.k, self.n, self.m, *rest)


def product_of(op: Op, cost: Cost) -> Product | None:
    """The product that an op is, or does; None for another op. ``cost``: its facts, of a shard those of the shard, whose shape
    is that of the op's first result. A matrix of weights is met by all rows at once; two activations are multiplied batch by
    batch."""
    type_ = op.results[0].type if op.results else None
    kind = cost.kind.removesuffix(BITS).removesuffix(BLOCKS)
    if kind not in ("matmul", "conv") or not isinstance(type_, TensorType) or type_.shape is None:
        return None
    shape = [dim for dim in type_.shape if isinstance(dim, int)]
    elements = math.prod(shape)
    if len(shape) < max(1, len(type_.shape)) or not elements or not cost.flops:
        return None
    if kind == "conv":
        batch, n = 1, shape[1] if len(shape) > 1 else 1
    else:
        batch, n = (1 if cost.weight else math.prod(shape[:-2])), shape[-1]
    k = max(1, round(cost.flops / (2 * elements)))
    width = max(1, round((type_.nbytes or 0) / elements))
    return Product(batch, elements // (batch * n), n, k, cost.read + cost.write, width, cost.weight)


@lru_cache(maxsize=1 << 14)
def product_seconds(product: Product, device_type: DeviceType, rate: float) -> float:
    """``rate``: flop/s that products of such elements reach at best."""
    arithmetic = min(_tiled(product, device_type, rate, tm, tn, cut) for tm, tn in TILES for cut in CUTS)
    memory = memory_seconds(product.bytes, product.cold, device_type)
    most, other = max(arithmetic, memory), min(arithmetic, memory)
    return device_type.overhead + most * math.sqrt(math.sqrt(1 + (other / most) ** 4))


def _tiled(product: Product, device_type: DeviceType, rate: float, tm: int, tn: int, cut: int) -> float:
    units = device_type.units
    k = math.ceil(product.k / cut / 32) * 32
    tiles = product.batch * math.ceil(product.m / tm) * math.ceil(product.n / tn) * cut
    whole, exact = math.ceil(tiles / units), max(1.0, tiles / units)
    waves = whole - device_type.balance * (whole - exact)
    loads = (tm + tn) * k * product.width * units / device_type.unit_bandwidth if device_type.unit_bandwidth else 0.0
    stores = tm * tn * product.width * units / device_type.store_bandwidth if device_type.store_bandwidth else 0.0
    seconds = waves * (max(2 * tm * tn * k * units / rate, loads, k / 32 * device_type.step) + stores)
    if cut > 1:
        sums = 2 * cut * product.batch * product.m * product.n * 4
        seconds += device_type.split + (sums / device_type.cache_bandwidth if device_type.cache_bandwidth else 0.0)
    return seconds


def memory_seconds(size: int, cold: int, device_type: DeviceType) -> float:
    """Seconds in which ``size`` bytes are moved, from the cache where they fit, but for ``cold`` bytes."""
    reached = device_type.memory_bandwidth * dict(device_type.efficiency).get(MEMORY, 1.0)
    if not size or not reached:
        return 0.0
    if not device_type.cache or not device_type.cache_bandwidth:
        return size / reached
    warm = (size - cold) * hit(size, device_type.cache)
    return warm / device_type.cache_bandwidth + (size - warm) / reached


def hit(between: float, cache: float) -> float:
    """The part of what is read again, after so many bytes, that a cache still holds."""
    return 1 / (1 + (between / cache) ** 16) if between < 1e6 * cache else 0.0
