"""Faults of files (``ir.system``), and of dimensions and objectives that a user names (``ir.core``). Codes E20.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class NoSuchFile(Fault, code="E2001"):
    """There is no file at this path."""

    message = "no such file; expected {expected}"
    hint = "{advice}"
    expected: str
    advice: str = ""


class SymbolicLink(Fault, code="E2002"):
    """A file of a build is a symbolic link, which is not followed there: what it names could be replaced."""

    message = "found a symbolic link, expected {expected}"
    hint = "{advice}"
    expected: str
    advice: str = ""


class FileNotOpened(Fault, code="E2003"):
    """The operating system refused to open the file."""

    message = "cannot be opened: {reason}"
    hint = "{advice}"
    reason: str
    advice: str = ""


class NotAFile(Fault, code="E2004"):
    """The path leads to a directory, a FIFO, a socket or a device. Only regular files are read, or replaced by output."""

    message = "found {found}, expected {expected}"
    hint = "{advice}"
    found: str
    expected: str
    advice: str = ""


class FileNotRead(Fault, code="E2005"):
    """The operating system refused to read the file."""

    message = "cannot be read: {reason}"
    hint = "{advice}"
    reason: str
    advice: str = ""


class FileTooLarge(Fault, code="E2006"):
    """The file has more bytes than the command reads of such a file."""

    message = "it has {found} bytes; {expected} of more than {limit} is refused"
    hint = "{advice}"
    found: int
    expected: str
    limit: int
    advice: str = ""


class NotUtf8(Fault, code="E2007"):
    """A text file is not encoded in UTF-8."""

    message = "expected {expected}, found byte {byte} at offset {offset}, which is not UTF-8 text"
    hint = "{advice}"
    expected: str
    byte: str
    offset: int
    advice: str = ""


class FileNotWritten(Fault, code="E2008"):
    """The operating system refused to make the output file."""

    message = "cannot be written: {reason}"
    hint = "name another file"
    reason: str


class DiskRefused(Fault, code="E2009"):
    """The disk takes no more bytes: it is full, read-only or broken, or a limit on the size of files is set."""

    message = "the disk refused: {reason}"
    hint = "{advice}"
    reason: str
    advice: str


class NoFunction(Fault, code="E2010"):
    """A module states machines or a plan alone, and no program."""

    message = "the module has no function, so there is no program to work on"


class UnknownObjective(Fault, code="E2011"):
    """No objective has this name."""

    message = "found '{found}', expected {expected}"
    found: str
    expected: str


class NoSuchAxis(Fault, code="E2012"):
    """``--dim INPUT.AXIS=N`` names an axis that the input does not have."""

    message = "input '{input}' has {rank} dimensions, counted from 0"
    input: str
    rank: int


class DimensionIsNumber(Fault, code="E2013"):
    """``--dim`` gives another value to a dimension that is a number in the model."""

    message = "dimension {axis} of input '{input}' is {size}"
    hint = "leave it out"
    input: str
    axis: int
    size: int


class DimensionGivenTwice(Fault, code="E2014"):
    """Two ``--dim`` options give one dimension different values."""

    message = "{other} contradicts it: both name dimension '{dimension}'"
    hint = "leave one of the two out"
    other: str
    dimension: str


class RankMismatch(Fault, code="E2015"):
    """An array has another number of dimensions than the model's input."""

    message = "input '{input}' has {found} dimensions, the model expects {expected}"
    input: str
    found: int
    expected: int


class SizeContradicted(Fault, code="E2016"):
    """A named dimension gets two sizes: from two arrays, or from an array and ``--dim``."""

    message = "dimension {axis} of input '{input}' is {size}; '{dimension}' is {other} by {source}"
    input: str
    axis: int
    size: int
    dimension: str
    other: str
    source: str


class SizeMismatch(Fault, code="E2017"):
    """A dimension of an array has another size than the model states."""

    message = "dimension {axis} of input '{input}' is {size}; the model expects {expected}"
    input: str
    axis: int
    size: int
    expected: str


class NoSuchDimension(Fault, code="E2018"):
    """``--dim`` names a dimension that the model does not have."""

    message = "the model has no dimension '{dimension}'"
    hint = "{suggestion}{alternatives}"
    dimension: str
    close: str
    """The ``--dim`` option that was probably meant; empty for none."""
    dimensions: tuple[str, ...]

    @property
    def suggestion(self) -> str:
        return f"did you mean {self.close}? " if self.close else ""

    @property
    def alternatives(self) -> str:
        known = ", ".join(self.dimensions)
        return f"it has: {known}" if known else "leave it out: every dimension of the model is a number"


class NotADimension(Fault, code="E2019"):
    """``--dim`` gives a dimension a negative or fractional value."""

    message = "dimension '{dimension}' cannot be {value}"
    hint = "give a whole number from 0 to 2^63 - 1, or another dimension's name"
    dimension: str
    value: str


class CircularDimensions(Fault, code="E2020"):
    """Several ``--dim`` options name one another in a circle, so none has a value."""

    message = "these dimensions are defined by one another: {circle}"
    hint = "give one of them a number"
    circle: str
