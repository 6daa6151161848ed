"""The model before it is planned: simpler (``canonicalize``), of narrow products (``autocast``), counted (``cost``), folded and
expanded (``fold``), its ops grouped (``contract``); ``faults``: what these refuse.
"""
