"""Chunks of an expert layer's tokens on three resources: between nodes, inside a node, and compute; gradients in the holes.

Paper:      FSMoE: A Flexible and Scalable Training System for Sparse Mixture-of-Experts Models, Xinglin Pan, Wenxiang Lin,
            Lin Zhang, Shaohuai Shi, Zhenheng Tang, Rui Wang, Bo Li, Xiaowen Chu, 2025, arXiv 2501.10714
Problem:    Systems put an expert layer's exchanges on one stream beside computes, though those between nodes and those inside
            a node hold different links; and they reduce gradients without asking where links are idle.
Idea:       Tokens go in r chunks: all-to-all a, all-gather g, experts e, reduce-scatter s, all-to-all a of each, every one a
            startup and a share 1/r of its size. With gradients of t seconds a pass takes 2 r a + t, 2 a + g + s + r e,
            2 r a + g + s, or 2 a + r (g + s), by what binds. Forward and backward choose r apart. Gradients are cut so that
            they fill what is left of links between nodes: attention's backward, and the hole of each layer's experts.
Kind:       planner
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --planner fs_moe; what a layer of yours takes on
            processes here, part by part, and in how many it is then cut: meshwright run 'fs_moe(model="MODEL", batch=4,
            seq=128)'; another routing function: --variant 'fs_moe(gate=x_moe)' of plan and train
Simulated:  the list schedule of the chunks as rows on three streams; the 1,458 layers of the paper's grid by its constants
Executed:   parts of a microbatch beside experts of another part, in train (gloo, and the same code on CUDA); gates of GShard,
            X-MoE and sigmoids there, too. Expert choice is a function of tensors (gates.py), for modules of one's own
Differs:    1. Sizes behind the constants are not said. Ours are those of NCCL's tests (of a gather the whole), in 16 bits,
            experts over nodes, each shared in its node. With a gather's share instead, the third form is up to 17 % too long.
            2. Constants of cluster A are as printed: an all-gather and an all-reduce cost ten times as much for a byte as a
            reduce-scatter, so a gather hides all else, and degrees hardly differ. So A's gain is small here.
            3. r is tried from 1 to 16, where the paper rounds a solver's real number. Leftover gradients need no
            differential evolution: beyond the holes each second costs a second wherever it stands.
            4. Tutel here: one stream, one r for both passes, gradients behind. PipeMoE with Lina is not here. In `train`
            both of GShard's experts are kept (its function draws the second); expert choice is refused for decoders: whether
            an expert takes a token depends on tokens behind it. The paper's milliseconds of gates (its table) are no claim:
            sizes are not told.
            5. A plan has one number of parts, for forward and backward, and cuts whole samples (or tokens of sequences).
            What is measured here has no exchanges inside a node: each process is a node.
            6. The models of the headline are known by parts of one layer each; what their layers took is not.
"""

from __future__ import annotations

from meshwright.systems.moe.fs_moe import published
from meshwright.systems.moe.fs_moe.chunk_program import simulated_seconds
from meshwright.systems.moe.fs_moe.grid import mean_speed_up, num_with_two_degrees, priced, settings
from meshwright.systems.moe.fs_moe.mechanism import ExpertLayer, best_chunks, layer_seconds

__all__ = ["mean_speed_up", "num_with_two_degrees"]
FILLS = {
    "planner": "planner:planned", "variant": "routing_function:RoutingFunction", "job": "job:LayerProfile",
}  # fmt: skip
CLAIMS = (
    {
        "claim": "cluster {cluster}, {direction}: closed form over the simulated list schedule, the setting that is off most",
        "kind": "identity",
        "unit": "x",
        "tolerance": 0.02,
        "reason": "the acceptance of this system",
        "how": "all 1,458 settings, r by brute force",
        "by": "form_over_schedule",
        "source": "section 4: four cases",
        "cases": (
            ({"cluster": "A", "direction": "forward"}, 1.0),
            ({"cluster": "A", "direction": "backward"}, 1.0),
            ({"cluster": "B", "direction": "forward"}, 1.0),
            ({"cluster": "B", "direction": "backward"}, 1.0),
        ),
    },
    {
        "claim": "cluster {cluster}: mean speed-up over Tutel of {schedule} on 1,458 layers",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off: sizes behind the constants are not known",
        "how": "closed forms by the paper's constants, attention by its products",
        "by": "mean_speed_up",
        "source": "abstract, 1.18 to 1.22 x; table of the grid",
        "null": {"no effect": 1.0},
        "cases": (
            ({"cluster": "A", "schedule": "FSMoE"}, 1.18),
            ({"cluster": "B", "schedule": "FSMoE"}, 1.22),
            ({"cluster": "A", "schedule": "Tutel-Improved"}, 1.09),
            ({"cluster": "B", "schedule": "Tutel-Improved"}, 1.08),
        ),
    },
    {
        "claim": "cluster {cluster}: of 1,458 layers those whose two passes are best in different numbers of chunks",
        "kind": "predicted",
        "unit": "layers",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off; the paper does not say of which cluster it counts",
        "how": "as above",
        "by": "num_with_two_degrees",
        "source": "section 4: 912 of 1,458",
        "null": {"no effect": 0.0},
        "cases": (({"cluster": "A"}, 912.0), ({"cluster": "B"}, 912.0)),
    },
    {
        "claim": "GPT-2 and Mixtral with experts on both clusters: {which} speed-up over {over}",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off",
        "how": "closed forms of one layer by the paper's table of parts; a model is its layers",
        "by": "speed_up_of_models",
        "source": "abstract, 1.19 to 3.01 x; evaluation of models",
        "null": {"no effect": 1.0},
        "cases": (
            ({"which": "mean", "over": "Tutel"}, 1.19),
            ({"which": "mean", "over": "Tutel-Improved"}, 1.12),
            ({"which": "least", "over": "DeepSpeed-MoE"}, 1.28),
            ({"which": "most", "over": "DeepSpeed-MoE"}, 3.01),
        ),
    },
    {
        "claim": "here, 2 processes, {token_parts} parts: parameters after three steps, largest difference to one process",
        "kind": "measured",
        "unit": "absolute",
        "tolerance": 1e-8,
        "reason": "the project's acceptance in float64",
        "how": "a decoder of two expert layers with four experts, half of them on each process",
        "by": "study:parameter_difference",
        "source": "chunks of tokens meet the same experts",
        "cases": (({"token_parts": 2}, 0.0), ({"token_parts": 4}, 0.0)),
    },
    {
        "claim": "here, 2 processes, 2 parts, gates of {gate}: parameters after three steps, difference to one process",
        "kind": "measured",
        "unit": "absolute",
        "tolerance": 1e-8,
        "reason": "the project's acceptance in float64",
        "how": "as above, the model made by this system's variant",
        "by": "study:gate_difference",
        "source": "gates are a module of the layer",
        "cases": (({"gate": "gshard"}, 0.0), ({"gate": "sigmoid"}, 0.0), ({"gate": "x_moe"}, 0.0)),
    },
)


def speed_up_of_models(which: str, over: str) -> float:
    """The least, the most or the mean of four layers."""
    return published.speed_up_of_models(over, which)


def sampled(cluster: str, direction: str, every: int = 1) -> list[tuple[ExpertLayer, int, float]]:
    """Layers of the grid, each with its best number of chunks, and seconds of gradients in a backward."""
    found = []
    for setting in list(settings(cluster))[::every]:
        layer = priced(cluster, setting)
        is_backward = direction == "backward"
        experts = layer.experts.backward() if is_backward else layer.experts
        gradients_s = layer.gradients_s if is_backward else 0.0
        found.append((experts, best_chunks(experts, gradients_s), gradients_s))
    return found


def form_over_schedule(cluster: str, direction: str, every: int = 1) -> float:
    """Of the settings the ratio that is farthest from one."""
    ratios = [layer_seconds(*each) / simulated_seconds(*each) for each in sampled(cluster, direction, every)]
    return max(ratios, key=lambda ratio: abs(ratio - 1))
