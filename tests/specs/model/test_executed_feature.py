"""The model says what the executor builds, and the executor refuses the rest."""

import pytest
from tests.specs.configs import DEEPSEEK_V3, GPT2, LLAMA, MISTRAL, NEW_FAMILIES, QWEN2, QWEN3

from meshwright.specs import SpecError, model_from_config

UNEXECUTED_FAMILIES = [config for config in NEW_FAMILIES if config["model_type"] != "mistral"]


def test_what_the_executor_builds_is_said_by_the_model():
    assert all(model_from_config(config).is_executable for config in (LLAMA, QWEN2, QWEN3, GPT2))
    assert model_from_config(MISTRAL).is_executable
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert model_from_config({**QWEN2, "rope_scaling": yarn}).unexecuted_features == ("yarn rotary scaling",)
    for config in UNEXECUTED_FAMILIES:
        assert not model_from_config(config).is_executable
    assert model_from_config(DEEPSEEK_V3).unexecuted_features == ("experts", "latent attention")


@pytest.mark.parametrize("config", UNEXECUTED_FAMILIES, ids=lambda config: config["model_type"])
def test_the_executor_refuses_what_it_would_build_wrongly(config):
    pytest.importorskip("torch")
    from meshwright.executor.models.decoder import build_stage

    model = model_from_config(config, name="tiny")
    with pytest.raises(SpecError, match=f"tiny has {model.unexecuted_features[0]}") as caught:
        build_stage(model, range(1), True, False)
    assert caught.value.allowed and caught.value.next
