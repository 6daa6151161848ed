"""From a function to a problem of numbers, and what an assignment costs.

``problem``: nodes with choices and values with conversions; ``graph``: who makes and reads which value. ``outline``: the nodes
and values as far as no mesh is needed; ``build``: all of it, on one mesh. ``fused``: epilogues.
"""
