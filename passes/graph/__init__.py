"""A function as a graph, and what is read off it and its types alone: no machines, no seconds.

- ``graph``: what an op reads, what is needed, topological order, names replaced, the stages of ops and the tensors between
  them;
- ``folding``: what repeats in a function, written once as functions and calls, and back;
- ``positional``: what a decoder computes from positions, in each stage that needs it; ``serving``: its groups of sequences, and
  the replicas that serve them;
- ``sizes``: bytes of values; ``symbols``: where passes put the symbols that they write; ``digest``: what a bound is a bound of.
"""
