"""What must hold before a release, and the files of one.

python .ci/release.py gate v0.1.0      # the tag, the version and the changelog belong together
python .ci/release.py notes v0.1.0     # what the changelog says of it, for the release's page
python .ci/release.py build OUT        # sdist and wheel, proved, with their hashes
python .ci/release.py changelog BASE   # of a branch: what users see is told in the changelog
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 2_300_000
"""The wheel had 2,017,000 bytes in November 2026, nearly all source: this stops what slips in."""
_OTHER_PLACES = re.compile(
    r"""(?:rev: v|gradcheck-suite@v|gradcheck-suite/raw/v|^ +default: ")(\d+\.\d+\.\d+\w*)""",
    re.MULTILINE,
)
"""Where users are told, or a template says, which version to take."""
_SHIPPED = ("gradcheck_suite/", "pytest_plugin/", "lint_rules/")


class Refused(Exception):  # noqa: N818 - it is the answer, and no error of the program
    """Something does not hold; the message says what, and what to do."""


def version() -> str:
    """Return the version that the package has."""
    text = (ROOT / "gradcheck_suite" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise Refused("gradcheck_suite/_version.py has no line `__version__ = ...`")
    return found[1]


def gate(tag: str) -> None:
    """Refuse a tag that is not of this version, without notes, or of an unnamed repository."""
    if tag != f"v{version()}":
        raise Refused(f"the tag is {tag}, and gradcheck_suite/_version.py has {version()}")
    notes(tag)
    for path in _git("ls-files", "*.md", "*.yml", "*.yaml").splitlines():
        for named in _OTHER_PLACES.findall((ROOT / path).read_text(encoding="utf-8")):
            if path != "CHANGELOG.md" and named != version():
                raise Refused(f"{path} names version {named}, and this is {version()}")
    if "/OWNER/" in (ROOT / "gradcheck_suite" / "_addresses.py").read_text(encoding="utf-8"):
        raise Refused(
            "gradcheck_suite/_addresses.py has no real owner yet; write it there, and run "
            "python docs/write_addresses.py"
        )


def notes(tag: str) -> str:
    """Return what the changelog says of a version."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## \[{re.escape(tag.removeprefix('v'))}\] - \d{{4}}-\d\d-\d\d$"
    found = re.search(heading, text, re.MULTILINE)
    if found is None:
        raise Refused(
            f"CHANGELOG.md has no heading `## [{tag.removeprefix('v')}] - YEAR-MONTH-DAY`"
        )
    section = re.split(r"^## ", text[found.end() :], maxsplit=1, flags=re.MULTILINE)[0].strip()
    if not section:
        raise Refused(f"CHANGELOG.md says nothing of {tag}")
    return section + "\n"


def changelog(base: str) -> None:
    """Refuse a branch that changes what is shipped and tells nothing of it."""
    changed = _git("diff", "--name-only", f"{base}...HEAD").splitlines()
    shipped = [path for path in changed if path.startswith(_SHIPPED)]
    told = _git("log", "--format=%(trailers:key=Changelog,valueonly)", f"{base}..HEAD").split()
    if shipped and "CHANGELOG.md" not in changed and "none" not in told:
        raise Refused(
            f"{shipped[0]} is shipped, and CHANGELOG.md tells nothing of the change; add a line "
            "under Unreleased, or, where users see nothing of it, end a commit's message with the "
            "line `Changelog: none`"
        )


def build(out: Path) -> None:
    """Write sdist, wheel and hashes, and prove that anybody gets the same bytes from them."""
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct").strip()}
    with tempfile.TemporaryDirectory() as name:
        first, second = Path(name, "first"), Path(name, "second")
        # The one builds the wheel from the sdist, the other from the tree.
        _build(first, environment)
        _build(second, environment, "--sdist", "--wheel")
        (sdist,) = first.glob("*.tar.gz")
        (wheel,) = first.glob("*.whl")
        for file in (sdist, wheel):
            if file.read_bytes() != (second / file.name).read_bytes():
                raise Refused(f"{file.name} is not the same bytes when it is built again")
        if wheel.stat().st_size > MOST_BYTES:
            raise Refused(f"{wheel.name} has {wheel.stat().st_size:,} bytes, over {MOST_BYTES:,}")
        files = sorted((sdist, wheel))
        sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
        for file in files:
            (out / file.name).write_bytes(file.read_bytes())
    # As `sha256sum --check` reads it. Beside the folder: PyPI takes distributions alone.
    (out.parent / "SHA256SUMS").write_text("".join(sums), encoding="ascii")


def _build(out: Path, environment: dict[str, str], *options: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(out)]
    done = subprocess.run(
        [*command, str(ROOT)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Refused(f"the build failed:\n{done.stdout}{done.stderr}")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode != 0:
        raise Refused(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout


def main(words: list[str]) -> int:
    """Do what is asked, and return the exit status."""
    try:
        match words:
            case ["gate", tag]:
                gate(tag)
            case ["notes", tag]:
                sys.stdout.write(notes(tag))
            case ["build", out]:
                build(Path(out).absolute())
            case ["changelog", base]:
                changelog(base)
            case _:
                sys.stderr.write(__doc__ or "")
                return 2
    except Refused as reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
