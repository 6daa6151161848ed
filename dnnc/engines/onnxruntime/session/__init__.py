"""ONNX Runtime sessions.

- ``session``: opens a session; ``external``: opens one whose weights are in open files; ``program``: runs one without copies;
- ``needs``: checks that this machine has the execution providers of a build; ``measure``: shapes and counts of one run;
- ``pinned``: pages of the host from and to which a GPU copies directly.
"""
