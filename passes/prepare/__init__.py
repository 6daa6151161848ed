"""The model before it is planned: simpler (``canonicalize``), counted (``cost``), folded and expanded (``fold``), its ops
grouped (``contract``).
"""
