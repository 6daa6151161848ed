"""What every pass is made with, and no pass: what a pass is (``base``), where passes are listed (``registry``), how text names
passes and their options (``pipeline``, ``options``; ``earlier``: names of earlier versions), what judges their
order (``order``, by ``properties`` of a module), what runs them (``manager``), what searches again after a plan that was
``refused``, and what expands a folded module for a pass that looks at ops one by one (``expanded``)."""
