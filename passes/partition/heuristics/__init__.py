"""Plans without a proof: from minimum cuts, along coarse orders, by annealing; and the order that all of them begin with."""
