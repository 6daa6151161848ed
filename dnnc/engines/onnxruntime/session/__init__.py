"""A model in an ONNX Runtime session.

- ``session``: how one is opened; ``external``: with files that are open already; ``program``: fed and read without copies;
- ``needs``: what devices need to run here; ``measure``: one run of an unsplit model.
"""
