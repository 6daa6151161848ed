"""A build directory: an engine writes it, the runtime reads it back and verifies it against its manifest.

- ``build``, ``members``, ``collective``: the programs, their inputs, and the channels and collectives between them;
- ``collective_faults``: checks a collective of a manifest;
- ``snapshot``: the files of a build, opened and verified once;
- ``transaction``: writes a directory whole or not at all;
- ``training``: a training step as ranks see it; ``elsewhere``: refuses plans for other machines;
- ``plan_json``, ``plan_reader``: ``plan.json`` written; an edited plan read and checked;
- ``trace``, ``timeline``: ``trace.json``, and the predicted timeline; ``faults``: why a build is refused.

A stage process imports some of these and must start fast: nothing is imported here.
"""
