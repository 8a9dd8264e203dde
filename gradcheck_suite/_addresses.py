"""Where the repository and its documentation are: the one setting of both.

Files that can't read it, such as the README, are kept equal by ``docs/write_addresses.py``.
"""

from __future__ import annotations

__all__ = ["DOCUMENTATION", "REPOSITORY", "page_of"]

REPOSITORY = "https://github.com/OWNER/gradcheck-suite"
DOCUMENTATION = "https://OWNER.github.io/gradcheck-suite"


def page_of(code: str) -> str:
    """Return the address of the page about an entry of the catalogue.

    >>> page_of("GCS301").removeprefix(DOCUMENTATION)
    '/catalogue/GCS301.html'
    """
    return f"{DOCUMENTATION}/catalogue/{code}.html"
