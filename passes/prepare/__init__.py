"""The model before it is planned: simpler (``canonicalize``), of narrow products (``autocast``), counted (``cost``), folded and
expanded (``fold``); ``faults``: what these refuse.
"""
