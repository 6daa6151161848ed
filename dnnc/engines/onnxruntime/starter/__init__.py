"""The side of a run that starts the devices' processes, feeds them and collects what they compute.

- ``starting``, ``processes``: the processes, what they share, what they say and how they end;
- ``pipeline``: a run of many microbatches, with its events; ``results``: what it gives;
- ``stream``: microbatches one by one, from any thread.
"""
