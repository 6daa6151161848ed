"""What the compiled walk over ideals (``walk_kernels``) and the dynamic programme over them (``kernels``) read and fill in, as
tuples of arrays.

They stand apart from the kernels so that naming them compiles nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Graph(NamedTuple):
    """Nodes v and tensors h: ``succ[succ_ptr[v]:succ_ptr[v + 1]]`` are the successors of v, once per edge; ``below[v]`` is the
    weight of v and of all that depends on it; v makes or reads ``on[on_ptr[v]:on_ptr[v + 1]]``; ``pins[h]`` nodes make or read
    h. ``node_columns[n, C]``: what is summed over the nodes of an ideal, first the weight; ``tensor_columns[H, B]``: what is
    summed over the tensors that it cuts (some of their nodes are in it and some are not)."""

    succ_ptr: Any
    succ: Any
    below: Any
    on_ptr: Any
    on: Any
    pins: Any
    node_columns: Any
    tensor_columns: Any


class Limits(NamedTuple):
    """``low``, ``high``: windows of weight, ascending and disjoint. ``band``: an ideal may hold node v only if its least
    missing node is >= v - band (>= n: no limit). At most ``max_visits`` ideals are walked over, and ``max_words`` 8-byte
    words held, at ``words_per_ideal`` each besides their cuts."""

    low: Any
    high: Any
    band: int
    max_visits: int
    max_words: int
    words_per_ideal: int


class Here(NamedTuple):
    """One ideal: bit sets of its nodes (``inside``), of nodes all of whose predecessors are in it (``ready``) and of tensors
    that it cuts (``opened``); ``missing[n]``: predecessors of each node that are not in it; ``held[H]``: nodes of each tensor
    that are."""

    inside: Any
    ready: Any
    opened: Any
    missing: Any
    held: Any


class Stored(NamedTuple):
    """Room for ideals: ``bits[N, W]``, ``sums[N, C]`` and ``marks[N, B]`` of the columns, and the tensors that ideal i cuts,
    ``cut[cut_ptr[i]:cut_ptr[i + 1]]``."""

    bits: Any
    sums: Any
    marks: Any
    cut_ptr: Any
    cut: Any


class Ideals(NamedTuple):
    """A family sorted so that J comes before I whenever J is inside I; its first member is empty, its last is full. Per ideal:
    ``bits[N, W]``, ``weight[N]``, ``compute[N, G * T]`` (sums over the kind's supported nodes, side by side), ``lacking[N, T]``
    (how many are not), ``boundary[N, L * P]`` (transfers of its whole cut per lane and port class), ``busy[N, T]``, ``moving[N,
    T]`` (seconds and transfers of the whole cut, as a load adds them up; unused where it does not), ``bytes_before`` (what its
    cut takes in buffers), ``own_before`` (bytes of weights with one reader), ``turns[N, Q]`` (sums of signs), its cut as
    ``cut[cut_start:cut_end]``, ``allowed[N, S]`` (``possible_states``)."""

    bits: Any
    weight: Any
    compute: Any
    lacking: Any
    boundary: Any
    busy: Any
    moving: Any
    bytes_before: Any
    own_before: Any
    turns: Any
    cut_start: Any
    cut_end: Any
    cut: Any
    allowed: Any


class Tensors(NamedTuple):
    """Tensor h joins ``pin[pin_ptr[h]:pin_ptr[h + 1]]``, its maker first where it has a direction; ``transfer[P, H]`` goes to
    lane ``lane_in[h]`` of who receives and ``lane_out[h]`` of who sends; ``size[H]``: bytes of the buffers of a tensor
    received; ``forced``: those that must be cut. What ``turns`` change by costs ``turn_cost[T, Q]`` on ``turn_side[Q]``."""

    pin_ptr: Any
    pin: Any
    lane_in: Any
    lane_out: Any
    transfer: Any
    size: Any
    forced: Any
    turn_cost: Any
    turn_side: Any


class Devices(NamedTuple):
    """``port[T]`` names the kind's class, ``price[T]`` bounds the weight that it takes per second of load, ``limit[T]``: bytes,
    -1 unlimited; ``handover[T]``: seconds of any stage. States are vectors of devices used, numbered:
    ``pred[pred_ptr[s]:pred_ptr[s + 1]]`` are those that one stage of kind ``pred_kind`` leads from to s; ``idle[S, D]`` are
    those with a device more, unused (-1: none)."""

    port: Any
    price: Any
    limit: Any
    handover: Any
    pred_ptr: Any
    pred: Any
    pred_kind: Any
    idle: Any


class Held(NamedTuple):
    """Bytes that are no sum over the nodes of a stage: weights of ``shared_bytes`` that ``shared[shared_ptr[r]:shared_ptr[r +
    1]]`` read, and ``live[n]``, of which a stage holds the most. No stage holds more than ``most`` of them."""

    shared_ptr: Any
    shared: Any
    shared_bytes: Any
    live: Any
    most: int


class Aim(NamedTuple):
    """What is minimised. No stage may cost more than ``most``; what costs at most ``floor`` counts as ``floor``, and where that
    is reached nothing better is looked for. ``mode``: how a load adds up. For SIDES the two sides count ``shares[0]`` and
    ``shares[1]``, each at most its cap, and both together are at most ``caps[2]``. ``additive``: the sum of transfers is
    minimised, not the largest load. ``slack``: relative, for the rounding of sums."""

    most: float
    floor: float
    mode: int
    additive: bool
    shares: Any
    caps: Any
    slack: float


class Table(NamedTuple):
    """What is filled in: ``value[N, S]``, ``parent[N, S]`` (ideal before), ``via[N, S]`` (kind of the last stage). ``head[S]``
    and ``link[N, S]`` chain the ideals reached in a state, the heaviest first: only those where no state with fewer devices is
    as good. ``stamp[N]``, ``memo[N, T]`` keep what was priced for the ideal at hand, ``priced_at[N]``, ``raw[N, T]`` what was
    priced last, over the trial value or not."""

    value: Any
    parent: Any
    via: Any
    link: Any
    head: Any
    stamp: Any
    memo: Any
    priced_at: Any
    raw: Any
