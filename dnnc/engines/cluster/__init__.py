"""Runs a build on several hosts.

- ``relay``: carries slots and tokens of edges, and streams of bytes, between hosts by ZeroMQ, encrypted by keys of the run;
  ``slots``: what a message about a link must fit;
- ``answers``: reads what other hosts answer, each field with its type and range;
- ``network``: the transport of the engine between hosts, made of that; shared memory stays the one inside a host;
- ``agent``: starts the processes of one host for a starter elsewhere; ``agents``: launches agents;
- ``starting``: the processes of all hosts as the starter has them;
- ``options``: which cluster, as stated; ``nodes``: which node stands for each host; ``actor``, ``ray_cluster``: a Ray cluster,
  which starts the agents; ``survey``: what its nodes have;
- ``parts``: which bytes of a build's files a host needs; ``cache``: keeps them there;
- ``faults``: what is refused, and why.

The processes of a host are started as on one host (``dnnc.engines.onnxruntime.starter.host``), and follow the same rows: only
the ends of their edges differ.
"""
