"""A deep residual stack as one broad layer of parallel branches: the same parameters, depth one.

Paper:      Make Deep Networks Shallow Again, Bernhard Bermeitinger, Tomas Hrycej, Siegfried Handschuh, 2023,
            arXiv 2309.08414
Problem:    Layers of a stack wait for each other: devices exchange behind every layer, or stand in a pipeline.
Idea:       x_{l+1} = x_l + F_l(x_l) expands to x + sum_l F_l(x) + terms of two and more F. Without these the L layers are
            branches that all read x: devices have whole branches and exchange once instead of L times, and no device waits
            for another layer. For F_l of size eps what is left out is of size eps^2.
Kind:       recipe
Use:        meshwright plan llama-3.1-8b 1x8xH100 --global-batch 8 --seq 4096 --fix tp=8 --variant shallow_again
Simulated:  any dense decoder's chain, forwards and backwards, with one sum a stage; `simulate` and `train` take --variant,
            too. As instructions of their own: layers or branches, and a pipeline of the layers beside them
Executed:   training of any dense decoder in any layout, on gloo processes; steps of branches, two networks (study.py)
Differs:    1. The paper's networks are convolutions on MNIST and CIFAR10, 6,912 configurations, of whose losses its abstract
            says that they are similar, without a number. Here they are two: six feed-forward layers that read 16 bytes, and
            six convolutions that name digits drawn by numpy (drawn_digits.py).
            2. Branch parallelism is not in the paper, which is about training: it is what its architecture allows. In a
            decoder every device has its heads and units of all branches, as with tensor parallelism.
            3. Of a decoder every part (attention, feed-forward) of every block is a branch, behind its own norm; nothing is
            normed between them. With pipeline stages the stream and the sum so far are sent, twice the bytes, and stages
            wait for each other all the same. Experts, low-rank additions and encoders are refused.
            4. Backwards need a second all-reduce, of the gradients of what the branches read.
            5. A trained deep model is not the shallow one: it has to be trained so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.cost import Cost
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.lowering.textbook_pipeline import textbook_pipeline
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.config.source import load_model
from meshwright.specs.error import UnknownNameError
from meshwright.specs.model.layers import StageLayers
from meshwright.stage.chain.decoder import decoder_chain
from meshwright.stage.chain.degrees import InnerDegrees
from meshwright.systems.architecture.shallow_again.mechanism import (
    BRANCH_F,
    DEEP_LAYER,
    branch_step,
    deep_forward,
    shallow_again,
    shallow_forward,
)

FILLS = {"variant": "mechanism:shallow_again"}
CLAIMS = (
    {
        "claim": "all-reduces in a forward of {num_layers} layers on {num_devices} devices, {form}",
        "kind": "identity",
        "unit": "all-reduces",
        "tolerance": 1e-9,
        "reason": "counted in the program",
        "how": "collectives of one device's list",
        "by": "num_all_reduces",
        "source": "arXiv 2309.08414: the stack, and its expansion without terms of two and more layers",
        "cases": (
            ({"form": "deep", "num_layers": 24, "num_devices": 4}, 24),
            ({"form": "shallow", "num_layers": 24, "num_devices": 4}, 1),
        ),
    },
    {
        "claim": "sums of results in a forward of llama-3.1-8b, tp=8, {form}",
        "kind": "identity",
        "unit": "all-reduces",
        "tolerance": 1e-9,
        "reason": "two a block and one of embedded rows, or one a stage and that one",
        "how": "exchanges of the stage's chain that `plan`, `simulate` and `train` run",
        "by": "num_decoder_sums",
        "source": "as above",
        "cases": (({"form": "deep"}, 65), ({"form": "shallow"}, 2)),
    },
    {
        "claim": "forward of {num_layers} layers on {num_devices} devices, a layer {compute} s on one of them, an all-reduce "
        "{reduce} s, {form}",
        "kind": "identity",
        "unit": "s",
        "tolerance": 1e-9,
        "reason": "L (c/n + a) and L c/n + a",
        "how": "span of the simulated program",
        "by": "forward_s",
        "source": "as above",
        "cases": (
            ({"form": "deep", "num_layers": 24, "num_devices": 4, "compute": 2.0, "reduce": 0.5}, 24.0),
            ({"form": "shallow", "num_layers": 24, "num_devices": 4, "compute": 2.0, "reduce": 0.5}, 12.5),
        ),
    },
    {
        "claim": "idle share of {num_devices} devices with {num_microbatches} microbatches and free messages, {form}",
        "kind": "identity",
        "unit": "share",
        "tolerance": 1e-9,
        "reason": "(p-1)/(m+p-1) for layers in a pipeline; branches do not wait",
        "how": "bubble of the simulated step: 1F1B of the layers, or the branches",
        "by": "idle_share",
        "source": "as above; the bubble of 1F1B is (p-1)/(m+p-1)",
        "cases": (
            ({"form": "deep", "num_devices": 4, "num_microbatches": 8}, 0.2727272727272727),
            ({"form": "shallow", "num_devices": 4, "num_microbatches": 8}, 0.0),
        ),
    },
    {
        "claim": "slope of log |deep - shallow| over log eps, layers eps {layer}(A x)",
        "kind": "measured",
        "unit": "1",
        "tolerance": 0.025,
        "reason": "2.00 +- 0.05: higher terms bend the line",
        "how": "eight layers of width 64, random A; eps from 1e-4 to 1e-2, least squares",
        "by": "slope",
        "source": "what is left out is of second order in the layers (section 2)",
        "cases": (({"layer": "identity"}, 2.0), ({"layer": "tanh"}, 2.0)),
    },
    {
        "claim": "slope of log |deep - shallow| over log eps, four transformer blocks with outputs times eps",
        "kind": "measured",
        "unit": "1",
        "tolerance": 0.025,
        "reason": "as above",
        "how": "random weights, norms inside the layers; float64",
        "by": "study:transformer_slope",
        "source": "as above",
        "cases": (({}, 2.0),),
    },
    {
        "claim": "here, two processes of three branches: parameters after four steps, largest difference to one process",
        "kind": "measured",
        "unit": "absolute",
        "tolerance": 1e-8,
        "reason": "the project's tolerance in float64 after steps",
        "how": "the same broad layer by torch's autograd in one process",
        "by": "study:parameter_difference",
        "source": "the project's acceptance",
        "cases": (({}, 0.0),),
    },
    {
        "claim": "here, two processes: all-reduces that ran in a forward of six branches",
        "kind": "measured",
        "unit": "all-reduces",
        "tolerance": 1e-9,
        "reason": "counted",
        "how": "rows of the executed trace between the first embedding and the head",
        "by": "study:executed_all_reduces",
        "source": "one sum of all branches",
        "cases": (({}, 1),),
    },
    {
        "claim": "here: held-out loss of the shallow network over that of the deep one",
        "kind": "measured",
        "unit": "x",
        "tolerance": 0.05,
        "reason": "the paper finds similar losses; 5 % is the project's acceptance",
        "how": "six layers, equal first weights, data and steps; bytes of the Python standard library, mean of two seeds",
        "by": "study:loss_ratio",
        "source": "abstract: similar losses of deep and shallow networks, no number",
        "cases": (({}, 1.0),),
    },
    {
        "claim": "here: held-out loss of shallow convolutions over deep ones, digits drawn, {places} x {places} means",
        "kind": "measured",
        "unit": "x",
        "tolerance": 0.05,
        "reason": "as above, fixed before the runs",
        "how": "six residual convolutions of eight channels, equal first weights, images and steps; mean of two seeds",
        "by": "study:image_loss_ratio",
        "source": "abstract: similar losses of deep and shallow networks, no number",
        "cases": (({"places": 1}, 1.0), ({"places": 4}, 1.0)),
    },
)
FORMS = ("deep", "shallow")
FORWARD_S, BACKWARD_S = 1.0, 2.0  # of all layers: the unit of the pipelines here
NUM_LAYERS, WIDTH = 8, 64  # of the stack whose slope is fitted
SCALES = np.logspace(-4, -2, 9)
Floats = NDArray[np.float64]
LAYERS: Mapping[str, Callable[[Floats], Floats]] = {"identity": lambda x: x, "tanh": np.tanh}


def check_form(form: str) -> None:
    """Raises UnknownNameError."""
    if form not in FORMS:
        raise UnknownNameError("form of a stack", form, FORMS)


def _forward(form: str, num_layers: int, num_devices: int) -> Program:
    check_form(form)
    return (deep_forward if form == "deep" else shallow_forward)(num_layers, num_devices)


def num_all_reduces(form: str, num_layers: int, num_devices: int) -> int:
    """Of one device in a forward. Raises UnknownNameError."""
    program = _forward(form, num_layers, num_devices)
    return int((program.kinds[: program.offsets[1]] == Kind.COLLECTIVE).sum())


def num_decoder_sums(form: str) -> int:
    """Of terms that eight devices have of what is added to the stream. Raises UnknownNameError."""
    check_form(form)
    model = load_model("llama-3.1-8b")
    layers = StageLayers(0, model.num_layers, True, True)
    chain = decoder_chain(shallow_again(model) if form == "shallow" else model, layers, InnerDegrees(tp=8))
    moves = [each.move for each in chain.deliveries]
    return sum(move.algorithm == "all_reduce" and move.read == "partial" for move in moves)


def forward_s(form: str, num_layers: int, num_devices: int, compute: float, reduce: float) -> float:
    """Seconds of a forward: a layer is cut over all devices, a branch is whole on one. Raises UnknownNameError."""
    seconds = {DEEP_LAYER: compute / num_devices, BRANCH_F: compute}
    costs = FixedCosts(seconds, exchange=lambda _: Cost(reduce, compute_share=0.0))
    return metrics.span_s(simulate_program(_forward(form, num_layers, num_devices), costs, costs))


def idle_share(form: str, num_devices: int, num_microbatches: int) -> float:
    """Bubble of a training step, layers divided evenly, free messages. Raises UnknownNameError."""
    check_form(form)
    if form == "deep":
        program = textbook_pipeline("1f1b", num_devices, num_microbatches)
    else:
        program = branch_step(num_devices, num_devices, num_microbatches)
    costs = FixedCosts({"F": FORWARD_S, "B": BACKWARD_S, BRANCH_F: FORWARD_S, "BRANCH_B": BACKWARD_S})
    return metrics.bubble(simulate_program(program, costs, costs))


def fitted_slope(scales: Floats, differences: Floats) -> float:
    """Of log difference over log scale, least squares."""
    return float(np.polyfit(np.log(scales), np.log(differences), 1)[0])


def slope(layer: str) -> float:
    """Of the difference between the stack and its branches, over the size of the layers. Raises UnknownNameError."""
    if layer not in LAYERS:
        raise UnknownNameError("layer", layer, LAYERS)
    draws = np.random.default_rng(0)
    matrices = draws.normal(size=(NUM_LAYERS, WIDTH, WIDTH)) / WIDTH**0.5
    x, function, differences = draws.normal(size=WIDTH), LAYERS[layer], []
    for eps in SCALES:
        deep = x
        for matrix in matrices:
            deep = deep + eps * function(matrix @ deep)
        shallow = x + sum(eps * function(matrix @ x) for matrix in matrices)
        differences.append(float(np.linalg.norm(deep - shallow)))
    return fitted_slope(SCALES, np.array(differences))
