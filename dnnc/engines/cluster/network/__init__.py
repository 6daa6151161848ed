"""The network between processes of several hosts.

- ``relay``: a thread with one port: who may connect, and the links by which slots and tokens of edges travel;
  ``loop``: that thread, which waits for sockets and pipes;
- ``slots``: what a message of a link must fit; ``streams``: streams of bytes between two relays;
- ``transport``: the transport of the engine between hosts, made of a relay.
"""
