"""What gymnasium 0.29 still asks of numpy."""

from __future__ import annotations

import numpy as np

if not hasattr(np, "bool8"):
    np.bool8 = np.bool_
