"""A build as it lies on disk: what the backend writes and the runtime reads back, held to what it says of itself.

- ``build``, ``members``, ``collective``: which programs there are, what each is fed, through which channels they talk;
- ``snapshot``: the files of a build, verified once and then read as they were;
- ``transaction``: a directory that is written whole or not at all;
- ``training``: what ranks need to know of a training step; ``elsewhere``: what of a plan is for other machines;
- ``plan_json``, ``plan_reader``: ``plan.json`` written; an edited plan read and checked;
- ``trace``, ``timeline``: ``trace.json``, and the predicted timeline; ``faults``: why a build is refused.

A stage process imports some of these and must start fast: nothing is imported here.
"""
