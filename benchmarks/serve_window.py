"""A model of 1.1 billion random weights in under a quarter of its size: two processes, blocks from disk, links that are late.

    python benchmarks/serve_window.py FOLDER [--latency-ms 1] [--tokens 11]

Writes the model to FOLDER once (2.2 GB). Then both ranks of `tp=2` serve it in float32 through a window of two blocks, with
sums as a star whose messages are late on purpose; and once more with all weights where they compute. Told are bytes of
weights that were there at once, what the processes' own memory grew to (`RssAnon`), the largest difference of logits, and
seconds a token. Files that were read lie in the page cache where there is room, so seconds are those of this machine's
memory, not of a disk: `plan --requests` is told a disk's rate. Exit 1 where the weights of both are a quarter or more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import meshwright.catalog  # noqa: F401 - knows what fills the slot
from meshwright.executor.models.weights.hugging_face import save_hugging_face
from meshwright.executor.models.weights.initialisation import initial_value
from meshwright.executor.models.weights.parameter_map import parameter_shapes
from meshwright.executor.serving.parallel.parallel_runner import ParallelRunner
from meshwright.executor.serving.parallel.rank_place import fetched_by_ranks
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import open_served
from meshwright.serving.engine.runner import StepInputs
from meshwright.serving.weight.weight_place import weight_place
from meshwright.specs.model.model import ModelSpec

MODEL = ModelSpec.decoder(
    22, 2048, 32, num_kv_heads=4, intermediate_size=5632, vocabulary_size=32000, max_sequence_length=2048, name="1.1B"
)  # fmt: skip
OPTIONS = RunnerOptions(dtype="float32", num_blocks=16, max_model_tokens=256, num_threads=1, tp=2)
PROMPT_TOKENS, FLOAT_BYTES = 32, 4


class Drawn(Mapping[str, Tensor]):
    """Parameters that are drawn when they are asked for."""

    def __init__(self) -> None:
        self._shapes = parameter_shapes(MODEL)

    def __getitem__(self, name: str) -> Tensor:
        return initial_value(name, self._shapes[name], MODEL.num_layers, 0, torch.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def inputs(tokens: list[int], past: int) -> StepInputs:
    """The next tokens of the only sequence."""
    num, blocks = len(tokens), -(-(past + len(tokens)) // OPTIONS.block_tokens)
    return StepInputs(
        token_ids=np.array(tokens, np.int64), positions=np.arange(past, past + num, dtype=np.int64),
        query_starts=np.array([0, num], np.int32), past_lengths=np.array([past], np.int32),
        block_ids=np.arange(blocks, dtype=np.int32), block_starts=np.array([0, blocks], np.int32),
        max_context=past + num, rows=np.array([num - 1], np.int64), adapters=(0,),
    )  # fmt: skip


def own_bytes(process: int) -> int:
    """Memory of a process that no file stands behind."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def served(
    folder: Path, options: RunnerOptions, num_tokens: int
) -> tuple[list[NDArray[np.float32]], dict[str, float]]:
    """Logits of every step, and what it took."""
    runner = ParallelRunner(open_served(folder), options)
    given, past, logits, seconds, grown = list(range(1, PROMPT_TOKENS + 1)), 0, [], [], 0
    for _ in range(num_tokens + 1):
        begun_s = time.perf_counter()
        logits.append(runner.forward(inputs(given, past)).copy())
        seconds.append(time.perf_counter() - begun_s)
        past, given = past + len(given), [7]
        grown = max(grown, sum(own_bytes(process) for process in runner.process_ids))
    told = {
        "weight_bytes": float(sum(runner.peak_weight_bytes)),
        "own_bytes": float(grown),
        "first_s": seconds[0],
        "token_s": statistics.median(seconds[1:]),
    }
    runner.close()
    return logits, told


def main() -> None:
    """See the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency-ms", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=11)
    asked = parser.parse_args()
    if not (asked.folder / "config.json").is_file():
        save_hugging_face(MODEL, Drawn(), asked.folder, dtype=torch.bfloat16)
    place = weight_place("tpi_llm(window=2)")
    comes = replace(
        OPTIONS,
        fetched=fetched_by_ranks(place, MODEL, 2, 1),
        sums="star",
        link_latency_s=asked.latency_ms * 1e-3,
    )
    whole = FLOAT_BYTES * MODEL.num_parameters
    found = {
        name: served(asked.folder, options, asked.tokens)
        for name, options in (("window", comes), ("stays", OPTIONS))
    }
    for name, (_, told) in found.items():
        share = told["weight_bytes"] / whole
        print(f"{name:8} weights {told['weight_bytes'] / 1e9:6.3f} GB ({share:6.1%} of {whole / 1e9:.2f} GB), "
              f"own memory of both processes {told['own_bytes'] / 1e9:6.3f} GB ({told['own_bytes'] / whole:6.1%}), "
              f"first token {told['first_s']:6.2f} s, then {told['token_s']:6.2f} s a token")  # fmt: skip
    off = max(np.abs(a - b).max() for a, b in zip(found["window"][0], found["stays"][0], strict=True))
    print(f"largest difference of logits {off:.2e}")
    raise SystemExit(found["window"][1]["weight_bytes"] >= whole / 4)


if __name__ == "__main__":
    main()
