"""Reads the words in rows of measured training runs: precision, recompute, schedule, extras; what a plan calls them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from meshwright.evidence.tables.table import FLOAT8_WORD, TrainingRow
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Attention, Dispatch, Recompute, Vocabulary
from meshwright.specs.stack.traits import FUSED_ATTENTION_SINCE, Traits

SHARDED: tuple[str, ...] = ("none", "zero1", "zero2", "zero3")  # by the number in column zero
# First match counts. Words of the recipes: blocks of 128 (DeepSeek's, "SC": sub-channel), one scale a row, one a
# tensor ("CS": current scaling; Transformer Engine's hybrid: E4M3 forward, E5M2 backward, delayed scaling).
FLOAT8_RECIPES = (
    (re.compile(r"mx"), "mxfp8"),
    (re.compile(r"block|-sc\b|sub-?channel"), "blockwise"),
    (re.compile(r"\brow|axiswise|per[ -](?:token|channel)"), "rowwise"),
    (re.compile(r"tensorwise|-cs\b|hybrid|current|delayed|linears"), "tensorwise"),
)
# First match counts; "selective op" is torchtitan's policy by operations.
RECOMPUTES: tuple[tuple[re.Pattern[str], Recompute], ...] = (
    (re.compile(r"selective[ _-]?op"), "selective_op"),
    (re.compile(r"selective"), "selective"),
    (re.compile(r"full"), "full"),
    (re.compile(r"none|^no$|^off$"), "none"),
)
# By "method=" of sail-sg/VocabularyParallelism. Its script names the algorithm with two barriers vocab-1 and the one
# with one barrier vocab-2; the captions of its README have it the other way round.
VOCABULARY_METHODS: dict[str, Vocabulary] = {
    "baseline": "ends",
    "redis": "ends",
    "vocab-1": "two_barriers",
    "vocab-2": "one_barrier",
    "interlaced": "interlaced",
}
# Behind "selective" may stand which modules are computed again, by Megatron-LM's names or in words (its option
# --recompute-modules: without it, attention's core; layernorm and moe_act cost next to nothing, and leave attention alone).
NAMED_MODULES = re.compile(r"selective\s*\(([^)]+)\)")
ATTENTION_CORE = re.compile(r"attn|attention")
# Megatron-Bridge 0.5.1 (container 26.06): recipes with experts on Blackwell capture the whole iteration, and fuse
# grouped products (its release notes).
CAPTURED_SINCE, GRAPHED = "26.06", re.compile(r"B[23]00")
# A library of layers whose norms, activations and casts are fused by hand, whoever uses it.
FUSING = re.compile(r"transformer[ _-]?engine")
FUSED_LOSS = re.compile(r"fused cross[- _]entropy")
UNKNOWN_SOFTWARE = "eager, float32 sums"
WHOLE_GRAPH = re.compile(r"cuda[ _-]?graph")
# With experts the host waits for nothing if the router is in it (Megatron-LM's scopes moe_router, moe_preprocess), or all.
ROUTED_GRAPH = r"cuda[ _-]?graphs?[^;]*(?:router|preprocess|whole|full[ _-]?iteration)"
# Names of the same thing: kernels that send parts of what they multiply (torch's asyncTP, Transformer Engine's user buffers).
TP_OVERLAP = r"async[-_ ]?(?:tp\b|tensor)|tp[-_ ]comm|user[-_ ]?buffers?\b|\bub[-_ ]overlap"
# Tokens of one microbatch travel to experts and back beside the computes of another.
EP_OVERLAP = r"a2a overlap|all[-_ ]to[-_ ]all overlap|overlap-moe-expert-parallel-comm"
# Kernels that send a token once to each device that has experts for it, and names of those that send every copy.
SENT_ONCE = r"\b(?:deep|hybrid)[-_ ]?ep\b"
SENT_AS_COPIES = r"\ball[-_ ]?to[-_ ]?all dispatcher|\ba2a dispatcher"
# In front of a name, or the end of what is said behind it: it is not there.
DENIED_BEFORE = re.compile(r"\b(?:no|not|without|w/o|vanilla|disabled?)[-_ ]+(?:\w+[-_ ])?$")
OFF = ("off", "false", "no", "none", "0", "disabled")
# Of column-parallel layers only, whose products begin with what is there (nanotron): row-parallel ones wait.
PARTLY = re.compile(r"async\w*[-_ ]comm")
METHOD = re.compile(r"method=([\w-]+)")
GROUP = re.compile(r"(?:zero\d?|shard\w*) group size (\d+)")
# The redistribution moves no layer that gains less than this share of the slowest stage: so it gives the counts that
# the stage times of the repository show for all four vocabularies.
WORTH_MOVING = 1.05


def check_trains(row: TrainingRow) -> None:
    """Raises SpecError for rows that no plan describes: adapters only, four-bit formats."""
    words = f"{row.text('model')} {row.text('extras')}".lower()
    if "lora" in words:
        raise SpecError(
            f"{row.where}: {row.row_id} trains adapters (LoRA) on frozen weights",
            allowed="training of all parameters",
            next="leave this row out",
        )
    if "fp4" in row.text("precision").lower():
        raise SpecError(
            f"{row.where}: {row.row_id} computes in {row.text('precision')}",
            allowed="bfloat16, float16, float32 and float8 recipes",
            next="leave this row out",
        )


def dtype_of(row: TrainingRow, assumptions: list[str]) -> str:
    """Format of parameters and activations. Raises SpecError for a precision that is not known."""
    text = row.text("precision").lower()
    if "bf16" in text or "bfloat16" in text:
        return "bfloat16"
    if FLOAT8_WORD.search(text):
        return "bfloat16"
    if "fp16" in text or "float16" in text:
        return "float16"
    if "fp32" in text or "float32" in text or "tf32" in text:
        return "float32"
    if not text:
        assumptions.append("precision is empty: bfloat16")
        return "bfloat16"
    raise SpecError(
        f"{row.where}: precision is {row.text('precision')!r}",
        allowed="words with bf16, fp16, fp32 or fp8 in them, or nothing",
    )


def float8_of(row: TrainingRow, assumptions: list[str]) -> str:
    """Recipe of products in float8; empty where there are none."""
    if not row.is_float8:
        return ""
    text = row.text("precision").lower()
    found = next((recipe for words, recipe in FLOAT8_RECIPES if words.search(text)), None)
    if found is None:
        assumptions.append(f"precision {row.text('precision')!r} names no recipe: one scale a tensor")
    return found or "tensorwise"


def recompute_of(row: TrainingRow, assumptions: list[str] | None = None) -> Recompute | None:
    """What is computed again in the backward; None where the row does not say."""
    text = row.text("recompute").lower()
    found = next((kind for words, kind in RECOMPUTES if words.search(text)), None)
    named = NAMED_MODULES.search(text)
    if found == "selective" and named is not None and not ATTENTION_CORE.search(named[1]):
        if assumptions is not None:
            assumptions.append(f"recompute of {named[1]} is counted as none: attention is not computed again")
        return "none"
    return found


def stack_of(row: TrainingRow, traits: Traits) -> str:
    """Name of the software; torchtitan runs compiled or eager, and differs as much as two stacks."""
    if traits.stack != "torchtitan":
        return traits.stack
    return "torchtitan compiled" if "compile" in row.text("extras").lower() else "torchtitan eager"


def software_of(row: TrainingRow, traits: Traits) -> str:
    """Efficiency class by what the row says of its software, whoever wrote it: FSDP as PyTorch has it runs eager or
    compiled; a first FSDP ("fsdp") without more words is eager, with the usual fused loss; who names no FSDP fuses where it
    is known to, or says so; of software that nobody knows every operation runs by itself, and it keeps the most."""
    schedule, extras = row.text("schedule").lower(), row.text("extras").lower()
    if "fsdp" not in schedule:
        is_captured = row.is_moe and row.release >= CAPTURED_SINCE and GRAPHED.search(row.text("gpu"))
        if is_captured or says(extras, ROUTED_GRAPH if row.is_moe else WHOLE_GRAPH.pattern):
            return "captured"
        if traits.fuses_loss and FUSED_LOSS.search(extras):
            return traits.fuses_loss
        if traits.fuses:
            return traits.fuses
        is_fused = FUSING.search(f"{schedule} {extras} {row.text('source_repo').lower()}")
        return "fused" if is_fused or "compile" in extras else UNKNOWN_SOFTWARE
    if "eager" in extras:
        return "eager"
    return "compiled" if "compile" in extras or "fsdp2" in schedule else "eager, fused loss"


def attention_of(
    row: TrainingRow, model: ModelSpec, traits: Traits, day: str, assumptions: list[str]
) -> Attention:
    """How attention is computed: as its time had it; with sinks (a learned term of every softmax), unfused."""
    if traits.attention != "flash":
        assumptions.append("attention writes its scores: the run came before FlashAttention")
    elif "" < day < FUSED_ATTENTION_SINCE:
        assumptions.append("attention writes its scores: the run came before FlashAttention")
        return "unfused"
    elif model.architecture == "gpt_oss" and row.release < CAPTURED_SINCE:
        assumptions.append("attention with sinks writes its scores: fused kernels did not have them")
        return "unfused"
    return traits.attention


def overlap_of(
    row: TrainingRow, traits: Traits, tp: int, pp: int, sharding: str, assumptions: list[str]
) -> tuple[str, ...]:
    """Communication beside computes: what the software is known for, and what the row's extras say, which wins."""
    extras = row.text("extras").lower()
    usual = traits.beside(sharding, is_piped=pp > 1)
    said = {
        "reduce": says(extras, r"overlap[^;]*grad-reduce"),
        "gather": says(extras, r"overlap[^;]*param-gather"),
        "tp": says(extras, TP_OVERLAP),
        "ep": says(extras, EP_OVERLAP) if row.is_moe else False,
    }
    if tp > 1 and said["tp"] is None and PARTLY.search(extras):
        assumptions.append(
            "asynchronous communication of tensor parallelism hides gathers in part: counted as waited for"
        )
    found = tuple(name for name, word in said.items() if (name in usual if word is None else word))
    return found if tp > 1 else tuple(name for name in found if name != "tp")


def dispatch_of(row: TrainingRow, traits: Traits) -> Dispatch:
    """How tokens go to their experts: as the row's extras say, else as their software sends them."""
    extras = row.text("extras").lower()
    is_once = says(extras, SENT_ONCE)
    if is_once is None and says(extras, SENT_AS_COPIES):
        return "copies"
    return traits.dispatch if is_once is None else "once" if is_once else "copies"


def says(text: str, name: str) -> bool | None:
    """Does a text name something, or deny it ("no asyncTP", "tp_comm_overlap=off")? None: neither."""
    found = re.search(name, text)
    if found is None:
        return None
    behind = re.split(r"[;,)]", text[found.end() :])[0].strip()
    is_off = bool(behind) and re.split(r"[\s=:]+", behind)[-1] in OFF
    return not (is_off or DENIED_BEFORE.search(text[: found.start()]))


def reduction_dtype_of(row: TrainingRow, traits: Traits) -> str:
    """Format in which gradients are reduced; Composer's PURE has it in the row."""
    if "mixed_precision=pure" in row.text("extras").lower():
        return "bfloat16"
    return traits.reduces_in


def sharding_degree_of(row: TrainingRow, num_copies: int, assumptions: list[str]) -> int:
    """Devices that share one copy: the row's "group size", 0 (all) where there is none or it does not divide."""
    found = GROUP.search(row.text("extras").lower())
    if found is None:
        return 0
    degree = int(found[1])
    if degree < 1 or num_copies % degree:
        assumptions.append(f"a group of {degree} does not divide dp x cp = {num_copies}: all share one copy")
        return 0
    return 0 if degree == num_copies else degree


def method_of(row: TrainingRow) -> str:
    """The vocabulary's method: empty where the row names none."""
    found = METHOD.search(row.text("extras").lower())
    return found[1] if found else ""


def vocabulary_of(row: TrainingRow) -> Vocabulary:
    """Where the vocabulary's layers are. Raises SpecError for a method that is not known."""
    method = method_of(row)
    if method and method not in VOCABULARY_METHODS:
        raise SpecError(
            f"{row.where}: extras has method={method}",
            allowed=", ".join(f"method={m}" for m in VOCABULARY_METHODS),
        )
    return VOCABULARY_METHODS[method] if method else "ends"


Order = Literal["1f1b", "interleaved_1f1b", "gpipe", "zb_h1"]


def schedule_of(row: TrainingRow, num_chunks: int) -> Order:
    """The pipeline's schedule: as the row says, interleaved where a device has several chunks."""
    text = row.text("schedule").lower()
    if num_chunks > 1:
        return "interleaved_1f1b"
    if "gpipe" in text:
        return "gpipe"
    if re.search(r"\bzb|zero[ -]?bubble", text):
        return "zb_h1"
    return "1f1b"


def redistributed(num_layers: int, num_stages: int, head_blocks: float) -> tuple[int, ...]:
    """Blocks a stage when the last one also has a head that costs as much as `head_blocks` blocks.

    The largest stage is as small as can be to within 5 %, with as few blocks moved as that takes; the other stages
    share what is left, the later ones get the remainder.
    """
    if num_stages == 1:
        return (num_layers,)
    others = num_stages - 1

    def largest(last: int) -> float:
        return max(last + head_blocks, -((last - num_layers) // others))

    choices = range(num_layers // num_stages, -1, -1)
    least = min(largest(last) for last in choices)
    last = next(last for last in choices if largest(last) <= least * WORTH_MOVING)
    share, rest = divmod(num_layers - last, others)
    return (*(share + (stage >= others - rest) for stage in range(others)), last)


def by_cumulative_cost(num_layers: int, num_stages: int, head_blocks: float) -> tuple[int, ...]:
    """Blocks a stage where each goes to the stage of the one before it, or to the next one once the cost up to there exceeds
    that stage's equal share; the head costs as much as `head_blocks` blocks."""
    share = (num_layers + head_blocks) / num_stages
    counts, stage = [0] * num_stages, 0
    for cost in range(1, num_layers + 1):
        counts[stage] += 1
        stage += cost > share * (stage + 1)
    return tuple(counts)


def with_vocabulary_as_layers(num_layers: int, num_stages: int) -> tuple[int, ...] | None:
    """Counts with embedding and head as a layer each, as Megatron-LM splits 126 layers over 64; None: it does not divide."""
    share, rest = divmod(num_layers + 2, num_stages)
    if rest or num_stages < 2 or share < 1:
        return None
    counts: Sequence[int] = (share - 1, *(share for _ in range(num_stages - 2)), share - 1)
    return tuple(counts)
