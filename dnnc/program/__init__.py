"""A build as it lies on disk: what the backend writes and the runtime reads back, held to what it says of itself.

- ``build``, ``members``, ``collective``: which programs there are, what each is fed, through which channels they talk;
- ``snapshot``: the files of a build, verified once and then read as they were;
- ``transaction``: a directory that is written whole or not at all;
- ``plan_json``, ``trace``: the documents ``plan.json`` and ``trace.json``;
- ``elements``, ``external``: element types as ONNX numbers them; where a model says that its weights lie.

A stage process imports some of these and must start fast: nothing is imported here.
"""
