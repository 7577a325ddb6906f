"""One engine of `serve_cpu.py` in a process of its own: reads rounds from stdin, writes seconds to stdout, a JSON line each.

    python benchmarks/serve_cpu_engine.py ENGINE FORMAT BLOCKS FOLDER THREADS

A peer runs in whatever environment has it, so nothing is imported that its engine does not need. What a peer wants converted
is written beside the folder once.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Prompts = Sequence[Sequence[int]]
BLOCK_BYTES = 2 << 30
INT4_GROUP = 64


class Serves(Protocol):
    """An engine."""

    def generate(self, prompts: Prompts, num_new: int) -> list[list[int]]:
        """So many greedy tokens behind each prompt, all prompts given at once."""
        ...


class Ours:
    """Our scheduler, loop and sampling around OpenVINO's kernels."""

    def __init__(self, weights: str, blocks: str, folder: Path, threads: int) -> None:
        from meshwright.serving.openvino.runner import OpenVinoOptions, OpenVinoRunner

        options = OpenVinoOptions(weights, blocks, block_bytes=BLOCK_BYTES, num_threads=threads)
        self.runner = OpenVinoRunner(folder, options)

    def generate(self, prompts: Prompts, num_new: int) -> list[list[int]]:
        """Through the loop, on the wall clock."""
        from meshwright.serving.block.block_pool import BlockPool
        from meshwright.serving.engine.runner_engine import RunnerEngine
        from meshwright.serving.loop.arrivals import RecordedArrivals
        from meshwright.serving.loop.clock import WallClock
        from meshwright.serving.loop.serving_loop import ServingLoop
        from meshwright.serving.policy.continuous_batching import ContinuousBatching
        from meshwright.serving.policy.limits import Limits
        from meshwright.serving.policy.scheduler import Scheduler
        from meshwright.serving.request.request import Request
        from meshwright.serving.request.sampling_parameters import GREEDY

        runner, clock = self.runner, WallClock()
        self._outputs = _Outputs(runner)
        pool = BlockPool(runner.num_blocks, runner.block_tokens)
        scheduler = Scheduler(ContinuousBatching(), pool, Limits(max_model_tokens=runner.max_model_tokens))
        requests = [
            Request(str(i), len(p), num_new, prompt=p, sampling=GREEDY) for i, p in enumerate(prompts)
        ]
        engine, arrivals = RunnerEngine(runner, clock.now_s, depth=2), RecordedArrivals(requests)
        ServingLoop(scheduler, engine, arrivals, clock, [self._outputs]).run()
        return [self._outputs.tokens[request.id] for request in requests]

    def host_us(self) -> float:
        """From the end of a step to that of the next, less the runtime's call: the median of those of the last run."""
        return statistics.median(self._outputs.host_s[1:-1]) * 1e6


class _Outputs:
    """The tokens of each request, and what steps took beside the runtime's calls: an observer of the loop."""

    def __init__(self, runner: Any) -> None:
        self._runner, self._last = runner, (0.0, runner.infer_seconds)
        self.tokens: dict[str, list[int]] = {}
        self.host_s: list[float] = []

    def ran(self, result: Any) -> None:
        """Keep them. What follows this step was told to run before, and its call ends later."""
        now = result.end_s, self._runner.infer_seconds
        self.host_s.append(now[0] - self._last[0] - (now[1] - self._last[1]))
        self._last = now
        for token in result.tokens:
            self.tokens.setdefault(token.sequence.request.id, []).append(token.token_id)

    def refused(self, request: Any, now_s: float, why: Exception) -> None:
        """Nobody is."""
        raise why

    def arrived(self, request: Any, now_s: float) -> None:
        """All at once."""

    given_out = arrived

    def left(self, sequence: Any, now_s: float, reason: str) -> None:
        """Nobody is ended."""


class GenAi:
    """OpenVINO GenAI's continuous batching: the model as optimum-intel exports it, weights compressed as ours are."""

    def __init__(self, weights: str, blocks: str, folder: Path, threads: int) -> None:
        import openvino_genai as genai

        said = genai.SchedulerConfig()
        said.cache_size = BLOCK_BYTES >> 30
        said.max_num_batched_tokens = 2048
        hint = "f32" if weights == "float32" else "bf16"
        properties = {
            "INFERENCE_PRECISION_HINT": hint,
            "KV_CACHE_PRECISION": "u8" if blocks == "uint8" else hint,
        }
        properties |= {"INFERENCE_NUM_THREADS": threads} if threads else {}
        self._config = genai.GenerationConfig
        self._pipeline = genai.ContinuousBatchingPipeline(
            str(_exported(folder, weights)), said, "CPU", properties
        )

    def generate(self, prompts: Prompts, num_new: int) -> list[list[int]]:
        """All prompts in one call."""
        import openvino

        config = self._config(max_new_tokens=num_new, ignore_eos=True, do_sample=False)
        tensors = [openvino.Tensor(np.asarray([prompt], np.int64)) for prompt in prompts]
        results = self._pipeline.generate(tensors, [config] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]


def _exported(folder: Path, weights: str) -> Path:
    """The folder as optimum-intel writes it, with compressed weights where asked for, and a tokenizer."""
    plain = folder.with_name(f"{folder.name}-openvino")
    if not (plain / "openvino_model.xml").is_file():
        from optimum.intel import OVModelForCausalLM

        made = OVModelForCausalLM.from_pretrained(folder, export=True, load_in_8bit=False, compile=False)
        made.save_pretrained(plain)
        _write_tokenizer(folder, plain)
    target = plain.with_name(f"{plain.name}-{weights}")
    if weights not in ("int8", "int4"):
        return plain
    if not (target / "openvino_model.xml").is_file():
        import shutil

        import nncf
        import openvino

        shutil.copytree(plain, target, ignore=shutil.ignore_patterns("openvino_model.*"))
        model, modes = openvino.Core().read_model(plain / "openvino_model.xml"), nncf.CompressWeightsMode
        said: dict[str, Any] = {"mode": modes.INT8_SYM}
        if weights == "int4":
            said = {"mode": modes.INT4_SYM, "group_size": INT4_GROUP, "ratio": 1.0}
        openvino.save_model(nncf.compress_weights(model, **said), target / "openvino_model.xml")
    return target


def _write_tokenizer(folder: Path, target: Path) -> None:
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from transformers import AutoTokenizer

    pair = convert_tokenizer(AutoTokenizer.from_pretrained(folder), with_detokenizer=True)
    for name, model in zip(("openvino_tokenizer", "openvino_detokenizer"), pair):
        openvino.save_model(model, target / f"{name}.xml")


class CTranslate2:
    """CTranslate2: float32 and int8 where its wheel has them on this CPU."""

    TYPES = {"float32": "float32", "bfloat16": "bfloat16", "int8": "int8"}

    def __init__(self, weights: str, blocks: str, folder: Path, threads: int) -> None:
        import ctranslate2

        kind, known = self.TYPES.get(weights, ""), ctranslate2.get_supported_compute_types("cpu")
        if kind not in known:
            raise SystemExit(f"CTranslate2 has no {weights} here, but {', '.join(sorted(known))}")
        target = folder.with_name(f"{folder.name}-ctranslate2-{weights}")
        if not target.is_dir():
            converter = ctranslate2.converters.TransformersConverter(str(folder), load_as_float16=False)
            converter.convert(str(target), quantization=kind)
        self._generator = ctranslate2.Generator(str(target), compute_type=kind, intra_threads=threads)
        self._words = json.loads((target / "vocabulary.json").read_text())

    def generate(self, prompts: Prompts, num_new: int) -> list[list[int]]:
        """All prompts in one batch."""
        words = [[self._words[token] for token in prompt] for prompt in prompts]
        results = self._generator.generate_batch(
            words, min_length=num_new, max_length=num_new, include_prompt_in_result=False, sampling_topk=1
        )
        return [list(result.sequences_ids[0]) for result in results]


class Transformers:
    """transformers' own generate, in bfloat16 or float32."""

    def __init__(self, weights: str, blocks: str, folder: Path, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        if weights not in ("float32", "bfloat16"):
            raise SystemExit(f"transformers has no {weights} of its own")
        torch.set_num_threads(threads or torch.get_num_threads())
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, weights)).eval()
        self._model.generation_config.eos_token_id = None

    def generate(self, prompts: Prompts, num_new: int) -> list[list[int]]:
        """All prompts in one batch."""
        tokens = self._torch.tensor(prompts)
        with self._torch.inference_mode():
            found = self._model.generate(
                tokens,
                attention_mask=self._torch.ones_like(tokens),
                min_new_tokens=num_new,
                max_new_tokens=num_new,
                do_sample=False,
                pad_token_id=0,
            )
        return found[:, tokens.shape[1] :].tolist()


class Vllm:
    """vLLM's CPU backend, in bfloat16 or float32."""

    def __init__(self, weights: str, blocks: str, folder: Path, threads: int) -> None:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(BLOCK_BYTES >> 30))
        import vllm

        if weights not in ("float32", "bfloat16"):
            raise SystemExit(f"vLLM's CPU backend makes no {weights} of a folder in bfloat16")
        self._engine = vllm.LLM(str(folder), dtype=weights, enable_prefix_caching=False, max_model_len=2048)
        self._parameters = vllm.SamplingParams

    def generate(self, prompts: Prompts, num_new: int) -> list[list[int]]:
        """All prompts in one call."""
        said = self._parameters(temperature=0.0, max_tokens=num_new, ignore_eos=True)
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        results = self._engine.generate(given, said, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]


ENGINES: dict[str, Callable[[str, str, Path, int], Serves]] = {
    "ours": Ours,
    "genai": GenAi,
    "ctranslate2": CTranslate2,
    "transformers": Transformers,
    "vllm": Vllm,
}


def measured(engine: Serves, point: dict[str, int]) -> dict[str, Any]:
    """Seconds of one token, and of all of them, behind the same prompts, drawn by the point's seed."""
    draw = np.random.default_rng(point["seed"])
    prompts = draw.integers(10, point["vocabulary"], (point["batch"], point["prompt"])).tolist()
    begin_s = time.perf_counter()
    engine.generate(prompts, 1)
    first_s = time.perf_counter()
    found = engine.generate(prompts, point["new"])
    end_s = time.perf_counter()
    assert [len(tokens) for tokens in found] == [point["new"]] * point["batch"], "not as many as asked for"
    said: dict[str, Any] = {"prefill_s": first_s - begin_s, "all_s": end_s - first_s, "tokens": found}
    if isinstance(engine, Ours):
        said["host_us"] = engine.host_us()
    return said


def main() -> None:
    """Serve rounds until stdin ends."""
    if len(sys.argv) == 1:
        print("serve_cpu_engine: serve_cpu starts it", file=sys.stderr)
        return
    name, weights, blocks, folder, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines and their processes print is not an answer
    engine = ENGINES[name](weights, blocks, Path(folder), int(threads))
    print(json.dumps({"ready": name}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measured(engine, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
