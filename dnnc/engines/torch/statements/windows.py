"""Where the windows of a convolution or pool lie: kernel, strides, dilations and pads of each spatial dimension.

``auto_pad`` and ``ceil_mode`` are worked out here from the shapes, so that what is written for torch has plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from dnnc.engines.torch.statements.call import Call, listed


@dataclass(frozen=True, slots=True)
class Windows:
    """Per spatial dimension. ``after``: pads behind the data, ``extra``: places beyond them that the last window of a pool with
    ``ceil_mode`` reaches."""

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
    def even(self) -> bool:
        """Whether pads are the same on both sides, as torch's own are."""
        return self.before == self.after and not any(self.extra)

    @property
    def small(self) -> bool:
        """Whether pads are at most half the kernel, as those of torch's pools must be."""
        return all(2 * pad <= length for pad, length in zip(self.before, self.kernel, strict=True))

    def pad(self, *, extra: bool = True) -> str:
        """The pads as ``F.pad`` lists them, from the last dimension on."""
        ends = zip(self.before, self.after, self.extra, strict=True)
        return listed(tuple(side for low, high, more in reversed(list(ends)) for side in (low, high + more * extra)))

    def numbers(self, name: str) -> str:
        """One number per dimension as Python writes it: a plain one where all are equal."""
        items: tuple[int, ...] = getattr(self, name)
        return str(items[0]) if len(set(items)) == 1 else listed(items)


def windows(call: Call, kernel: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]) -> Windows:
    """Of an op that makes spatial lengths ``after`` of ``before``."""
    kernel = tuple(map(int, kernel))
    count = len(kernel)
    strides = tuple(map(int, call.get("strides") or (1,) * count))
    dilations = tuple(map(int, call.get("dilations") or (1,) * count))
    reach = [dilation * (length - 1) + 1 for length, dilation in zip(kernel, dilations, strict=True)]
    span = [(out - 1) * stride + width for out, stride, width in zip(after, strides, reach, strict=True)]
    auto = call.get("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        total = [max(0, need - length) for need, length in zip(span, before, strict=True)]
        less = tuple(item // 2 for item in total)
        more = tuple(item - half for item, half in zip(total, less, strict=True))
        low, high = (less, more) if auto == "SAME_UPPER" else (more, less)
    else:
        pads = tuple(map(int, call.get("pads") or (0,) * (2 * count))) if auto != "VALID" else (0,) * (2 * count)
        low, high = pads[:count], pads[count:]
    extra = tuple(
        max(0, need - (length + first + last)) for need, length, first, last in zip(span, before, low, high, strict=True)
    )
    return Windows(kernel, strides, dilations, low, high, extra)


__all__ = ["Windows", "windows"]
