"""A whole function on one mesh: the best plan on any of several meshes.

``one_mesh`` is that search; ``candidates`` says which meshes are worth trying, ``speeds`` with which uneven shares. ``named``
makes plans as people write them by hand; ``fitting`` makes plans fit the memory that a device has for all that they need, of
which ``alive`` counts the values that are alive at once.
"""
