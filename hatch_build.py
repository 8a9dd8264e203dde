"""What the package's metadata takes from the one setting of the addresses."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?<=\]\()(?![\w+.-]+:|#)([^)\s]+)")


def absolute(readme: str, repository: str) -> str:
    """Return the README with links that lead into the repository from wherever it is shown."""

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match[1].endswith((".svg", ".png")) else "blob"
        return f"{repository}/{kind}/main/{match[1]}"

    return _LINK.sub(link, readme)


class AddressHook(MetadataHookInterface):
    """Fill in the project's addresses, and the README as it is shown on PyPI."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields that pyproject.toml calls dynamic."""
        root = Path(self.root)
        addresses = runpy.run_path(str(root / "gradcheck_suite" / "_addresses.py"))
        repository = addresses["REPOSITORY"]
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute((root / "README.md").read_text(encoding="utf-8"), repository),
        }
        metadata["urls"] = {
            "Documentation": f"{addresses['DOCUMENTATION']}/",
            "Repository": repository,
            "Issues": f"{repository}/issues",
            "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        }
