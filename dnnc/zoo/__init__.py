"""Models that come with dnnc: published architectures with seeded random weights; nothing is downloaded."""

from dnnc.zoo.catalogue import ZooModel, build, build_model, entries, require_options
from dnnc.zoo.spec import Entry, Option

__all__ = ["Entry", "Option", "ZooModel", "build", "build_model", "entries", "require_options"]
