"""A whole function on one mesh, the best of several.

``one_mesh`` is that search; ``candidates`` and ``speeds`` say which devices and which shares are worth one. ``named`` makes
plans as people write them by hand, ``fitting`` plans for which all that they need of a device fits.
"""
