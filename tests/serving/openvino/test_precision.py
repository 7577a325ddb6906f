"""Formats of weights and blocks: what they may change, what they may not, and what the plugin fuses."""

# ruff: noqa: E402  what follows needs OpenVINO

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

openvino = pytest.importorskip("openvino", reason="the extra serve-cpu is not installed")

from tests.serving.openvino.step import Piece, logits_of
from tests.serving.openvino.tiny_models import VOCABULARY, TinyModel, tiny_model

from meshwright.serving.openvino.decoder_graph import DecoderSource, decoder_graph
from meshwright.serving.openvino.decoder_style import decoder_style
from meshwright.serving.openvino.precision import compile_properties, with_compressed_weights
from meshwright.serving.openvino.runner import OpenVinoOptions, OpenVinoRunner
from meshwright.serving.stored.safetensors_folder import SafetensorsFolder
from meshwright.specs.config.source import load_model
from meshwright.specs.error import UnknownNameError
from meshwright.specs.model.layers import stage_layers

LAYERS = 3
WHOLE = stage_layers((LAYERS,))[0]
PROMPT = np.random.default_rng(3).integers(0, VOCABULARY, 100).tolist()
BLOCKS = [7, 3, 30, 11]


def has_instructions(name: str) -> bool:
    """Does this CPU say so? Linux tells; elsewhere nothing is known of it."""
    try:
        with open("/proc/cpuinfo", encoding="ascii") as file:
            return name in file.read()
    except OSError:
        return False


needs_bfloat16 = pytest.mark.skipif(
    not has_instructions("bf16"), reason="this CPU does not compute in bfloat16"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> TinyModel:
    """Of small weights: a rounding is not blown up from layer to layer."""
    folder = tmp_path_factory.mktemp("llama")
    sizes = {"intermediate_size": 256, "mlp_bias": False, "initializer_range": 0.05}
    return tiny_model(folder, "llama", torch.bfloat16, **sizes)


def opened(model: TinyModel, precision: str, block_format: str = "same") -> OpenVinoRunner:
    return OpenVinoRunner(
        model.folder, OpenVinoOptions(precision, block_format, num_blocks=40, num_threads=1)
    )


@pytest.fixture(scope="module")
def source(model) -> DecoderSource:
    spec = load_model(model.folder)
    style = decoder_style(spec, {"model_type": "llama"}, "config.json")
    return DecoderSource(spec, style, SafetensorsFolder(model.folder))


def is_matrix(node: openvino.Node) -> bool:
    """Is it a constant with more than one row and column?"""
    is_constant = node.get_rt_info()["layerType"].astype(str) == "Const"
    return is_constant and sum(size > 1 for size in node.get_output_shape(0)) == 2


def last_logits(runner: OpenVinoRunner, *chunks: int) -> np.ndarray:
    """Of the prompt's last token, computed in chunks of so many tokens and the rest."""
    past = 0
    for size in (*chunks, len(PROMPT) - sum(chunks)):
        found = logits_of(runner, Piece(PROMPT[past : past + size], past, BLOCKS))
        past += size
    return found[0]


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_norms_rotations_and_products_are_fused(model, precision) -> None:
    found = opened(model, precision).layer_types()
    assert (
        found["PagedAttention"] == LAYERS and found["RoPE"] == 2 * LAYERS and found["RMS"] == 2 * LAYERS + 1
    )
    assert not found["MatMul"] and not found["Transpose"] and not found["Subgraph"]
    if not has_instructions("amx_bf16") or precision == "float32":
        assert found["FullyConnected"] == 7 * LAYERS + 1


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_matrices_stay_in_the_format_of_their_file(model, precision) -> None:
    """Widened once at the start, they would take twice the memory, and be slower."""
    (compiled,) = opened(model, precision)._compiled
    told = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops() if is_matrix(node)]
    assert {info["outputPrecisions"].astype(str) for info in told} == {"bf16"} and len(told) == 7 * LAYERS + 2


@needs_bfloat16
@pytest.mark.skipif(
    not has_instructions("amx_bf16"), reason="the plugin fuses whole MLPs on machines with AMX only"
)
def test_whole_mlps_are_fused_where_a_machine_has_amx(model) -> None:
    found = opened(model, "bfloat16").layer_types()
    assert found["LLMMLP"] == LAYERS and found["FullyConnected"] <= 4 * LAYERS + 1


def test_gates_are_what_the_fusion_of_whole_mlps_looks_for(source) -> None:
    """Swish of one input times another product of the same values: with a second input nothing is fused on any machine."""
    graph, found = decoder_graph(source, WHOLE), 0
    for node in graph.get_ordered_ops():
        factors = [value.get_node() for value in node.input_values()]
        if [factor.get_type_name() for factor in factors] == ["Swish", "MatMul"]:
            (gated,) = factors[0].input_values()
            read = [matrix.input_value(0).get_node() for matrix in (gated.get_node(), factors[1])]
            found += read[0].get_friendly_name() == read[1].get_friendly_name()
    assert found == LAYERS


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_logits_depend_on_chunks_with_blocks_of_eight_bits_only(model, precision) -> None:
    same, eight = opened(model, precision), opened(model, precision, "uint8")
    for chunks in ((40,), (32, 32), (98,), (13, 50, 20)):
        np.testing.assert_array_equal(last_logits(same, *chunks), last_logits(same))
    assert np.any(last_logits(eight, 40) != last_logits(eight))
    assert eight.block_bytes < same.block_bytes


@pytest.mark.parametrize(
    ("precision", "least", "most"),
    [
        ("float32", 0.0, 1e-5),
        pytest.param("bfloat16", 1e-3, 0.01, marks=needs_bfloat16),
        ("int8", 3e-3, 0.02),
        ("int4", 0.03, 0.15),
    ],
)
def test_logits_are_as_far_from_those_of_float32_as_a_format_rounds(model, precision, least, most) -> None:
    found = logits_of(opened(model, precision), Piece(PROMPT, 0, BLOCKS), all_rows=True)
    expected = model.logits(PROMPT)
    assert least <= np.sqrt(np.mean((found - expected) ** 2)) / expected.std() < most


def test_a_token_alone_is_that_of_a_chunk_but_for_rounding(model) -> None:
    """Another kernel computes it, which rounds elsewhere."""
    runner = opened(model, "float32")
    np.testing.assert_allclose(last_logits(runner, 99), last_logits(runner), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("precision", "kind"), [("int8", "i8"), ("int4", "i4")])
def test_matrices_are_compressed_and_the_plugin_still_chooses_the_blocks(source, precision, kind) -> None:
    graph = with_compressed_weights(decoder_graph(source, WHOLE), precision)
    kinds = [
        node.get_element_type().get_type_name()
        for node in graph.get_ordered_ops()
        if node.get_type_name() == "Constant" and node.get_output_size() and len(node.get_output_shape(0)) > 1
    ]
    assert kinds.count(kind) >= 7 * LAYERS and "bf16" not in kinds
    blocks = [x for x in graph.get_parameters() if "_blocks." in x.get_friendly_name()]
    assert len(blocks) == 2 * LAYERS and all(x.get_element_type() == openvino.Type.dynamic for x in blocks)


def test_nobody_is_told_that_the_runtime_was_imported() -> None:
    program = (
        "import sys, meshwright.serving.openvino.runner; "
        "sys.exit(any(name.startswith('openvino_telemetry.') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="no precision named 'int3'"):
        compile_properties("int3", "same", 0)
    with pytest.raises(UnknownNameError, match="no format of blocks named 'uint4'"):
        compile_properties("float32", "uint4", 0)
