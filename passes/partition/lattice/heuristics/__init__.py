"""Plans without a proof: from minimum cuts (``cut_plans``) and along orders of segments (``segments``)."""
