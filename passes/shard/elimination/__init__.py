"""Least sums of tables over what repeats: one search at one price of memory.

``elimination`` of variables, ``marginals``, the way back, and ``stretches`` of equal copies, made half by half. ``charges`` and
``model`` make the tables of a problem, ``structure`` says which copies meet their neighbours alike. ``folded`` is the search
that has all of these.
"""
