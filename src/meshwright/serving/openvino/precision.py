"""In which formats weights, computation and blocks of keys and values are held, and how OpenVINO and NNCF are told."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

import openvino
from openvino import Type

from meshwright.serving.openvino.core import core
from meshwright.specs.error import SpecError, UnknownNameError

DEVICE = "CPU"
# Weights; what is computed is float32 with float32 and bfloat16 with the others where the machine has it.
PRECISIONS = ("float32", "bfloat16", "int8", "int4")
# Blocks: of the format that is computed in, so that logits depend neither on the batch nor on the size of chunks; or in 8
# bits with a scale for some tokens together, half as large, where they do depend on how a prompt was cut.
SAME, UINT8 = "same", "uint8"
BLOCK_FORMATS = (SAME, UINT8)
INT4_GROUP = 64  # weights that share a scale, as OpenVINO's own exports of small models have it
_HINTS = {"float32": "f32", "bfloat16": "bf16"}


def computed_in(precision: str) -> str:
    """ "float32" or "bfloat16": what is computed in on this machine.

    Raises:
        UnknownNameError: no such precision.
        SpecError: this machine has no instructions for bfloat16.
    """
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    if precision == "float32":
        return "float32"
    has_bfloat16 = "BF16" in core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
    if precision == "bfloat16" and not has_bfloat16:
        raise SpecError("this CPU does not compute in bfloat16", allowed="float32, int8, int4")
    return "bfloat16" if has_bfloat16 else "float32"


def compile_properties(precision: str, block_format: str, num_threads: int) -> dict[str, Any]:
    """What the plugin is told; 0 threads: one for every core. Raises as `computed_in`."""
    if block_format not in BLOCK_FORMATS:
        raise UnknownNameError("format of blocks", block_format, BLOCK_FORMATS)
    hint = _HINTS[computed_in(precision)]
    said: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": hint,
        "KV_CACHE_PRECISION": hint if block_format == SAME else "u8",
        "PERFORMANCE_HINT": "LATENCY",
    }
    return said | ({"INFERENCE_NUM_THREADS": num_threads} if num_threads else {})


def with_compressed_weights(graph: openvino.Model, precision: str) -> openvino.Model:
    """The graph with its matrices in 8 bits (one scale an output), or 4 bits (one for `INT4_GROUP` inputs; the embedding and
    the head stay in 8); as it is for other precisions.
    """
    if precision not in ("int8", "int4"):
        return graph
    with _silent_nncf(), _known_formats(graph):
        import nncf

        if precision == "int8":
            return nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)
        mode = nncf.CompressWeightsMode.INT4_SYM
        return nncf.compress_weights(graph, mode=mode, group_size=INT4_GROUP, ratio=1.0)


@contextlib.contextmanager
def _known_formats(graph: openvino.Model) -> Iterator[None]:
    """Within, blocks say float32: NNCF reads no graph with inputs of a format that the plugin is still to choose."""
    undecided = [node for node in graph.get_parameters() if node.get_element_type() == Type.dynamic]
    for kind in (Type.f32, Type.dynamic):
        for node in undecided:
            node.set_element_type(kind)
        graph.validate_nodes_and_infer_types()
        if kind == Type.f32:
            yield


@contextlib.contextmanager
def _silent_nncf() -> Iterator[None]:
    """Within, NNCF draws no progress bar."""
    with contextlib.redirect_stdout(io.StringIO()):
        logging.getLogger("nncf").setLevel(logging.WARNING)
        yield
