"""Traits: what a training stack does where nobody says otherwise; found by the words that name the software, and its time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from meshwright.specs.plan.plan import Attention, Dispatch

# Fused attention began with FlashAttention (arXiv 2205.14135, of that day); a run of an earlier date wrote its scores.
FUSED_ATTENTION_SINCE = "2022-05-27"
GRADIENTS, SHARDED = ("reduce",), ("reduce", "gather")


@dataclass(frozen=True)
class Traits:
    """What a stack does where a configuration, a log or a row of a table says nothing else of it.

    Attributes:
        stack: its name; empty: nobody knows it, and these are the plain traits.
        named_by: words that name it, as a regular expression. until: the day (ISO) up to which it did so; empty: it does.
        fuses: efficiency class of its kernels (`specs.plan.software`); empty: what is said besides decides.
        overlaps: communication that runs beside computes; None: gradients, and parameters where these are sharded.
        pipeline_overlaps: the same where stages are piped, if that is something else.
        states_overlaps: the same where an optimizer's state is sharded, if that is something else.
        shards: ZeRO's number.
        reduces_in: format in which gradients are summed.
        attention: "unfused_dropout" writes scores and drops some of them.
        balances: "evenly", or "by cost": blocks go to a stage until its share of all products is exceeded, head included.
        has_whole_experts: no expert is divided along tp.
        dispatch: how tokens go to their experts.
        broadcasts_states: stepped parameters are sent by a broadcast of each member, one after another, not gathered.
        fuses_loss: the class where a run says that its loss is fused; empty: no other.
        reports: what its log calls memory: what tensors take ("allocated"), or what the allocator holds ("reserved"); empty:
            nobody knows. reports_of: the "fullest" device of a pipeline, or the "first".
        reference: where that stands.
    """

    stack: str = ""
    named_by: str = ""
    until: str = ""
    fuses: str = ""
    overlaps: tuple[str, ...] | None = None
    pipeline_overlaps: tuple[str, ...] | None = None
    states_overlaps: tuple[str, ...] | None = None
    shards: int = 0
    reduces_in: str = "float32"
    attention: Attention = "flash"
    balances: Literal["evenly", "by cost"] = "evenly"
    has_whole_experts: bool = False
    dispatch: Dispatch = "copies"
    broadcasts_states: bool = False
    fuses_loss: str = ""
    reports: Literal["", "allocated", "reserved"] = ""
    reports_of: Literal["fullest", "first"] = "fullest"
    reference: str = "general rule for software that is not known"

    def beside(self, sharding: str, *, is_piped: bool) -> tuple[str, ...]:
        """Communication that runs beside computes, in a plan that shards so, or pipes its stages."""
        if sharding != "none" and self.states_overlaps is not None:
            return self.states_overlaps
        if is_piped and self.pipeline_overlaps is not None:
            return self.pipeline_overlaps
        if self.overlaps is not None:
            return self.overlaps
        return SHARDED if sharding == "zero3" else GRADIENTS


PLAIN = Traits()
# The first whose words are there counts: what is built on another one stands before it.
STACKS = (
    Traits(
        "torchtitan", "torchtitan", overlaps=SHARDED, reports="reserved",
        reference="FSDP2 prefetches parameters and reduces gradients in float32 beside the backward; its memory column is "
        "max_reserved (components/metrics.py)",
    ),
    Traits(
        "llm-foundry", "llm-foundry|composer|fsdp_mixed_precision", overlaps=SHARDED,
        reference="PyTorch FSDP prefetches parameters and reduces gradients beside the backward; Composer's DEFAULT reduces "
        "in float32, PURE in bfloat16",
    ),
    Traits(
        "nanotron", "nanotron", fuses="eager, float32 sums", states_overlaps=(), balances="by cost", reports="reserved",
        reports_of="first",
        reference="nanotron: PyTorch's modules run eagerly; with ZeRO and sums in float32 there is no DDP, and gradients are "
        "reduced behind the last backward (trainer.py); build_model balances pipeline blocks by get_block_compute_costs; "
        "rank 0 logs allocated and reserved (helpers.py), and only the latter knows activations, as log_memory resets peaks "
        "behind every backward of the first five steps (trainer.py) and a benchmark ends with the third",
    ),
    Traits(
        "InternEvo", "internevo", fuses="fused", overlaps=GRADIENTS, shards=1, reduces_in="bfloat16", broadcasts_states=True,
        reference="InternEvo's 7B configuration: overlap_sync_grad on, overlap_sync_param off; gradients in bfloat16; "
        "broadcast_params of its HybridZeroOptimizer",
    ),
    Traits(
        "Megatron-DeepSpeed, early", "megatron[-_ ]?deepspeed|gpt-?neox", until=FUSED_ATTENTION_SINCE,
        fuses="fused, float32 sums", pipeline_overlaps=(), attention="unfused_dropout",
        reference="DeepSpeed's pipeline engine sums gradients behind the last backward (runtime/pipe/schedule.py); "
        "--attention-dropout is 0.1 where nobody says otherwise (arguments.py)",
    ),
    Traits(
        "Megatron-DeepSpeed", "megatron[-_ ]?deepspeed|gpt-?neox", fuses="fused, float32 sums",
        pipeline_overlaps=(),
        reference="DeepSpeed's pipeline engine sums gradients behind the last backward (runtime/pipe/schedule.py)",
    ),
    Traits(
        "DeepSpeed", "deepspeed", fuses="eager", pipeline_overlaps=(),
        reference="DeepSpeed runs PyTorch's modules; its pipeline engine sums gradients behind the last backward",
    ),
    Traits(
        "Megatron-LM, early", "megatron", until=FUSED_ATTENTION_SINCE, fuses="fused", overlaps=(),
        attention="unfused_dropout",
        reference="arXiv 2104.04473 and 2205.05198: nothing overlapped, before FlashAttention; --attention-dropout is 0.1",
    ),
    Traits(
        "Megatron-LM", r"megatron|\bnemo\b|primus", fuses="fused", overlaps=SHARDED, shards=1,
        reference="Megatron-LM's README: distributed optimizer, gradients reduced and parameters gathered beside computes",
    ),
)  # fmt: skip


def traits_of(texts: Iterable[str], day: str = "") -> Traits:
    """The traits of the software that the first of these texts names; the plain ones where none does.

    Args:
        texts: what is said of a run, the surest first.
        day: when it ran, as ISO; empty: nobody knows.
    """
    for text in texts:
        for traits in STACKS:
            if re.search(traits.named_by, text.lower()) and (not traits.until or "" < day < traits.until):
                return traits
    return PLAIN
