"""A build directory: an engine writes it, the runtime reads it back and verifies it against its manifest.

Each file has one purpose. ``plan.ir`` is what runs: machines, stages, the program of each device, schedule and plan; runtime,
``inspect``, ``check`` and ``report`` read it. ``plan.json`` is the plan to edit and replay; a runtime reads its states alone.
``manifest.json`` has the digest of every file, the versions that wrote them, and where the model came from.

- ``build``, ``members``, ``collective``: the programs, their inputs, and the channels and collectives between them, checked;
- ``decoding``: the states of a build, and the arguments of its step and prompt programs;
- ``segments``: cuts programs at their collectives, into ONNX models;
- ``snapshot``: the files of a build, opened and verified once;
- ``transaction``: writes a directory whole or not at all;
- ``training``: a training step as ranks see it; ``elsewhere``: refuses plans for other machines;
- ``plan_json``, ``plan_reader``: ``plan.json`` written; an edited plan read and checked;
- ``trace``, ``timeline``: ``trace.json``, and the predicted timeline; ``faults``: why a build is refused.

A stage process imports some of these and must start fast: nothing is imported here.
"""
