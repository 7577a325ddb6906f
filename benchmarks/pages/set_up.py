"""What the folder of a page holds before its first block, where a reader has it already: models, texts, logs of jobs.

Each function takes the folder. Weights are random and texts are small: pages show commands, not what a model learned.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.interop.profiler.kineto import data_parallel_job
from tests.interop.todays_file import MEGATRON

from meshwright.costs.step.profile import StepFit, packaged_step_profile
from meshwright.prediction.predicted import predict
from meshwright.specs import Cluster, ModelSpec, Plan, Workload, load_model

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512,
}  # fmt: skip
WORDS = 1024  # in vocabularies of tokenizers that are made here
NUM_FILES = 12  # of the standard library, as a text
STEPS = 12  # in a log
FORMATS = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
SLOW_PRODUCTS, SLOW_MESSAGES = 1.1, 1.5  # of the stack whose runs are made up
LAYOUTS: Sequence[Mapping[str, Any]] = (
    {"dp": 32},
    {"dp": 16, "tp": 2},
    {"dp": 8, "pp": 4, "schedule": "1f1b"},
    {"dp": 8, "tp": 4},
    {"dp": 8, "tp": 2, "pp": 2, "schedule": "1f1b"},
    {"dp": 4, "tp": 4, "pp": 2, "schedule": "1f1b"},
)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def trained(folder: Path) -> None:
    """What `make quickstart` leaves of a model, and its plan."""
    _model(folder / "runs" / "quickstart" / "trained")
    model = ModelSpec.decoder(4, 256, 4, max_sequence_length=128)
    plan = Plan.of(model, Cluster("2xcpu"), Workload(16, 128), dp=2, microbatch_size=8)
    plan.save(folder / "runs" / "quickstart" / "plan.toml")


def adapters(folder: Path) -> None:
    """A model, a smaller one of the same vocabulary, and two adapters in PEFT's form."""
    from tests.executor.serving.adapter_case import ALL, write_adapter

    model = _model(folder / "models" / "llama")
    _model(folder / "models" / "small-llama", num_hidden_layers=1)
    (folder / "adapters").mkdir()
    for seed, name in enumerate(("support", "legal-v2")):
        write_adapter(model, folder / "adapters" / name, ALL, 4, seed)


def corpus(folder: Path) -> None:
    """A folder of text, the same as JSON lines, tokenizers, and a plan for them."""
    from tokenizers import ByteLevelBPETokenizer

    texts = _texts(folder / "corpus")
    for name in ("text", "body"):
        lines = [
            json.dumps({name: text[start : start + 400]}) for text in texts for start in range(0, 4000, 400)
        ]
        (folder / ("lines.jsonl" if name == "text" else "bodies.jsonl")).write_text("\n".join(lines))
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=WORDS, special_tokens=["<|endoftext|>"])
    for file in (folder / "tokenizer.json", folder / "Qwen3-0.6B" / "tokenizer.json"):
        file.parent.mkdir(exist_ok=True)
        tokenizer.save(str(file))
    model = ModelSpec.decoder(2, 64, 2, max_sequence_length=64, vocabulary_size=WORDS)
    for name, layout in (("plan", {"dp": 2}), ("other", {"pp": 2, "schedule": "1f1b"})):
        Plan.of(model, Cluster("2xcpu"), Workload(8, 64), **layout).save(folder / f"{name}.toml")


def chats(folder: Path) -> None:
    """Conversations about sums, and a small model with a tokenizer that has a chat template."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    said = [
        {"messages": [
            {"role": "user", "content": f"What is {a} and {b}?"},
            {"role": "assistant", "content": f"It is {NUMBERS[i + j + 1]}."},
        ]}
        for i, a in enumerate(NUMBERS[:6]) for j, b in enumerate(NUMBERS[:5])
    ]  # fmt: skip
    lines = [json.dumps(each) for each in said]
    (folder / "chats.jsonl").write_text("\n".join(lines * 8))
    (folder / "held-out.jsonl").write_text("\n".join(lines[:20]))
    tokenizer = ByteLevelBPETokenizer()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(lines * 8, vocab_size=WORDS, special_tokens=special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder / "small")
    config = {**LLAMA, "architectures": ["LlamaForCausalLM"], "vocab_size": WORDS, "num_hidden_layers": 4}
    (folder / "small" / "config.json").write_text(json.dumps(config))


def job(folder: Path) -> None:
    """A launch script of Megatron-LM with an option that nobody knows, and what its run has logged."""
    (folder / "train.sh").write_text(MEGATRON.replace("--lr 3e-4", "--lr 3e-4 --my-option 3"))
    _log(folder / "train.log", 3.7, 64)


def experts(folder: Path) -> None:
    """A plan that divides the eight experts of a small model between two processes."""
    model = ModelSpec.decoder(2, 64, 4, vocabulary_size=256, max_sequence_length=32)
    model = model.changed(
        architecture="mixtral", num_experts=8, num_experts_per_token=2, expert_intermediate_size=64
    )
    Plan.of(model, Cluster("2xcpu"), Workload(8, 32), dp=2, ep=2).save(folder / "experts.toml")


def runs(folder: Path) -> None:
    """Plans of one job, and logs of a stack on which products and messages take longer than anybody's."""
    where, model = Cluster("4x8xH100"), load_model("llama-3.1-8b")
    fit = packaged_step_profile().fit
    known = fit.constants["h100"]
    slow = replace(
        known, matmul=SLOW_PRODUCTS * known.matmul, node_exchange=SLOW_MESSAGES * known.node_exchange,
        network_exchange=SLOW_MESSAGES * known.network_exchange,
    )  # fmt: skip
    truth = StepFit({**fit.constants, "h100": slow}, fit.width)
    for number, layout in enumerate(LAYOUTS, 1):
        usual = {**FORMATS, "sharding": "zero1", "sequence_parallel": "tp" in layout, "microbatch_size": 1}
        plan = Plan.of(model, where, Workload(128, 4096), **usual, **layout)
        plan.save(folder / f"plan-{number}.toml")
        seconds = predict(plan, where, fit=truth).step.value
        _log(folder / f"run-{number}.log", seconds, plan.workload.global_batch)


def profiles(folder: Path) -> None:
    """What torch.profiler writes of two ranks."""
    (folder / "profiles").mkdir()
    data_parallel_job(folder / "profiles")


def _model(folder: Path, **sizes: int) -> Any:
    """A Llama of bytes with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    fields = {key: value for key, value in {**LLAMA, **sizes}.items() if key != "model_type"}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    model.save_pretrained(folder)
    return model


def _texts(folder: Path) -> list[str]:
    """The beginnings of files of Python's standard library."""
    folder.mkdir()
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:NUM_FILES]
    texts = [file.read_text(encoding="utf-8")[:8000] for file in files]
    for file, text in zip(files, texts, strict=True):
        (folder / file.name).write_text(text, encoding="utf-8")
    return texts


def _log(file: Path, seconds: float, batch: int) -> None:
    """Steps of a job in the words of Megatron-LM; the first ones are slow."""
    lines = [
        f" iteration {number:8d}/{STEPS:8d} | elapsed time per iteration (ms): "
        f"{1e3 * seconds * (3 if number < 3 else 1):.1f} | global batch size: {batch:5d} | lm loss: 9.1E+00 |"
        for number in range(1, STEPS + 1)
    ]
    file.write_text("\n".join(lines))
