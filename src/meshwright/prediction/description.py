"""Plans in words: what was decided, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from meshwright.specs.model.layers import split_layers
from meshwright.specs.plan.plan import AXES, Plan
from meshwright.specs.sequence.context_parallel import ARRANGEMENT_OF

LONGEST_LAYERS = 40  # characters: more stages than that are told by their smallest and largest
PLAIN_SCHEDULES = ("1f1b", "gpipe")  # that need no explanation; every framework has the first
LEAST_RUN = 3  # as many equal stages in a row are told as one


def describe(plan: Plan) -> str:
    """A plan in a few words: degrees, schedule, microbatch, layers where they are uneven, what is recomputed and split."""
    degrees = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep}
    words = [
        f"pp={plan.pp} dp={plan.dp}",
        *(f"{axis}={degree}" for axis, degree in degrees.items() if degree > 1),
        expert_words(plan),
        context_words(plan),
        plan.sharding if plan.sharding != "none" else "",
        plan.schedule if plan.pp > 1 else "",
        f"microbatch {plan.microbatch_size}",
        parts_words(plan),
    ]
    if plan.layers_per_stage != split_layers(plan.model.num_layers, plan.num_stages):
        words.append(f"layers {layers_words(plan.layers_per_stage)}")
    words.append(recompute_words(plan))
    words.append(gathered_words(plan))
    words.append(dispatch_words(plan))
    words.append(beside_words(plan))
    words.append(vocabulary_words(plan))
    words += ["split backward"] if plan.split_backward else []
    return " ".join(word for word in words if word)


def num_choices(plan: Plan) -> int:
    """How many things of a plan are not as usual: the fewer, the simpler it is to run. Data parallelism and the size of a
    microbatch do not count."""
    is_even = plan.layers_per_stage == split_layers(plan.model.num_layers, plan.num_stages)
    chosen = (
        *(degree > 1 for degree in (plan.tp, plan.cp, plan.ep, plan.pp)),
        plan.pp > 1 and plan.schedule not in PLAIN_SCHEDULES,
        plan.num_chunks > 1,
        not is_even,
        plan.sharding != "none",
        plan.sharding_degree,
        plan.recompute != "none",
        sum(plan.num_recomputed_blocks) not in (0, plan.model.num_layers),
        plan.mesh_order != AXES,
        plan.split_backward,
        *(
            words(plan)
            for words in (
                expert_words,
                beside_words,
                context_words,
                parts_words,
                gathered_words,
                vocabulary_words,
            )
        ),
    )
    return sum(map(bool, chosen))


def expert_words(plan: Plan) -> str:
    """How many devices share an expert's matrices, where it is not as tp and ep have it."""
    return f"etp={plan.expert_tp}" if plan.model.num_experts and plan.has_own_expert_tp else ""


def context_words(plan: Plan) -> str:
    """How sequences are divided, where it is not by the usual ring."""
    if plan.cp == 1:
        return ""
    said = (
        f"context {plan.context}" if plan.context != Plan.context else "",
        f"{plan.token_layout} tokens" if plan.token_layout not in ("", ARRANGEMENT_OF[plan.context]) else "",
        f"ulysses {plan.ulysses}" if plan.ulysses > 1 else "",
    )
    return ", ".join(each for each in said if each)


def gathered_words(plan: Plan) -> str:
    """What becomes of what sequence parallelism gathers, where it is not as usual."""
    return f"gathered {plan.gathered}" if plan.sequence_parallel and plan.gathered != Plan.gathered else ""


def dispatch_words(plan: Plan) -> str:
    """How tokens go to experts, where it is not as usual."""
    return f"dispatch {plan.dispatch}" if plan.ep > 1 and plan.dispatch != Plan.dispatch else ""


def beside_words(plan: Plan) -> str:
    """Where all-to-alls of tokens run beside another microbatch's experts."""
    return "tokens beside experts" if plan.ep > 1 and "ep" in plan.overlap else ""


def vocabulary_words(plan: Plan) -> str:
    """How the vocabulary is split, where it is not on the first and the last stage."""
    split = plan.vocabulary != Plan.vocabulary and plan.pp > 1
    return f"vocabulary {plan.vocabulary.replace('_', ' ')}" if split else ""


def parts_words(plan: Plan) -> str:
    """Samples of the parts of a microbatch, or tokens of the chunks of its sequences, where it is cut."""
    if not plan.has_parts:
        return ""
    if plan.has_chunks:
        return f"in chunks of {'+'.join(str(part.num_tokens) for part in plan.parts)} tokens"
    return f"in parts of {'+'.join(str(part.num_samples) for part in plan.parts)}"


def layers_words(layers: Sequence[int]) -> str:
    """Layers of every stage, equal neighbours as runs: 1+62x2+1; where that is long, from the smallest to the largest."""
    words: list[str] = []
    for count, run in groupby(layers):
        number = len(list(run))
        words += [f"{number}x{count}"] if number >= LEAST_RUN else [str(count)] * number
    told = "+".join(words)
    if len(told) <= LONGEST_LAYERS:
        return told
    return f"{min(layers)} to {max(layers)} on each of {len(layers)} stages"


def recompute_words(plan: Plan) -> str:
    """What is recomputed, and of how many blocks of the model where not of all; nothing without recompute."""
    if plan.recompute == "none":
        return ""
    kind = "recompute" if plan.recompute == "full" else f"recompute {plan.recompute}"
    again, blocks = sum(plan.num_recomputed_blocks), plan.model.num_layers
    return kind if again == blocks else f"{kind} {again} of {blocks} blocks"
