"""``python -m dnnc``: the same as the ``dnnc`` command."""

import sys

from dnnc.cli import main

sys.exit(main())
