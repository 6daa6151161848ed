"""Models that come with dnnc: real architectures with seeded random weights, made without a download."""

from dnnc.zoo.catalogue import Entry, Option, ZooModel, build, build_model, entries

__all__ = ["Entry", "Option", "ZooModel", "build", "build_model", "entries"]
