"""What formats of weights and of blocks cost in perplexity: a model of the user's on a text that it was not trained on.

    python benchmarks/serve_perplexity.py FOLDER TEXT [--windows 32] [--length 512] [--chunk 128]

FOLDER is a Hugging Face folder with a tokenizer, TEXT a file; without them it says so and ends with 0. The text is cut into
windows of `length` tokens, each computed in chunks, as a server would, so that blocks of 8 bits show what they lose. Prints a
JSON line a format: perplexity of all tokens but the first of a window, and its ratio to float32's, which a change must not
raise, with the standard error of the mean logarithm of that ratio over windows.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from meshwright.serving.engine.runner import StepInputs
from meshwright.serving.openvino.runner import OpenVinoOptions, OpenVinoRunner

FORMATS = (
    ("float32", "same"), ("bfloat16", "same"), ("bfloat16", "uint8"), ("int8", "same"), ("int4", "same"), ("int4", "uint8"),
)  # fmt: skip


def chunk_logits(runner: OpenVinoRunner, tokens: NDArray[np.int64], past: int) -> NDArray[np.float64]:
    """Logits of each of ``tokens [T]``, which stand behind `past` others in the first blocks, ``[T, V]``."""
    count = len(tokens)
    blocks = np.arange(-(-(past + count) // runner.block_tokens), dtype=np.int32)
    ends = np.asarray([0, count], np.int32), np.asarray([0, len(blocks)], np.int32)
    inputs = StepInputs(
        tokens, np.arange(past, past + count), ends[0], np.asarray([past], np.int32), blocks, ends[1],
        past + count, np.arange(count),
    )  # fmt: skip
    return runner.forward(inputs).astype(np.float64)


def window_loss(runner: OpenVinoRunner, tokens: NDArray[np.int64], chunk: int) -> float:
    """Mean negative log-likelihood of all tokens of a window but its first, in nats."""
    logits = np.concatenate(
        [chunk_logits(runner, tokens[first : first + chunk], first) for first in range(0, len(tokens), chunk)]
    )[:-1]
    largest = logits.max(-1, keepdims=True)
    total = np.log(np.exp(logits - largest).sum(-1)) + largest[:, 0]
    return float(np.mean(total - logits[np.arange(len(logits)), tokens[1:]]))


def main() -> None:
    """One JSON line a format."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--windows", default=32, type=int)
    parser.add_argument("--length", default=512, type=int)
    parser.add_argument("--chunk", default=128, type=int)
    options = parser.parse_args()
    if options.text is None:
        print("serve_perplexity: no folder and text are given", file=sys.stderr)
        return
    words = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    tokens = np.asarray(words.encode(options.text.read_text(encoding="utf-8")).ids, np.int64)
    count = min(options.windows, len(tokens) // options.length)
    if count < 2:
        raise SystemExit(
            f"{options.text} has {len(tokens)} tokens: two windows of {options.length} are needed"
        )
    windows = tokens[: count * options.length].reshape(count, -1)
    exact: NDArray[np.float64] = np.zeros(0)
    for weights, blocks in FORMATS:
        said = OpenVinoOptions(weights, blocks, num_blocks=-(-options.length // 32))
        runner = OpenVinoRunner(options.folder, said)
        losses = np.asarray([window_loss(runner, window, options.chunk) for window in windows])
        exact = exact if len(exact) else losses
        worse = losses - exact
        print(json.dumps({
            "format": weights, "blocks": blocks, "windows": count, "length": options.length,
            "perplexity": round(math.exp(losses.mean()), 4), "to_float32": round(math.exp(worse.mean()), 5),
            "standard_error": round(float(worse.std(ddof=1)) / math.sqrt(count), 6),
        }), flush=True)  # fmt: skip
        runner.close()


if __name__ == "__main__":
    main()
