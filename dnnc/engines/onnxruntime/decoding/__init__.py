"""Decoding: a language model over several devices, whose caches stay in the processes of its stages.

- ``wire``: the words of a step; ``wiring``: a build with these in place of its inputs and outputs;
- ``states``, ``member``: the program of a stage with states, or of a member of its mesh, in its process; ``sampling``: the next
  token of a sequence;
- ``decoder``: the starter's side: requests, the places of groups that they take, and steps in flight; ``answers``: what a
  caller holds of a request.
"""
