"""What every backward owes its callers, whatever it computes.

It gives the same gradient twice, is linear in the incoming gradient, only reads it, takes it in any
layout, and copes with outputs that nobody used. These need no differences: equality up to rounding
is asked for.
"""

from __future__ import annotations
