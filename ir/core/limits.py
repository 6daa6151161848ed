"""Limits of inputs: dnnc refuses a larger input instead of filling the memory or taking hours.

Every limit is here, with its reason. The command can set the limits that a real model could reach (``OPTIONS``); the others are
far above any real input. Limits bound what dnnc *computes or holds*. Weights are only named, so a model with weights of any
size can be planned.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = (1 << 63) - 1
"""The largest value of an option that counts, or of a seed."""
MOST_CORES = 1024
"""Most cores of a process that an option names, each of which runs a thread."""
MOST_SECONDS = 1e6
"""The most seconds of an option, 11 days: some calls of the system count milliseconds in 31 bits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits for one input."""

    text_bytes: int = 1 << 29
    """IR text, ONNX text, workloads and splits: bytes of one file."""

    document_bytes: int = 64 << 20
    """Documents that a person edits (plans, splits, manifests): bytes of one file."""

    topology_bytes: int = 4 << 20
    """Bytes of a topology file; reading so many takes an eighth of a second. A pattern states a thousand devices in one
    line."""

    graph_bytes: int = 1 << 29
    """An ONNX file without its large tensors: protobuf reads no more than 2 GB, and a graph of a million nodes has 0.2 GB."""

    nested_graphs: int = 30
    """Graphs within graphs (the branches of an If) after functions are inlined; protobuf reads no more than 33."""

    nested_calls: int = 64
    """Model functions that call each other in a row; exporters nest as deep as the modules of a network, about 10."""

    inlined_nodes: int = 10_000
    """Nodes that the calls of model functions may expand to, where the file states fewer than a tenth of it: planning 10,000
    nodes takes about 10 s. A file that states more may expand to ten times what it states."""

    inlined_bytes: int = 256 << 20
    """Bytes of those nodes, names and attributes included; 10,000 nodes have about 2 MB."""

    inference_bytes: int = 256 << 20
    """Memory of one run of shape inference, and 32 bytes more for each byte of the graph; a graph of 10,000 nodes takes
    about 10 MB. onnx holds about 200 bytes per element of a vector of integers that it follows."""

    inference_seconds: int = 60
    """Seconds of the shape inference of a model; that of 10,000 nodes takes a few."""

    sparse_bytes: int = 64 << 20
    """Bytes of the dense form of one sparse tensor of a model."""

    kept_inputs: int = 64 << 20
    """Bytes of the arrays of ``compile --inputs`` that a build keeps a copy of."""

    folded_bytes: int = 16 << 20
    """Bytes of the inputs and the results of one operator on constants; what is larger is computed when the program runs."""

    all_folded_bytes: int = 128 << 20
    """Bytes of all constants that one round of folding makes: a thousand ops can ask for the largest each."""

    repeated_bytes: int = 2 << 30
    """Bytes of all tensors of one value that folding makes: a build writes them out, and a model of 160 bytes can ask for any
    number of gigabytes."""

    shape_bytes: int = 1 << 16
    """``folded_bytes`` for arithmetic on shapes, whose largest values are vectors of positions."""

    all_shape_bytes: int = 8 << 20
    """``all_folded_bytes`` for arithmetic on shapes."""

    topology_points: int = 50_000
    """Devices, hosts and switches of a topology: planning for 50,000 devices on one bus takes about 6 s, and a slip in a
    pattern would fill the memory."""

    topology_links: int = 1 << 17
    """Links of a topology; a slip in a mesh would fill the memory."""

    topology_ends: int = 1 << 18
    """The ends of all links together, likewise for a bus."""

    topology_names: int = 10_000_000
    """Names that the globs of a topology, and its ``devices of``, are compared with, all together."""

    route_steps: int = 2_000_000
    """Points looked at for the routes of a topology, about 10 s of search: 2,048 devices in 256 hosts take 1.6 million."""

    simulated_actions: int = 1_000_000
    """Actions of all devices that a simulation follows, about 10 s and 1 GB; a stream repeats itself long before."""

    unpacked_ratio: int = 64
    """An ``.npz`` unpacks to at most so many times its own bytes; real numbers compress to a fourth."""

    unpacked_bytes: int = 256 << 20
    """Or to so many bytes, where that is more: inputs of zeros and ones compress to a thousandth."""


OPTIONS = ("inlined_nodes", "inference_bytes", "inference_seconds", "sparse_bytes")
"""The limits that a real model could meet: ``--limit NAME=NUMBER`` sets them, written with a dash."""

LIMITS = Limits()
"""The limits that apply where the command says nothing else."""
