"""Every private name of torch that gradcheck-suite touches, one small function each.

Each function has a test, says which torch it was read in, and falls back honestly where the name
is missing.
"""

from __future__ import annotations
