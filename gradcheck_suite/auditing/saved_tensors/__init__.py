"""What autograd saves: the hooks, what they note of contents, and who has written to it since."""

from __future__ import annotations
