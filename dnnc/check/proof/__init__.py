"""``dnnc check --prove``: shows, for all inputs, that the programs of a build compute the model.

A comparison on some inputs misses what these inputs do not show. The proof reads the model (the entry function of ``plan.ir``),
the programs of all members (``plan.ir``, and the ONNX files of ``stages/`` as they were written) and the bytes of weights. It
shares no code with the passes that made the programs, except the reading of IR text, the types, the definitions of operators
and the layout rules (``ir.layout_rules``). It believes nothing that a pass noted about its own work: a name, a layout or a
strategy is at most a hint about what to try, and what is tried is checked.

**Terms and facts.** The value of a member is a *term*: the expression that computes it from the member's inputs, what it
receives, its constants and the results of its collectives (``terms``). Equal expressions are one term. A value of the model
is a *node* (``model``); equal computations are one node. A *fact* ``(term, node, placements, family)`` says: on each member of
the stage, the term is the part of the node that these placements say (``ir.ops.boxes``). With a placement ``P`` it is a term of
a sum (or maximum), and ``family`` says of which sum: a number for one way to write the node as a sum, with a summand for each
place along the axes of ``P``. Summands of different families do not add up, so all members must hold the same one.

**Rules.** Facts come from these rules alone, so each has a finite derivation from true ones, and an error in any step leaves
the value without its fact (``rules``, ``moves``, ``constants``):

1. an input of the model is whole on each member; a received value is what its channel is to carry, which the sender must
   show (below);
2. a constant is the part of a constant of the model whose bytes it has;
3. an operator: where members hold the operands of an op of the model as its layout rule allows, along each axis of the mesh,
   then the ops that the rule gives for one shard (``localise``) make the part of its result that the rule says. The term must
   be exactly that expression: operators, their versions, attributes and constants included;
4. a Slice of a part that is a smaller part; an Identity; a term of a sum that is the value on the first member, and zeros on
   the others;
5. a collective, where the operands of all members are parts of one node by the same placements (and family): the result has the
   placements that the definition of the collective says.

**Goals.** Each stage must show that what it sends is, on every member, the part that the channel is to carry, and that each
output that it delivers is that of the model. The two sides of a channel must mean the same elements, from member to member as
the runtime sends them. Each output of the model is delivered by one stage. If all stages reach their goals, then by induction
over the order of the model's ops every output is that of the model, whatever the inputs. The rows of the schedule must do each
action once for each microbatch, a ``recv`` before the phase that reads it and a ``send`` behind the one that makes it: messages
of a channel then arrive in the order of microbatches in which they are sent (``rows``).

**Verdicts.** *Proven*: all goals. *Refuted*: an op whose operands are understood, and that follows by no rule. dnnc
writes none, but what computes the same in another way, such as ``b + a`` for ``a + b``, is refuted too. *Not proven*: the proof
does not know enough (an operator without a definition, random numbers, a size that no type states).

Of a decoder, the prompt program is proven as the step is: ``prompt.ir`` has its model, and its programs.

**On trust** (``verdict.TRUSTED``): that ``plan.ir`` holds the model (the importer, ``canonicalize`` and ``states`` are not
checked), the layout rules, kernels (their rounding, the order of sums), and the runtime, which follows programs and rows. That
rows do not wait for each other for ever is what the verifier finds when a build is opened.

Files: ``terms``, ``model``, ``segments`` (ONNX files as terms), ``programs`` (all that runs), ``constants``; ``facts``,
``rules``, ``moves``; ``stage`` (one stage), ``rows`` (the schedule), ``build`` (all of them); ``explain`` (a failure in words),
``verdict``.
Of a training build, ``training`` shows that each step is that of the model.
"""

from dnnc.check.proof.build import prove, prove_build, prove_module, prover
from dnnc.check.proof.verdict import ProofReport

__all__ = ["ProofReport", "prove", "prove_build", "prove_module", "prover"]
