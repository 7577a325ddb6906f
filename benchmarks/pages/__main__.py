"""Runs what pages show, and writes their outputs and figures anew.

python -m benchmarks.pages [PAGE.md ...]; without a page all of them: some twenty minutes on one core.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.pages.page import run

CHECKOUT = Path(__file__).resolve().parents[2]
PATTERNS = (
    "README.md", "docs/index.md", "docs/start.md", "docs/commands.md", "docs/understand/*.md", "docs/how-to/*.md",
)  # fmt: skip


def pages() -> list[Path]:
    """The pages whose blocks run."""
    return sorted(page for pattern in PATTERNS for page in CHECKOUT.glob(pattern))


def main() -> None:
    """Writes the pages that are named, or all."""
    for page in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        with tempfile.TemporaryDirectory() as folder:
            written = run(page, Path(folder))
        page.write_text(written.text, encoding="utf-8")
        for name, content in written.figures.items():
            figure = page.parent / name
            figure.parent.mkdir(parents=True, exist_ok=True)
            figure.write_bytes(content)
        sys.stderr.write(f"{page.relative_to(CHECKOUT)}: {len(written.figures)} figures\n")


if __name__ == "__main__":
    main()
