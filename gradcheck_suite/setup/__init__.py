"""What is installed here, and what a repository needs to use it: ``doctor`` and ``init``."""

from __future__ import annotations
