"""A plan as it stands in a module: written there, and read again by those who price, show or keep it.

``written``: the decisions and what they cost, with ``copies`` of ops that several stages need; ``proof``: what a bound was
proven for; ``parts``: each stage as a function with its decisions; ``layers``: what each layer and op of these costs;
``other_sizes``: the stages of a plan on the same model at other sizes.
"""
