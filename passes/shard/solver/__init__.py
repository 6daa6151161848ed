"""The plan of one problem, with a bound: growing tables, fewer choices, and memory that binds.

``search`` puts it together. ``reduce``: choices that no cheapest plan needs go; ``descent`` betters a plan node by node.
Under a memory limit, ``mixed`` finds plans between one that is too large and one that fits, ``fronts`` bounds and plans
between two prices of memory. ``programme`` is the integer programme that certifies what tables leave open. ``tied``: plans in
which all copies of a layer are alike.
"""
