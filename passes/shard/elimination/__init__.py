"""Least sums of tables over what repeats: one search at one price of memory.

``elimination`` of variables, and ``marginals``, the way back. ``charges`` and ``model`` make the tables of a problem,
``structure`` says which copies meet their neighbours alike. ``folded`` is the search that has all of these.
"""
