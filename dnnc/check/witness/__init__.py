"""``dnnc verify-plan DIR``: the value, the bound and the gap of a plan, counted again by small code of its own.

*What is checked* is the plan, not the rates. The seconds of one op on one type of device are asked of ``op_time`` (of a part of
an op, ``member_work``), routes and ports of ``network``. Sums, transfers, collectives, memory, value, bound and gap are counted
here, from the ops, stages, devices and links of ``plan.ir`` alone; nothing is asked of a search. What ``plan.json`` says must
be what is written for that ``plan.ir``. Not counted again, and said to be so: activations on meshes; of a training step all
memory but weights, the value in stages on meshes, what is hidden beside its backward pass on one mesh, and the rows of
schedules other than 1F1B.

- ``facts``: the numbers of a build;
- ``value``: seconds and bytes of the stages, and the value, of stages on devices; ``meshes``: the same of stages on meshes;
- ``bound``: what prices of devices prove; ``layouts``: what a price of memory proves of one mesh;
- ``exhaustive``: the search of ``--search``, repeated plainly;
- ``verify``: all of it, what ``plan.json`` says, and every violation.

*A witness* is what proves a lower bound without a search. Plans have four forms: stages on ``devices``, on devices and
``replicas``, on devices and ``meshes``, and all ops on the one ``mesh`` of the plan. The bound of a plan is the least of the
bounds of the forms that were searched, and its witness has a record for each: the ``bound`` of the form, and the ``prices``
that prove it, or a part of it.
``plan.json``::

    "witness": [{"plans": "replicas", "bound": 0.0382, "prices": {"core": 0.5}},
                {"plans": "meshes", "bound": 0.0388, "prices": {"core": 0.5}}]

In ``plan.ir`` the certificate holds the same as text (``ir.text.witness``).

*The prices* l_t >= 0, one for each type of device, are a solution of the dual of fractional load balancing. With w(v), the
least over all types of l_t times the seconds of op v, a device of type t that is busy for T seconds a sample does work worth
at most l_t T. So T >= (sum of w) / (sum of l over all devices), for any prices whatever. This holds for every form of plan: of
an op that is split over a mesh the parts take together no less than ``op_time.least_seconds``, and each pays the overhead.
``bound`` says what hand-over adds, how a training step follows from its period, and what else is proven.

*One mesh.* Where no other mesh was searched, the record has a price of memory, in seconds per byte (``memory``; none: 0).
``layouts`` finds the minimum over all strategies and layouts of seconds + price * bytes by an elimination of its own, and weak
duality makes a bound of it.

*What no prices prove* rests on the search that ``certificate.bound`` names: both numbers are reported, what is proven and what
is claimed. ``--search`` repeats the search on devices and replicas plainly where it is small: a dynamic programme over all
downsets of ops in a dictionary, with every number of devices of each type and of replicas. A claimed bound above its optimum
is a violation.

Tolerances: ``CLOSE``, relative, for values that are counted twice.
"""

from dnnc.check.witness.verify import Verified, verify_build

__all__ = ["Verified", "verify_build"]
