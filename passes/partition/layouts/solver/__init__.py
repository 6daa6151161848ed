"""The plan of one problem, with a bound: growing tables, fewer choices, and memory that binds.

``search`` puts it together. ``reduce`` drops choices that no cheapest plan needs; ``descent`` improves a plan node by node.
Under a memory limit, ``mixed`` finds plans between one that is too large and one that fits. ``programme`` is the integer
programme that proves what tables leave open.
"""
