"""Runs a build on several hosts. From the bottom up:

- ``network``: carries values and streams of bytes between processes of several hosts, encrypted;
- ``files``: sends each host the bytes of a build that its stages read, and keeps them there in a cache;
- ``agent``: starts the processes of one host for a starter elsewhere; ``agents``: launches agents;
- ``starting``: the processes of all hosts as the starter has them;
- ``nodes``: the nodes of a Ray cluster that stand for hosts, by which agents are launched.

``dnnc.engines.hosts`` reads what is stated of a cluster and what hosts answer, and has the faults. The processes of a host are
started as on one host (``dnnc.engines.onnxruntime.starter.host``), and follow the same rows: only the ends of their edges
differ.
"""
