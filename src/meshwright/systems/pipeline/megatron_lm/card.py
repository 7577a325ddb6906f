"""Tensor, pipeline and data parallelism together, with an interleaved schedule: PTD-P.

Paper:      Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, Deepak Narayanan,
            Mohammad Shoeybi, Jared Casper, Patrick LeGresley, Mostofa Patwary, Vijay Anand Korthikanti,
            Dmitri Vainbrand, Prethvi Kashinkunti, Julie Bernauer, Bryan Catanzaro, Amar Phanishayee, Matei Zaharia,
            2021, arXiv 2104.04473
Problem:    Each of tensor, pipeline and data parallelism alone stops to pay before thousands of GPUs.
Idea:       Tensor parallelism of degree t inside a node, p pipeline stages between nodes, d copies of that: n = p t d
            GPUs. A batch of B sequences is m = B / (d b) microbatches of b. With v chunks of layers a device the
            pipeline idles (p-1)/(v m) of the ideal time, for v times the messages. l layers of width h, sequences of
            s tokens and V words have P = 12 l h^2 (1 + 13/(12 h) + (V+s)/(12 l h)) parameters and cost
            F = 96 B s l h^2 (1 + s/(6 h) + V/(16 l h)) FLOPs an iteration with full recompute.
Kind:       recipe (its schedule is schedules/fixed/interleaved_1f1b.py)
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --fix schedule=interleaved_1f1b
Simulated:  the step of rows of Table 1 by the plan's program and fitted kernels and collectives; bubbles by equal costs
Executed:   no, because the rows need 32 A100 or more; the schedule runs on gloo for plans that fit (`train`)
Differs:    1. Every tensor-parallel rank sends 1/t of a message between stages, and the receivers gather it in the node, as
            the paper's scatter and gather does. Where each sends all of it, the gather stays in what is simulated. The
            paper shows in a figure what is gained, and no number of it is claimed; ours, for its 175B model of 12 stages
            with 4 chunks, is 4.8 % at 12 sequences and 1.1 % at 60.
            2. F counts attention to all tokens, as the kernels of 2021 and these plans compute it; FLOPs that other
            commands print count the earlier tokens only.
            3. Parameters are counted from the tensors, with the final norm that P leaves out.
            4. Kernels of 2021 are known where they matter most: attention writes its scores and a dropout follows. The
            other fused kernels are those of the software class "fused". Rates fall with the size of the model: what is
            missing weighs most at 1.7B, which is predicted too fast.
            5. The table of measured runs (`validate training`) knows less than the scripts: it counts these rows in
            bfloat16 with float32 sums, and 1.7B and 7.5B without overlap. Here they are float16 with float16 sums, and
            PyTorch's DistributedDataParallel reduces those two beside the backward.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.timing.matching import moved_codes
from meshwright.ir.value_space import value_space
from meshwright.lowering.textbook_pipeline import textbook_pipeline
from meshwright.prediction.predicted import predict
from meshwright.prediction.step_program import step_program
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.systems.megatron_table import (
    SEQUENCE_LENGTH,
    VOCABULARY_SIZE,
    check_positive,
    iteration_flops,
    model,
    plan,
    row,
)

# All paper values are of Table 1, as printed in NVIDIA/Megatron-LM, images/cases_april2021.png. The table gives TF/s a
# GPU and no seconds; a step takes F / (n TF/s). Claiming both would count one piece of evidence twice.
CLAIMS = (
    {
        "claim": "parameters of the {size} model, to 0.1 billion",
        "kind": "predicted",
        "unit": "billion",
        "tolerance": 1e-9,
        "reason": "both are rounded to 0.1 billion, so they are equal or not",
        "how": "the tensors of a GPT-2 model with the row's layers, width and vocabulary, counted and rounded; not P",
        "by": "billion_parameters",
        "cases": (
            ({"size": "1.7B"}, 1.7),
            ({"size": "7.5B"}, 7.5),
            ({"size": "39.1B"}, 39.1),
            ({"size": "145.6B"}, 145.6),
            ({"size": "529.6B"}, 529.6),
        ),
    },
    {
        "claim": "idle over ideal time of the pipeline of {size}: (p-1)/(v m)",
        "kind": "identity",
        "unit": "share",
        "tolerance": 1e-9,
        "reason": "equal stages and free messages: the schedule's own arithmetic",
        "how": "span of the simulated order over the busy time of a device, less one; paper_value is the formula",
        "by": "bubble_over_ideal",
        "cases": (
            ({"size": "39.1B"}, 0.08333333333333333),
            ({"size": "145.6B"}, 0.07291666666666667),
            ({"size": "529.6B"}, 0.04047619047619048),
        ),
    },
    {
        "claim": "bytes of an activation that a GPU of {size} sends to the next stage: 2 b s h / t",
        "kind": "identity",
        "unit": "bytes",
        "tolerance": 1e-9,
        "reason": "scatter and gather divide a message by t, and float16 has 2 bytes",
        "how": "size of what a SEND of the plan's program moves",
        "by": "sent_bytes",
        "cases": (
            ({"size": "39.1B"}, 16777216),
            ({"size": "145.6B"}, 12582912),
            ({"size": "529.6B"}, 10485760),
        ),
    },
    {
        "claim": "seconds of a step of {size}",
        "kind": "predicted",
        "unit": "s",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step; one job run by 16 vendors differs by 4 % (one standard "
        "deviation), the rest is for libraries of 2021",
        "how": "the plan's program simulated with constants that were fitted without any row of this paper; paper_value "
        "is F / (n TF/s) with the TF/s of the table",
        "by": "step_s",
        "cases": (
            ({"size": "1.7B"}, 3.528),
            ({"size": "7.5B"}, 3.6963),
            ({"size": "39.1B"}, 14.4535),
            ({"size": "145.6B"}, 24.8174),
            ({"size": "529.6B"}, 54.085),
        ),
    },
)
SOURCE = (
    "megatron_sc21"  # the name of this paper's rows among measured ones: constants are taken without them
)
BILLION = 1e9
FORWARD_S, BACKWARD_S = 1.0, 2.0  # of a stage: the unit of time where costs are equal


def num_parameters(num_layers: int, hidden_size: int, vocabulary_size: int, sequence_length: int) -> float:
    """The paper's P, with l, h, V and s as named. Raises SpecError."""
    check_positive(num_layers=num_layers, hidden_size=hidden_size)
    l, h = num_layers, hidden_size
    return 12 * l * h**2 * (1 + 13 / (12 * h) + (vocabulary_size + sequence_length) / (12 * l * h))


def billion_parameters(size: str) -> float:
    """Of our model of a row, from its tensors, in billions to one decimal."""
    return round(model(size).num_parameters / BILLION, 1)


def bubble_over_ideal(size: str) -> float:
    """Idle over busy time of a device in the row's schedule, every chunk with the same costs and messages free."""
    this = row(size)
    program = textbook_pipeline(this.schedule, this.pp, this.num_microbatches, this.num_chunks)
    costs = FixedCosts.from_times(FORWARD_S, BACKWARD_S / 2, BACKWARD_S / 2)
    trace = simulate_program(program, costs, costs)
    return metrics.span_s(trace) / float(metrics.busy_s(trace)[0]) - 1


@cache
def step_s(size: str) -> float:
    """Predicted seconds of a step of a row, with constants fitted without this paper's rows."""
    return predict(*plan(size), left_out=SOURCE).step.value


def sent_bytes(size: str) -> float:
    """Bytes of one message between stages that a device of a row sends forward."""
    return message_bytes(*plan(size))


def row_flops(size: str) -> float:
    """The paper's F of a row."""
    this = row(size)
    return iteration_flops(
        this.num_layers, this.hidden_size, VOCABULARY_SIZE, SEQUENCE_LENGTH, this.global_batch
    )


def message_bytes(plan: Plan, cluster: ClusterSpec) -> float:
    """Bytes of one message that a device sends to the next stage, in the program of the plan.

    Raises PlanError where there is one stage only.
    """
    program = step_program(plan, cluster).wiring.program
    names = [effect.name for effect in program.tables.effects]
    if "SEND_F" not in names:
        raise PlanError(f"a plan of {plan.pp} stage sends nothing", allowed="pp of 2 or more")
    forward = np.flatnonzero(program.columns.effect == names.index("SEND_F"))
    return float(value_space(program).bytes[moved_codes(program)[forward]].max())
