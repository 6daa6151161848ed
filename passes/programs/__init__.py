"""A plan becomes programs: ``schedule`` orders the work of each device, ``lower`` writes one program per stage, ``localize``
one per class of members of a mesh, and ``validate`` asks the driver for a proof that they compute the model.
"""
