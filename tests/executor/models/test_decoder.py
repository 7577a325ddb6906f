"""Stages: gradients equal plain modules, any partition starts and computes alike, recompute is bitwise."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder
from torch import Tensor

from meshwright.executor.models.decoder import DecoderStage, build_model, build_stage
from meshwright.executor.ops.randomness import SampleKeys
from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec

TOLERANCE = 1e-10
LLAMA = ModelSpec.decoder(3, 24, 4, num_kv_heads=2, intermediate_size=40, vocabulary_size=50)
MODELS = {
    "llama": LLAMA,
    "llama tied": dataclasses.replace(LLAMA, has_tied_embeddings=True),
    "qwen2": LLAMA.changed(architecture="qwen2", has_qkv_bias=True),
    "qwen3": LLAMA.changed(architecture="qwen3", has_query_key_norm=True),
    "mistral": LLAMA.changed(architecture="mistral", sliding_window=9, sliding_layers=(0, 1, 2)),
    "llama linear": LLAMA.changed(rope_scaling="linear", rope_factor=4.0),
    "gpt2 exact": LLAMA.changed(architecture="gpt2", num_kv_heads=4, activation="gelu"),
    "gpt2": LLAMA.changed(architecture="gpt2", num_kv_heads=4, has_tied_embeddings=True),
}


def _batch(num_samples: int = 2, num_tokens: int = 70) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, 50, (num_samples, num_tokens + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def _perturbed(stage: DecoderStage) -> DecoderStage:
    """Norms and biases away from one and zero, so that their gradients matter."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in stage.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return stage


@pytest.mark.parametrize("name", MODELS)
def test_split_gradients_equal_plain_modules(name: str) -> None:
    model = MODELS[name]
    tokens, targets = _batch()
    stage = _perturbed(build_model(model, dtype=torch.float64))
    torch.set_default_dtype(torch.float64)
    try:
        plain = PlainDecoder(model).double()
    finally:
        torch.set_default_dtype(torch.float32)
    plain.load_state_dict(stage.state_dict())
    expected = F.cross_entropy(plain(tokens).flatten(0, 1), targets.flatten())
    expected.backward()
    queue = WeightGradientQueue()
    with registering(queue):
        loss = token_cross_entropy(stage(tokens), targets, 1 / targets.numel())
    with deferring(queue):
        loss.backward()
    assert all(parameter.grad is None for parameter in stage.parameters())
    assert queue.run() > 0
    torch.testing.assert_close(loss, expected, rtol=0, atol=TOLERANCE)
    theirs = dict(plain.named_parameters())
    for parameter_name, parameter in stage.named_parameters():
        grad = theirs[parameter_name].grad
        torch.testing.assert_close(parameter.grad, grad, rtol=0, atol=TOLERANCE, msg=parameter_name)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_model(name: str) -> None:
    stage = build_model(MODELS[name])
    assert sum(parameter.numel() for parameter in stage.parameters()) == MODELS[name].num_parameters


@pytest.mark.parametrize("name", ["llama", "llama tied", "gpt2"])
@pytest.mark.parametrize("cuts", [(0, 1, 3), (0, 0, 2, 3), (0, 3, 3)])
def test_any_partition_starts_and_computes_alike(name: str, cuts: tuple[int, ...]) -> None:
    model = MODELS[name]
    tokens, _ = _batch()
    whole = build_model(model, seed=5)
    num_stages = len(cuts) - 1
    stages = [
        build_stage(model, range(cuts[i], cuts[i + 1]), i == 0, i == num_stages - 1, seed=5)
        for i in range(num_stages)
    ]
    found: dict[str, Tensor] = {}
    for stage in stages:
        for parameter_name, parameter in stage.global_parameters().items():
            assert torch.equal(found.setdefault(parameter_name, parameter), parameter)
    expected = whole.global_parameters()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    x = tokens
    for stage in stages:
        x = stage(x)
    assert torch.equal(x, whole(tokens))


def test_seed_and_name_decide_the_values() -> None:
    one, other = build_model(LLAMA, seed=1), build_model(LLAMA, seed=2)
    assert not torch.equal(one.layers["0"].qkv.weight, other.layers["0"].qkv.weight)
    assert not torch.equal(one.layers["0"].qkv.weight, one.layers["1"].qkv.weight)
    wide = build_model(LLAMA, seed=1, dtype=torch.float64)
    assert torch.equal(one.layers["0"].qkv.weight.double(), wide.layers["0"].qkv.weight)


def test_recompute_with_dropout_is_bitwise() -> None:
    tokens, targets = _batch()
    keys = SampleKeys(seed=3, step=9, samples=(4, 5))

    def run(is_recomputed: bool) -> tuple[float, list[Tensor]]:
        stage = build_model(LLAMA, dropout=0.3)
        if is_recomputed:
            with torch.no_grad():
                stage(tokens, keys)
            torch.manual_seed(123)  # the global generator has no say
            torch.rand(7)
        loss = token_cross_entropy(stage(tokens, keys), targets, 1 / targets.numel())
        loss.backward()
        return float(loss.detach()), [p.grad for p in stage.parameters() if p.grad is not None]

    (plain_loss, plain), (again_loss, again) = run(False), run(True)
    assert plain_loss == again_loss
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_dropout_does_not_depend_on_the_microbatch_or_the_stage() -> None:
    tokens, _ = _batch()
    whole = build_model(LLAMA, dropout=0.3, dtype=torch.float64)
    together = whole(tokens, SampleKeys(0, 0, (4, 5)))
    first = build_stage(LLAMA, range(2), True, False, torch.float64, dropout=0.3)
    last = build_stage(LLAMA, range(2, 3), False, True, torch.float64, dropout=0.3)
    apart = [
        last(first(tokens[i : i + 1], SampleKeys(0, 0, (4 + i,))), SampleKeys(0, 0, (4 + i,))) for i in (0, 1)
    ]
    torch.testing.assert_close(torch.cat(apart), together, rtol=0, atol=TOLERANCE)
    assert not torch.allclose(together, whole(tokens))
    assert not torch.allclose(together, whole(tokens, SampleKeys(0, 1, (4, 5))))


def test_layers_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ExecutionError, match="layers 2 to 3"):
        build_stage(LLAMA, range(2, 4), False, True)


@pytest.mark.parametrize("name", ["llama tied", "gpt2 exact"])
def test_no_number_is_drawn_before_its_value_is_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device PyTorch imports its compiler for it: more than a second of every worker."""

    def drawn(*given: object) -> Tensor:
        pytest.fail("a table was drawn on the meta device")

    monkeypatch.setattr(torch.nn.init, "normal_", drawn)
    build_model(MODELS[name])
