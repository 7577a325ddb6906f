"""How each step of a chain reads and makes values along the axes of a stage: what `verify` proves the exchanges with.

A part of a block, the head and the table work on a part of their outputs each: what they read is shared, what they add to the
stream is a term of a sum. All other steps do the same with what the residual stream is: divided by tokens with sequence or
context parallelism, else a copy. Declared here for every step, never taken from the exchanges beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from meshwright.ir.layout import COPIED, PARTIAL, SHARED, layout_text
from meshwright.stage.chain.chain import (
    BY_EXPERTS,
    BY_HEADS,
    BY_INNER,
    BY_TOKENS,
    BY_VOCABULARY,
    ChainStep,
    Moved,
    Relay,
)

STREAM = "stream"  # whatever the residual stream is
Layouts = Mapping[str, str]


class StepLayout(NamedTuple):
    """Layouts of what a step reads and makes along an axis: of all, or of values by name."""

    reads: str | Layouts
    writes: str | Layouts


Steps = Mapping[str, StepLayout]
OF_STREAM = StepLayout(STREAM, STREAM)
_TO_HEADS, _OF_HEADS = StepLayout(SHARED, BY_HEADS), StepLayout(BY_HEADS, BY_HEADS)
# All have what was chosen, and each makes rows of its own tokens.
OF_ALL_CHOSEN = StepLayout(
    {**dict.fromkeys(("normed", "entered", "own_gates", "shares"), STREAM), "all_chosen": SHARED}, STREAM
)
# By axis of attention the steps that do not do the same with the residual stream on every device along it.
LAYOUTS_ALONG: Mapping[str, Steps] = {
    "tp": {
        **dict.fromkeys(("embedding", "target_embedding"), StepLayout(STREAM, PARTIAL)),
        **dict.fromkeys(
            ("attention", "cross_attention", "mlp", "shared_experts"), StepLayout(SHARED, PARTIAL)
        ),
        **dict.fromkeys(
            ("heads", "separate_heads", "head_parts", "qkv", "cross_query", "cross_key_value"), _TO_HEADS
        ),
        **dict.fromkeys(
            ("attention_core", "attention_of_heads", "causal_attention", "chunk_attention", "cross_core"),
            _OF_HEADS,
        ),
        **dict.fromkeys(("full_scores", "weighted_values", "heads_of_group", "tokens_of_group"), _OF_HEADS),
        **dict.fromkeys(
            ("attention_output", "output_of_parts", "cross_output"), StepLayout(BY_HEADS, PARTIAL)
        ),
        "gate_up": StepLayout(SHARED, BY_INNER),
        "down": StepLayout(BY_INNER, PARTIAL),
        "head": StepLayout(SHARED, {"logits": BY_VOCABULARY, "largest": PARTIAL}),
        "exponentials": StepLayout({"logits": BY_VOCABULARY, "maximum": COPIED}, PARTIAL),
        "split_cross_entropy": StepLayout(COPIED, COPIED),
        "dispatch": OF_ALL_CHOSEN,
    },
    # every device has its tokens of all values, and of whole sequences those that it reads the keys of
    "cp": {
        "attention_core": StepLayout({"query": STREAM, "block": STREAM, "all_blocks": SHARED}, STREAM),
        "attention_of_heads": _OF_HEADS,
        "dispatch": OF_ALL_CHOSEN,
    },
}


# Along the axis of neighbours that exchange heads inside a ring.
HEADS_OF_GROUP: Steps = dict.fromkeys(("heads_of_group", "attention_core", "tokens_of_group"), _OF_HEADS)
# Of blocks whose experts are on other devices than attention's matrices, along an axis of experts where tokens are divided as
# the stream is: rows have gone to the devices of their experts; or to all that share these, each of which has a part of
# every expert.
EXPERTS_OF_ROWS: Steps = {"experts": StepLayout(BY_EXPERTS, BY_EXPERTS)}
EXPERTS_OF_ALL_ROWS: Steps = {"experts": StepLayout(SHARED, PARTIAL)}
# Along tp, where all have the same stream: every device looks for the experts of all tokens and has a part of each of
# them; or it looks for those of its part of the tokens, and adds nothing for the others.
EXPERTS_OF_COPIES: Steps = {
    **dict.fromkeys(("router", "dispatch"), StepLayout(SHARED, SHARED)),
    **dict.fromkeys(("collected", "forwarded"), StepLayout(SHARED, SHARED)),
    "experts": StepLayout(SHARED, PARTIAL),
    "spread": StepLayout({"far_results": PARTIAL, "near_counts": SHARED}, PARTIAL),
    "summed_rows": StepLayout({"near_results": PARTIAL, "near_order": SHARED}, PARTIAL),
    "combine": StepLayout(
        {
            **dict.fromkeys(("results", "own_results", "returned"), PARTIAL),
            "gates": SHARED, "order": SHARED, "partial": PARTIAL,
        },
        PARTIAL,
    ),
}  # fmt: skip
COMBINED_PARTS = StepLayout(
    {
        **dict.fromkeys(("results", "own_results", "returned", "gates", "order"), BY_TOKENS),
        "partial": PARTIAL,
    },
    PARTIAL,
)
EXPERTS_OF_OWN_TOKENS: Steps = {
    "router": StepLayout(SHARED, BY_TOKENS),
    "dispatch": StepLayout(
        {
            **dict.fromkeys(("normed", "entered", "all_chosen"), SHARED),
            **dict.fromkeys(("own_gates", "shares"), BY_TOKENS),
        },
        BY_TOKENS,
    ),
    **dict.fromkeys(
        ("collected", "forwarded", "experts", "spread", "summed_rows"), StepLayout(BY_TOKENS, BY_TOKENS)
    ),
    "combine": COMBINED_PARTS,
}
# Along axes of neighbours that collect rows for each other: these have gone there before.
COLLECTED_ROWS: Steps = dict.fromkeys(("collected", "spread"), StepLayout(BY_EXPERTS, BY_EXPERTS))
# Along axes of groups of neighbours, one of which gets a token once, and forwards it to the others.
FORWARDED_ROWS: Steps = dict.fromkeys(("forwarded", "summed_rows"), StepLayout(BY_EXPERTS, BY_EXPERTS))
EXPERTS_OF_OWN_ROWS: Steps = {**EXPERTS_OF_OWN_TOKENS, **EXPERTS_OF_ROWS}


# Along tp, where the parts of all blocks are parallel branches: what they read has entered once, in front of their norms.
BRANCHES: Steps = {
    **dict.fromkeys(("attention_norm", "mlp_norm"), StepLayout(SHARED, SHARED)),
    "add_branch": StepLayout(PARTIAL, PARTIAL),
}


def laid_out(
    item: ChainStep | Moved | Relay, streams: Layouts, steps: Mapping[str, Steps] = LAYOUTS_ALONG
) -> ChainStep | Moved | Relay:
    """A step with its layouts along axes; ``streams``: those of the residual stream. ``steps``: by axis those that do not do
    the same with it on every device."""
    if isinstance(item, Moved):
        return item
    if isinstance(item, Relay):
        return item._replace(step=_laid_step(item.step, streams, steps))
    return _laid_step(item, streams, steps)


def _laid_step(item: ChainStep, streams: Layouts, steps: Mapping[str, Steps]) -> ChainStep:
    own = {axis: steps.get(axis, {}).get(item.name, OF_STREAM) for axis in streams}
    return item._replace(
        read_layouts=tuple(_text(streams, {a: how.reads for a, how in own.items()}, n) for n in item.reads),
        write_layouts=tuple(
            _text(streams, {a: how.writes for a, how in own.items()}, n) for n in item.writes
        ),
    )


def _text(streams: Layouts, said: Mapping[str, str | Layouts], name: str) -> str:
    found = {axis: how if isinstance(how, str) else how[name] for axis, how in said.items()}
    return layout_text({axis: streams[axis] if how == STREAM else how for axis, how in found.items()})
