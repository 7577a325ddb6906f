"""The survey's taxonomy: for every heading the code here that is of it, or why there is none; and the page that says so.

`code` of a topic: FILE:NAME below the package, or the name of a slot. ``use``: a command in which MODEL, and words for what
follows from a model's dimensions, are filled in.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec

PACKAGE = Path(__file__).parents[3]
SLOT = "slot "
MOST_DEVICES = 8  # of a node, for which degrees are named


@dataclass(frozen=True)
class Topic:
    """A heading of the survey, its levels from the outermost. Either ``code``, or ``why_not``."""

    heading: tuple[str, ...]
    code: tuple[str, ...] = ()
    said: str = ""
    use: str = ""
    why_not: str = ""

    @property
    def is_here(self) -> bool:
        """Is there code of it?"""
        return bool(self.code)


CHANGES_OUTPUT = (
    "it changes what a model answers, and is judged by that; a plan here is of the model as it is"
)
TAXONOMY = (
    Topic(
        ("model", "architecture", "attention modules"),
        ("specs/model/block.py:Attention", "executor/models/part/latent_attention.py:LatentAttention"),
        "grouped queries, windows, latent attention (planned, trained, and served from pages of latents)",
        "meshwright show MODEL",
    ),
    Topic(
        ("model", "architecture", "MoE modules"),
        ("executor/models/part/mixture.py:MixtureOfExperts", "executor/ops/expert/routing.py:route"),
        "softmax or sigmoid routers, groups, corrections, shared experts, dense layers between",
        "meshwright show MODEL",
    ),
    Topic(("model", "compression", "pruning"), why_not=CHANGES_OUTPUT),
    Topic(
        ("model", "compression", "quantization"),
        ("serving/stored/quantisation.py:layout_of",),
        "weights that others have quantised are read and served; nothing here quantises experts apart",
        "meshwright serve MODEL",
    ),
    Topic(("model", "compression", "distillation"), why_not="a second model teaches, which no recipe of a training has"),
    Topic(("model", "compression", "low-rank decomposition"), why_not=CHANGES_OUTPUT),
    Topic(("model", "expert skip and adaptive gating"), why_not=CHANGES_OUTPUT),
    Topic(("model", "expert merge"), why_not=CHANGES_OUTPUT),
    Topic(("model", "sparse to dense"), why_not=CHANGES_OUTPUT),
    Topic(
        ("system", "expert parallelism", "parallelism design"),
        (
            "executor/models/chain/expert_steps.py:experts", "stage/mesh.py:expert_axes",
            "executor/serving/part/held_experts.py:HeldExperts",
        ),
        "experts over devices of their own, beside tensor, context, data and pipeline parallelism; served (`serve --tp N "
        "--ep N`), whole ones on each device, which all have the tokens",
        "meshwright plan MODEL 1xDEVICESxH100 --global-batch 64 --seq 4096 --fix ep=DEVICES",
    ),
    Topic(
        ("system", "expert parallelism", "load balancing"),
        (
            "slot expert_placement", "specs/routing/balanced_experts.py:BalancedExperts",
            "systems/moe/hecate/placement.py:Hecate", "systems/moe/moe_tuner/mechanism.py:MoeTuner",
        ),
        "experts placed by a recorded routing, in a file that `train`, `serve`, `simulate` read (copies: the last two)",
        "meshwright place routing.npz --devices DEVICES --by eplb --by hecate --by moe_tuner",
    ),
    Topic(
        ("system", "expert parallelism", "all-to-all communication"),
        (
            "executor/handlers/chain_handler.py:exchange_rows", "costs/collective/nccl.py:NcclCollectives",
            "systems/moe/ex_flow/decode_rows.py:DecodeRows",
        ),
        "routed all-to-alls of run-time sizes, in two levels or a row once to each device where a plan says, priced by "
        "measured curves; one a layer where contexts are everywhere, in a study",
        "meshwright plan MODEL 1xDEVICESxH100 --global-batch 64 --seq 4096 --fix ep=DEVICES",
    ),
    Topic(
        ("system", "expert parallelism", "task scheduling"),
        ("lowering/segment/part_rows.py:in_turns", "systems/moe/expert_flow/mechanism.py:by_path"),
        "tokens in parts, so that an all-to-all of one runs beside experts of another; batches by path",
        "meshwright plan MODEL 1xDEVICESxH100 --global-batch 64 --seq 4096 --fix ep=DEVICES,token_parts=2",
    ),
    Topic(
        ("system", "expert offloading", "expert prefetching"),
        ("systems/moe/expert_flow/mechanism.py:Learned", "serving/weight/expert_place.py:ExpertCache"),
        "transitions between layers, counted while it serves",
        "meshwright serve MODEL --engine torch --weights 'expert_flow(slots=SLOTS, ahead=2)'",
    ),
    Topic(
        ("system", "expert offloading", "expert caching"),
        ("systems/moe/expert_flow/mechanism.py:SlotCache", "executor/serving/weight/expert_places.py:ExpertPlaces"),
        "least recent, least frequent, foretold, and Belady's bound",
        "meshwright serve MODEL --engine torch --weights 'expert_flow(slots=SLOTS, order=frequent)'",
    ),
    Topic(
        ("system", "expert offloading", "expert loading"),
        ("slot weights", "executor/serving/weight/block_window.py:BlockWindow"),
        "blocks in the order of their use through a window, from disk or a neighbour; or experts alone",
        "meshwright serve MODEL --engine torch --weights tpi_llm",
    ),
    Topic(
        ("system", "expert offloading", "CPU assist"),
        why_not="experts compute where attention does; no engine here divides a step between a host and a device",
    ),
    Topic(
        ("system", "others"),
        ("serving/policy/continuous_batching.py:ContinuousBatching", "serving/fleet/fleet.py:serve"),
        "continuous batching, fleets with routers, prefill apart from decode: of any decoder",
        "meshwright serve MODEL",
    ),
    Topic(
        ("hardware",),
        why_not="near-memory and FPGA accelerators of experts: no model of such a device below the instruction is here yet",
    ),
)  # fmt: skip


def is_there(code: str, slots: Sequence[str]) -> bool:
    """Is a place in the package, and the name defined in it; or is it a slot?"""
    if code.startswith(SLOT):
        return code.removeprefix(SLOT) in slots
    file, _, name = code.partition(":")
    path = PACKAGE / file
    if not path.is_file():
        return False
    defined = ast.parse(path.read_text(encoding="utf-8")).body
    return any(isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == name for each in defined)


def usable(model: ModelSpec, name: str) -> list[tuple[Topic, str]]:
    """Every topic that is here, and its command for a model: expert degrees that divide its experts, places for the experts
    of a token. Raises SpecError of a model without experts."""
    if not model.num_experts:
        raise SpecError(f"{model.name} has no experts", allowed="a mixture of experts")
    sizes = [block.experts for block in model.layers if block.experts]
    degree = max(each for each in range(1, MOST_DEVICES + 1) if model.num_experts % each == 0)
    slots = sum(each.num_experts_per_token for each in sizes)
    words = {"MODEL": name, "DEVICES": str(degree), "SLOTS": str(slots)}
    found = []
    for topic in TAXONOMY:
        command = topic.use
        for word, value in words.items():
            command = command.replace(word, value)
        if topic.is_here:
            found.append((topic, command))
    return found


def page() -> str:
    """The page, in Markdown."""
    lines = [
        "# moe_inference_survey",
        "",
        "The headings under which a survey of inference with experts puts the literature, and what of each is here.",
        "This page is made by `page()` of the system's mechanism; a test holds it to that, and every place to the tree.",
        "",
        "```text",
        "$ meshwright run 'moe_inference_survey(model=\"qwen3-30b-a3b\")'   # the commands, for a model of yours",
        "```",
        "",
        "| heading | here | where |",
        "|---|---|---|",
    ]  # fmt: skip
    for topic in TAXONOMY:
        heading = ", ".join(topic.heading)
        where = "<br>".join(f"`{code}`" for code in topic.code)
        lines.append(f"| {heading} | {topic.said or 'out of scope: ' + topic.why_not} | {where} |")
    num_here = sum(topic.is_here for topic in TAXONOMY)
    return "\n".join(
        [*lines, "", f"Of {len(TAXONOMY)} headings {num_here} have code, the others a reason.", ""]
    )
