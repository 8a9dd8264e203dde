"""Draw docs/audit.svg: the worst finding of an audit of the digits example, for the README.

Run it with ``python docs/draw_picture.py`` after a change to what an audit prints.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "audit.svg"
COMMAND = ("audit", "examples/digits/train.py")
WIDTH = 92
# A picture of so many lines, and its window, is no taller than a screen.
MOST_LINES = 34

# rich's own template fetches a font from the network; this one uses what the reader has.
TEMPLATE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
  <style>
    .{unique_id}-matrix {{
      font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
      font-size: {char_height}px;
      line-height: {line_height}px;
    }}
    {styles}
  </style>
  <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
  </defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">{matrix}</g>
  </g>
</svg>
"""


def shortened(report: Text) -> Text:
    """Return what is printed up to the second finding, and the last line."""
    lines = report.split("\n")
    starts = [i for i, line in enumerate(lines) if line.plain.startswith(("error ", "warning "))]
    left = [lines[i].plain.split("  ")[0] for i in starts[1:]]
    more = Text(f"... {len(left)} more: {', '.join(left)}", style="dim")
    kept = [*lines[: starts[1]], more, Text(), lines[-1]]
    if len(kept) > MOST_LINES:
        raise ValueError(f"{len(kept)} lines are more than {MOST_LINES}: draw less")
    return Text("\n").join(kept)


def main() -> None:
    """Run the audit in a terminal's width and colours and write the picture."""
    done = subprocess.run(
        [sys.executable, "-m", "gradcheck_suite", COMMAND[0], "--color", "always", *COMMAND[1:]],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": str(WIDTH), "PYTHONIOENCODING": "utf-8"},
        check=False,  # there are findings: the status is 1
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(shortened(Text.from_ansi(done.stdout.rstrip("\n"))))
    console.save_svg(
        str(PICTURE),
        title=" ".join(("gradcheck-suite", *COMMAND)),
        theme=MONOKAI,
        code_format=TEMPLATE,
        unique_id="audit",
    )


if __name__ == "__main__":
    main()
