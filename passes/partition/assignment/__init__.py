"""Any assignment of nodes to devices, contiguous or not: annealing above, a mixed-integer programme below (``solver``)."""
