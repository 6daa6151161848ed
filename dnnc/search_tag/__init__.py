"""TAG's search method, beside dnnc's own: ``dnnc compile --search tag`` and ``dnnc tag train``.

Zhang et al., "Expediting Distributed DNN Training with Device Topology-Aware Graph Deployment", IEEE TPDS 2023: op groups by
METIS, an action for each (a set of device groups, and how replicas agree), a simulator, and Monte Carlo tree search guided by a
graph attention network. The search is TAG's; seconds and bytes are dnnc's models, so that both searches can be compared.

- ``device_groups``, ``op_groups``: machines and model as the search sees them;
- ``actions``, ``simulator``: what can be chosen, and what a choice takes;
- ``features``, ``network``: what the graph network sees, and its forward pass;
- ``tree_search``: the search;
- ``bridge``, ``planned``: its strategy as a plan of dnnc's IR, which is priced, bounded, lowered and checked as any other;
- ``cases``, ``training``: what a prior is trained on, and how; ``training`` alone needs torch.
"""

from dnnc.search_tag.planned import NAME, TagOptions, TagPlan, tag_plan

__all__ = ["NAME", "TagOptions", "TagPlan", "tag_plan"]
