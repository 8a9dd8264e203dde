"""Write the addresses of gradcheck_suite/_addresses.py into the files that can't read them.

Run it after a change there; with --check, only say which files differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from gradcheck_suite._addresses import DOCUMENTATION, REPOSITORY

ROOT = Path(__file__).parents[1]
FILES = (
    *("*.md", "*.toml", "*.yml", "*.yaml", "docs/**/*.md", ".github/**/*.yml", "templates/*.yml"),
)

# Whoever owns the repository. A page served from elsewhere is changed here as well.
_ADDRESSES = {
    re.compile(r"https://github\.com/[\w.-]+/gradcheck-suite(?![\w-])"): REPOSITORY,
    re.compile(r"https://[\w-]+\.github\.io/gradcheck-suite(?![\w-])"): DOCUMENTATION,
    re.compile(r"(?<=uses: )[\w.-]+/gradcheck-suite(?=@)"): "/".join(REPOSITORY.split("/")[-2:]),
}


def written(text: str) -> str:
    """Return ``text`` with every address of ours as the setting has it."""
    for pattern, address in _ADDRESSES.items():
        text = pattern.sub(address, text)
    return text


def main(arguments: list[str]) -> int:
    """Write the files, or name those that differ, and return the exit status."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write(f"usage: {Path(__file__).name} [--check]\n")
        return 2
    paths = sorted({path for pattern in FILES for path in ROOT.glob(pattern)})
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    differ = {path: new for path, text in texts.items() if (new := written(text)) != text}
    for path, new in differ.items():
        if arguments:
            sys.stderr.write(
                f"{path} has another address; run: python docs/{Path(__file__).name}\n"
            )
        else:
            path.write_text(new, encoding="utf-8", newline="\n")
    return 1 if arguments and differ else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
