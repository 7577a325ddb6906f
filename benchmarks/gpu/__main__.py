"""`make gpu`: everything that wants a CUDA device, unattended, in under ten minutes on one; a page and a JSON file.

Run: python -m benchmarks.gpu [-o FOLDER]
Exit 0: all that ran agrees, or there is no device (it says so). Exit 1: something failed, or nothing ran on the device.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path

import torch

from meshwright.specs import load_model

from .context import context
from .device import Found, found_device
from .equality import equality
from .kernels import kernels, operators_of
from .part import Part, exit_code, page, timed
from .step import plan_for, step

SCHEMA = 1
# A layer that many people run, at a length that they run it at; its kernels are large enough that launches are hidden.
MODEL, NUM_SEQUENCES, SEQUENCE = "llama-3.1-8b", 1, 4096


def parts_on(found: Found) -> list[Part]:
    """All parts, one after the other, each said when it is done."""
    operators = operators_of(load_model(MODEL), NUM_SEQUENCES, SEQUENCE)
    todo = {"equality": equality, "kernels": functools.partial(kernels, operators, found.kind)}
    if found.kind:
        todo["training"] = lambda: step(plan_for(found.kind))
        todo["context"] = functools.partial(context, found.kind, torch.cuda.device_count())
    parts = []
    for name, run in todo.items():
        parts.append(timed(name, run))
        print(f"{name}: {parts[-1].verdict}, {parts[-1].seconds:.0f} s", file=sys.stderr, flush=True)
    if not found.kind:
        line = f"No data sheet of {found.name} comes with meshwright."
        parts += [Part(name, "skipped", lines=[line]) for name in ("training", "context")]
    return parts


def main(arguments: list[str] | None = None) -> int:
    """Run all of it; the page on stdout, too."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "-o", "--folder", type=Path, default=Path("build/gpu"), help="for gpu.md and gpu.json"
    )
    folder: Path = parser.parse_args(arguments).folder
    found, why_not = found_device()
    if found is None:
        print(f"{why_not}: there is nothing to do here")
        return 0
    parts = parts_on(found)
    written = page(f"meshwright on {found.name}", found.to_dict(), parts)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.md").write_text(written, encoding="utf-8")
    data = {"schema": SCHEMA, "device": found.to_dict(), "parts": [part.to_dict() for part in parts]}
    (folder / "gpu.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    print(written)
    return exit_code(parts)


if __name__ == "__main__":
    sys.exit(main())
