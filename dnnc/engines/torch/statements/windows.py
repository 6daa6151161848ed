"""The windows of a convolution or pool: kernel, strides, dilations and pads per spatial dimension.

``auto_pad`` and ``ceil_mode`` are resolved here to numbers, from the shapes of operand and result.
"""

from __future__ import annotations

from dataclasses import dataclass

from dnnc.engines.torch.statements.call import Call, listed


@dataclass(frozen=True, slots=True)
class Windows:
    """All fields have one number per spatial dimension. ``before``, ``after``: pads at the two ends; ``extra``: positions past
    ``after`` that the last window of a pool with ``ceil_mode`` covers."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    extra: tuple[int, ...]

    @property
    def spatial(self) -> int:
        return len(self.kernel)

    @property
    def symmetric(self) -> bool:
        """Whether pads are the same at both ends, the only form that torch's ``padding`` argument has."""
        return self.before == self.after and not any(self.extra)

    @property
    def at_most_half(self) -> bool:
        """Whether pads are at most half the kernel, as torch's pools require."""
        return all(2 * pad <= length for pad, length in zip(self.before, self.kernel, strict=True))

    def pad(self, *, extra: bool = True) -> str:
        """The pads as ``F.pad`` takes them, last dimension first; with ``extra``, those positions are padded too."""
        ends = zip(self.before, self.after, self.extra, strict=True)
        return listed(tuple(side for low, high, more in reversed(list(ends)) for side in (low, high + more * extra)))

    def numbers(self, name: str) -> str:
        """Field ``name`` as Python text: one number where all dimensions have the same, else a tuple."""
        items: tuple[int, ...] = getattr(self, name)
        return str(items[0]) if len(set(items)) == 1 else listed(items)


def windows(call: Call, kernel: tuple[int, ...], lengths: tuple[int, ...], output_lengths: tuple[int, ...]) -> Windows:
    """The windows of an op that maps spatial ``lengths`` to ``output_lengths``."""
    kernel = tuple(map(int, kernel))
    count = len(kernel)
    strides = tuple(map(int, call.get("strides") or (1,) * count))
    dilations = tuple(map(int, call.get("dilations") or (1,) * count))
    widths = [dilation * (length - 1) + 1 for length, dilation in zip(kernel, dilations, strict=True)]
    spans = [(out - 1) * stride + width for out, stride, width in zip(output_lengths, strides, widths, strict=True)]
    auto = call.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, span - length) for span, length in zip(spans, lengths, strict=True)]
        smaller = tuple(total // 2 for total in totals)
        larger = tuple(total - half for total, half in zip(totals, smaller, strict=True))
        before, after = (smaller, larger) if auto == "SAME_UPPER" else (larger, smaller)
    else:
        pads = tuple(map(int, call.get("pads") or (0,) * (2 * count))) if auto != "VALID" else (0,) * (2 * count)
        before, after = pads[:count], pads[count:]
    extra = tuple(
        max(0, span - (length + low + high)) for span, length, low, high in zip(spans, lengths, before, after, strict=True)
    )
    return Windows(kernel, strides, dilations, before, after, extra)
