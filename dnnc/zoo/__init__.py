"""Models that come with dnnc: real architectures with seeded random weights, made without a download."""

from dnnc.zoo.catalogue import ZooModel, build, build_model, entries
from dnnc.zoo.spec import Entry, Option

__all__ = ["Entry", "Option", "ZooModel", "build", "build_model", "entries"]
