"""Runs what pages show (of Start and Understand, and some others), and writes their outputs and figures anew.

python -m benchmarks.pages [PAGE.md ...]; without a page all of them: a few minutes on one core.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.pages.page import run

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOW_TO = ("add-a-schedule", "describe-your-cluster")
PATTERNS = ("index.md", "start.md", "understand/*.md", *(f"how-to/{name}.md" for name in HOW_TO))


def pages() -> list[Path]:
    """The pages whose blocks run."""
    return sorted(page for pattern in PATTERNS for page in DOCS.glob(pattern))


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
        sys.stderr.write(f"{page.relative_to(DOCS)}: {len(written.figures)} figures\n")


if __name__ == "__main__":
    main()
