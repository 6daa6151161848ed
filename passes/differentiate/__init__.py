"""Differentiate: the pass is written on top of ``site`` and ``rules``."""
