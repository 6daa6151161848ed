"""TAG's search method, to compare with dnnc's own: ``dnnc compile --search tag`` and ``dnnc tag train``.

Zhang et al., "Expediting Distributed DNN Training with Device Topology-Aware Graph Deployment", IEEE TPDS 2023: op groups by
METIS, an action for each (a set of device groups, and how replicas agree), a simulator, and Monte Carlo tree search guided by a
graph attention network. The search is TAG's; seconds and bytes are dnnc's models, so that both searches can be compared.

- ``device_groups``, ``op_groups``: the groups that the search places, and those that it places them on;
- ``actions``, ``simulator``: the choices for an op group, and the seconds and bytes of a strategy;
- ``features``, ``network``: the input of the graph network, and its forward pass;
- ``tree_search``: the search;
- ``bridge``, ``planned``: the strategy as a plan of dnnc's IR, which is costed, bounded, lowered and checked like any other;
- ``cases``, ``training``: the training cases of a prior, and its training, which alone needs torch;
- ``faults``: the kinds of errors.
"""

from dnnc.search_tag.planned import NAME, TagOptions, TagPlan, tag_plan

__all__ = ["NAME", "TagOptions", "TagPlan", "tag_plan"]
