"""What other software keeps of a block, against published formulas and counts by hand."""

import pytest
from tests.specs.configs import DEEPSEEK_V3, GPT2, LLAMA, NEW_FAMILIES, QWEN2, QWEN2_MOE, QWEN3

from meshwright.specs import StageLayers, load_model, model_from_config
from meshwright.stage.saved.block import block_products
from meshwright.stage.saved.saved import (
    SavingContext,
    block_saved,
    context_saved,
    saved_bytes_per_token,
    stage_saved_bytes,
    tensor_bytes,
)

MIDDLE = StageLayers(1, 1, False, False)
SEQUENCE = 64
PAPER = SavingContext("float16", attention="unfused", has_dropout=True)


def without_statistics(model, context, sequence_length=SEQUENCE):
    """Bytes per token of a block, less the norms' statistics, which the paper leaves out."""
    return sum(
        tensor_bytes(model, tensor, context)
        for tensor in context_saved(model, context, 1, sequence_length)
        if "statistics" not in tensor.name
    )


@pytest.mark.parametrize("t", [1, 2, 3, 6])
def test_the_paper_of_selective_recompute(t):
    """Korthikanti et al., arXiv 2205.05198, table 2: bytes of a layer over s b h."""
    model = load_model("gpt2")  # 12 heads, hidden 768
    h, pairs = model.hidden_size, 5 * model.num_heads * SEQUENCE / model.hidden_size
    assert model.intermediate_size == 4 * h and model.num_heads % t == 0
    tensor, sequence = PAPER._replace(tp=t), PAPER._replace(tp=t, sequence_parallel=True)
    assert without_statistics(model, tensor) == pytest.approx(h * (10 + 24 / t + pairs / t))
    assert without_statistics(model, sequence) == pytest.approx(h * (34 / t + pairs / t))
    assert without_statistics(model, tensor._replace(recompute="selective")) == pytest.approx(
        h * (10 + 24 / t)
    )
    assert without_statistics(model, sequence._replace(recompute="selective")) == pytest.approx(h * 34 / t)
    assert without_statistics(model, tensor._replace(recompute="full")) == 2 * h


def test_recipes_of_today_have_no_masks_and_no_scores():
    model = model_from_config(GPT2)
    flash = SavingContext("float16", attention="flash")
    assert without_statistics(model, flash) == 32 * model.hidden_size + 4 * model.num_heads
    selective = flash._replace(recompute="selective")
    assert without_statistics(model, selective) == without_statistics(
        model, flash
    )  # nothing left to make again


@pytest.mark.parametrize("config", [LLAMA, GPT2, QWEN2, QWEN3, *NEW_FAMILIES], ids=lambda c: c["model_type"])
def test_the_default_context_is_the_executors_decoder(config):
    model = model_from_config(config)
    for block in range(model.num_layers):
        assert context_saved(model, SavingContext(), block) == block_saved(model, "float32", block)
    stage = StageLayers(0, model.num_layers, True, False)
    assert stage_saved_bytes(model, stage, SavingContext()) == saved_bytes_per_token(model, stage)


def test_fused_activations_keep_gate_and_up_only():
    model = load_model("llama-3.1-8b")
    eager = SavingContext("bfloat16", attention="flash")
    fused = eager._replace(is_fused=True)
    dropped = stage_saved_bytes(model, MIDDLE, eager) - stage_saved_bytes(model, MIDDLE, fused)
    assert dropped == 2 * 14336
    # input, norm, q, k, v, result, residual, norm; gate, up, product; sums of 32 heads, 2 statistics
    assert stage_saved_bytes(model, MIDDLE, fused) == 2 * (6 * 4096 + 2048 + 3 * 14336) + 4 * 32 + 2 * 2


def test_recompute_by_operation_keeps_every_second_product():
    """torchtitan's policy on a Llama block: of q, k, v, output, gate, up, down the 1st, 3rd, 5th and 7th."""
    model = load_model("llama-3.1-8b")
    context = SavingContext("bfloat16", "selective_op", attention="flash")
    kept = {tensor.name: tensor.elements_per_token for tensor in context_saved(model, context)}
    assert kept == {
        "input": 4096, "attention output": 4096, "logarithms of sums": 32, "result of query": 4096,
        "result of value": 1024, "result of gate": 14336, "result of down": 4096,
    }  # fmt: skip
    divided = context._replace(tp=2, sequence_parallel=True)
    names = [tensor.name for tensor in context_saved(model, divided)]
    assert names[-1] == "results of scattering sums"


def test_products_in_the_order_of_the_forward():
    latent = [name for name, _, _ in block_products(model_from_config(DEEPSEEK_V3), 0)]
    assert latent[1:5] == ["query", "narrowed keys and values", "keys and values", "output projection"]
    routed = [name for name, _, _ in block_products(model_from_config(QWEN2_MOE), 1)]
    assert routed == ["query", "key", "value", "output projection", "router", "gate", "up", "down"]
    assert [width for _, width, _ in block_products(load_model("gpt2"), 0)][0] == 3 * 768


def test_keys_are_divided_by_heads():
    model = load_model("llama-3.1-8b")  # 8 key-value heads
    keys = next(tensor for tensor in block_saved(model, "bfloat16") if tensor.name.startswith("keys"))
    sizes = [tensor_bytes(model, keys, SavingContext("bfloat16", tp=t)) for t in (1, 2, 8)]
    assert sizes == [2 * 2048, 2 * 1024, 2 * 256]


@pytest.mark.parametrize("etp", [1, 2, 4])
def test_rows_and_matrices_of_experts_are_divided_by_tp_together(etp):
    """Of T tokens etp / tp of all rows are on a device, and of each of them one part of etp: T / tp, whatever etp is."""
    model = model_from_config(QWEN2_MOE)
    whole, divided = SavingContext("bfloat16"), SavingContext("bfloat16", tp=4)
    rows = 2 * 3 * model.hidden_size * 2  # dispatched and returned, 3 experts a token, 2 bytes
    inner = 4 * 3 * 20 * 2  # 4 tensors 20 wide
    of_experts = ("experts' ", "dispatched rows")

    def kept(context):
        tensors = context_saved(model, context, 1)
        return sum(tensor_bytes(model, each, context) for each in tensors if each.name.startswith(of_experts))

    assert kept(whole) == rows + inner
    assert kept(divided._replace(num_row_parts=4 // etp)) == rows * etp / 4 + inner / 4


def test_products_that_keep_their_inputs_in_float8():
    model = load_model("llama-3.1-8b")
    context = SavingContext("bfloat16", attention="flash", is_fused=True)
    saving = stage_saved_bytes(model, MIDDLE, context) - stage_saved_bytes(
        model, MIDDLE, context._replace(keeps_float8=True)
    )
    assert saving == 2 * 4096 + 14336  # a byte of each: inputs of qkv, of gate and up, of down


def test_the_loss_is_counted_elsewhere():
    model = load_model("llama-3.1-8b")
    context = SavingContext("bfloat16")
    ends = [
        stage_saved_bytes(model, StageLayers(0, 0, *ends), context)
        for ends in ((False, False), (True, False), (False, True))
    ]
    assert ends == [0, 8, 2 * (2 * 4096 + 1) + 8]
