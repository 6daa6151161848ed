"""``dnnc run``, ``check`` and ``simulate``: what a build directory does, whether it is right, and how fast it should be."""

from __future__ import annotations


def run() -> None:
    """Run the stage programs of DIR, one process per stage."""


def check() -> None:
    """Compare the stage programs of DIR with the unsplit model."""


def simulate() -> None:
    """Print the predicted timeline of DIR."""
