"""Tokens a second on this machine's CPU: our loop around OpenVINO's kernels beside other engines, same weights, same prompts.

    python benchmarks/serve_cpu.py [--model 120m|1b] [--formats bfloat16,int8,int4] [--blocks same|uint8] [--rounds 11]
        [--peers genai,ctranslate2,transformers,vllm] [--python PEER=PYTHON ...] [--points 1x512+48,8x128+48,32x128+48]

A model of random weights is written once; every engine has it in a process of its own. In each round every engine in turn
gets the same prompts twice, for one token and for all of them: prefill is prompt tokens over the first time, decode the
other tokens over what the second takes longer. Ratios are ours over the peer's, of each round (above one: we are faster);
quoted are quartiles, and one that includes one counts as one. None must fall below one. How many greedy tokens are the same
is told. `host_us` is what a step of our loop takes beside the runtime's own call, the median of a run's steps. Peers that
are not here are told and left out; --python says where one is installed. CPUs with AMX run other kernels: whether this one
has it is in the result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import meshwright

FORMATS = ("bfloat16", "int8", "int4", "float32")
PEERS = ("genai", "ctranslate2", "transformers", "vllm")
VOCABULARY = 32_000
# ANCHORS.md, part C, 1: the model that peers were first measured with; and one well beyond the last-level cache.
SIZES: dict[str, dict[str, int]] = {
    "120m": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
             "intermediate_size": 2048},
    "1b": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
           "intermediate_size": 8192},
}  # fmt: skip
POINTS = "1x512+48,8x128+48,32x128+48"
ENGINE_PROGRAM = Path(__file__).with_name("serve_cpu_engine.py")


class Point(NamedTuple):
    """Prompts at once, tokens of each, and tokens behind each."""

    batch: int
    prompt: int
    new: int

    @classmethod
    def read(cls, text: str) -> Point:
        """ "8x128+48"."""
        batch, rest = text.split("x")
        prompt, new = rest.split("+")
        return cls(int(batch), int(prompt), int(new))

    def __str__(self) -> str:
        return f"{self.batch}x{self.prompt}+{self.new}"


class EngineProcess:
    """An engine that answers rounds; `error` says why there is none."""

    def __init__(self, name: str, weights: str, options: argparse.Namespace, folder: Path) -> None:
        self.name = name
        self.rounds: list[dict[str, Any]] = []
        python = dict(entry.split("=") for entry in options.python).get(name, sys.executable)
        command = [
            python,
            str(ENGINE_PROGRAM),
            name,
            weights,
            options.blocks,
            str(folder),
            str(options.threads),
        ]
        self._said = tempfile.TemporaryFile()  # a pipe that nobody reads would stop it
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
        )  # fmt: skip
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        self.error = "" if line else self._last_words()

    def answer(self, point: Point, seed: int) -> dict[str, Any]:
        """Seconds of one round."""
        said = {**point._asdict(), "seed": seed, "vocabulary": VOCABULARY}
        self._process.stdin.write(json.dumps(said) + "\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise SystemExit(f"{self.name} ended: {self._last_words()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        """The last line that it said, once it has ended."""
        self._process.wait()
        self._said.seek(0)
        return self._said.read().decode(errors="replace").strip().splitlines()[-1][-300:]

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def model_folder(size: str, where: Path) -> Path:
    """A Llama of random weights in bfloat16 with a tokenizer of as many words, written once."""
    folder = where / f"random-llama-{size}"
    if (folder / "config.json").is_file():
        return folder
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(**SIZES[size], vocab_size=VOCABULARY, max_position_embeddings=2048)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    words = Tokenizer(
        models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2"
    ).save_pretrained(folder)
    return folder


def rates(point: Point, answer: dict[str, Any]) -> dict[str, float]:
    """Tokens a second of a round."""
    decode_s = max(answer["all_s"] - answer["prefill_s"], 1e-9)
    return {
        "prefill": point.batch * point.prompt / answer["prefill_s"],
        "decode": point.batch * (point.new - 1) / decode_s,
    }


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return [round(values[0], 4)] * 3
    return [round(value, 4) for value in statistics.quantiles(values, n=4, method="inclusive")]


def compared(weights: str, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """One line for every point and engine."""
    engines = [EngineProcess(name, weights, options, folder) for name in ("ours", *options.peers)]
    for engine in engines:
        if engine.error:
            print(f"{weights}: {engine.name} is left out: {engine.error}", file=sys.stderr)
    engines = [engine for engine in engines if not engine.error]
    if engines[0].name != "ours":
        raise SystemExit("our own engine did not start")
    lines = []
    for point in options.points:
        for engine in engines:
            engine.answer(point, options.rounds)  # warm, and forgotten
            engine.rounds.clear()
        for number in range(options.rounds):
            for engine in engines:
                engine.rounds.append(engine.answer(point, number))
        lines += [line(weights, point, engines[0], engine) for engine in engines]
        print(*map(json.dumps, lines[-len(engines) :]), sep="\n", file=sys.stderr)
    for engine in engines:
        engine.close()
    return lines


def line(weights: str, point: Point, ours: EngineProcess, peer: EngineProcess) -> dict[str, Any]:
    """Rates of an engine, and how ours are to them."""
    said: dict[str, Any] = {"format": weights, "point": str(point), "engine": peer.name}
    mine, theirs = ([rates(point, answer) for answer in engine.rounds] for engine in (ours, peer))
    for what in ("prefill", "decode"):
        said[f"{what}_tokens_per_s"] = quartiles([rate[what] for rate in theirs])
        if peer is not ours:
            said[f"{what}_ratio"] = quartiles([a[what] / b[what] for a, b in zip(mine, theirs)])
    if peer is ours:
        said["host_us"] = quartiles([answer["host_us"] for answer in ours.rounds])
    else:
        pairs = [
            (a, b)
            for one, other in zip(ours.rounds, peer.rounds)
            for left, right in zip(one["tokens"], other["tokens"])
            for a, b in zip(left, right)
        ]
        said["equal_tokens"] = f"{sum(a == b for a, b in pairs)} of {len(pairs)}"
    return said


def machine() -> dict[str, Any]:
    """What was measured on."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    names = [row.split(":")[1].strip() for row in flags.splitlines() if row.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "amx": "amx_bf16" in flags,
        "avx512_bf16": "avx512_bf16" in flags,
    }


def main() -> None:
    """One JSON object on stdout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="120m", choices=SIZES)
    parser.add_argument("--formats", default="bfloat16,int8,int4", type=lambda text: text.split(","))
    parser.add_argument("--blocks", default="same", choices=("same", "uint8"))
    parser.add_argument("--rounds", default=11, type=int)
    parser.add_argument(
        "--peers", default=",".join(PEERS), type=lambda text: [x for x in text.split(",") if x]
    )
    parser.add_argument("--python", default=[], action="append", metavar="PEER=PYTHON")
    parser.add_argument(
        "--points", default=POINTS, type=lambda text: [Point.read(x) for x in text.split(",")]
    )
    parser.add_argument("--threads", default=0, type=int, help="0: as each engine chooses")
    parser.add_argument("--folder", default="build/serve_cpu", type=Path, help="where models are written")
    options = parser.parse_args()
    folder = model_folder(options.model, options.folder.resolve())
    found = [line for weights in options.formats for line in compared(weights, options, folder)]
    result = {
        "schema": 1, "meshwright": meshwright.__version__, "benchmark": "serve_cpu", "machine": machine(),
        "model": options.model, "blocks": options.blocks, "rounds": options.rounds, "results": found,
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
