"""Links of two speeds: devices in groups, plans along one order (``along_order``) and exact ones over ideals (``solver``)."""
