"""What every pass is made with, and no pass: what a pass is (``base``), where passes are listed (``registry``), how text names
passes and their options (``pipeline``, ``options``), and what runs them (``manager``)."""
