"""What is served and what is not, said without OpenVINO; and what config.json may say of the families that are."""

from __future__ import annotations

import subprocess
import sys

import pytest

from meshwright.serving.openvino import support
from meshwright.serving.openvino.decoder_style import GEMMA3, decoder_style
from meshwright.specs.config.hugging_face import model_from_config
from meshwright.specs.config.source import load_model
from meshwright.specs.error import MissingDataError, SpecError
from meshwright.specs.model.rotary_scaling import RotaryScaling

GEMMA = {
    "model_type": "gemma3_text",
    "hidden_size": 1152,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "intermediate_size": 6912,
    "vocab_size": 262_144,
    "max_position_embeddings": 32_768,
    "sliding_window": 512,
}


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-32b", "mistral-7b"])
def test_dense_models_of_known_families_are_served(name) -> None:
    assert support.refusal(load_model(name)) == ""


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("mixtral-8x7b", {}, "has experts: OpenVINO has no operation here"),
        ("gpt2", {}, "is a gpt2 model"),
        (
            "llama-3.1-8b",
            {"rotary_scaling": RotaryScaling("yarn", 4.0, 1.0, 32.0, 4096)},
            "has yarn rotary scaling",
        ),
        ("llama-3.1-8b", {"final_logit_cap": 30.0}, "caps scores or logits"),
    ],
)
def test_what_is_not_served_is_refused_in_one_line(name, changes, said) -> None:
    model = load_model(name).changed(**changes) if changes else load_model(name)
    assert said in support.refusal(model) and "\n" not in support.refusal(model)
    with pytest.raises(SpecError, match=said):
        support.check_model(model)


def test_a_machine_without_openvino_is_told_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(support, "PACKAGES", ("a_package_that_is_not_here",))
    with pytest.raises(MissingDataError, match=r"not installed.*\n?.*serve-cpu"):
        support.check_installed()


def test_a_release_with_other_operations_is_refused_before_it_is_asked_for_them(monkeypatch) -> None:
    monkeypatch.setattr(support, "PACKAGES", ("openvino",))
    monkeypatch.setattr(support, "version", lambda name: "2026.5.0")
    with pytest.raises(
        MissingDataError, match="openvino 2026.5.0 is installed, and graphs are built for 2026.4.x"
    ):
        support.check_installed()


def test_asking_what_is_served_imports_no_runtime() -> None:
    program = (
        "import sys, meshwright.serving.openvino.support as s; s.absence(); "
        "sys.exit(bool({'openvino', 'nncf', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 1e6, "rope_local_base_freq": 10_000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            }
        },
    ],
    ids=["transformers 4", "transformers 5"],
)  # fmt: skip
def test_gemma_3_has_a_rotation_for_windows_and_one_for_all_in_old_and_new_files(changes) -> None:
    config = {**GEMMA, **changes, "query_pre_attn_scalar": 168}
    model = model_from_config(config)
    style = decoder_style(model, config, "config.json")
    windows = [block.attention for block in model.layers]
    assert [bool(attention.window) for attention in windows] == [True] * 5 + [False]
    assert style.rotary_of(windows[0]).frequencies(4) == pytest.approx((1.0, 0.01))
    assert style.rotary_of(windows[5]).frequencies(4) == pytest.approx((1 / 8, 1e-3 / 8))
    assert style.score_scale(windows[0]) == pytest.approx(168**-0.5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rotary scaling is 'yarn'"),
    ],
)
def test_what_gemma_3_is_not_computed_with_is_refused(changes, said) -> None:
    config = {**GEMMA, **changes}
    model = model_from_config(GEMMA)
    assert model.architecture == GEMMA3
    with pytest.raises(SpecError, match=said):
        decoder_style(model, config, "config.json")
