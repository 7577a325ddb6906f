"""Software is found by what is said of a run, the surest first; a time of its own; nobody's has the plain traits."""

from __future__ import annotations

import re

import pytest

from meshwright.specs.plan.software import CLASSES
from meshwright.specs.stack.traits import FUSED_ATTENTION_SINCE, PLAIN, STACKS, Traits, traits_of


@pytest.mark.parametrize(
    ("texts", "day", "stack"),
    [
        (["nanotron; tp_mode REDUCE_SCATTER"], "", "nanotron"),
        (["", "", "mosaicml/llm-foundry"], "", "llm-foundry"),
        (["fsdp_mixed_precision=PURE"], "", "llm-foundry"),
        (["Primus torchtitan"], "", "torchtitan"),
        (["Primus Megatron; manual gc"], "", "Megatron-LM"),
        (["NeMo/Megatron, CUDA graphs"], "", "Megatron-LM"),
        (["Megatron-LM"], "2021-04-09", "Megatron-LM, early"),
        (["Megatron-LM"], FUSED_ATTENTION_SINCE, "Megatron-LM"),
        (["Megatron-DeepSpeed; stages balanced"], "2022-02-21", "Megatron-DeepSpeed, early"),
        (["GPT-NeoX"], "2024-01-01", "Megatron-DeepSpeed"),
        (["DeepSpeed, ZeRO-3"], "", "DeepSpeed"),
        (["Megatron-LM", "faster than nanotron"], "", "Megatron-LM"),
        (["our own loop", "InternLM/InternEvo"], "", "InternEvo"),
        (["phenomenal throughput"], "", ""),
        ([], "2021-01-01", ""),
    ],
)
def test_software_is_what_the_surest_text_names(texts: list[str], day: str, stack: str) -> None:
    assert traits_of(texts, day).stack == stack


def test_nobodys_software_has_the_plain_traits() -> None:
    found = traits_of(["a loop of our own"])
    assert found is PLAIN and not found.fuses and found.shards == 0
    assert found.beside("none", is_piped=True) == ("reduce",)
    assert found.beside("zero3", is_piped=False) == ("reduce", "gather")


def test_deepspeeds_pipelines_hide_nothing() -> None:
    found = traits_of(["DeepSpeed"])
    assert found.beside("none", is_piped=True) == ()
    assert found.beside("none", is_piped=False) == ("reduce",)


@pytest.mark.parametrize("traits", STACKS, ids=[each.stack for each in STACKS])
def test_every_stack_is_found_by_its_name_and_says_where_that_stands(traits: Traits) -> None:
    day = "2021-06-01" if traits.until else "2025-06-01"
    assert traits_of([traits.stack], day) is traits
    assert traits.fuses in (*CLASSES, "") and len(traits.reference) > 40
    assert re.compile(traits.named_by) and traits.named_by == traits.named_by.lower()


def test_nanotron_hides_gradients_only_where_no_state_is_sharded() -> None:
    found = traits_of(["nanotron"])
    assert found.beside("none", is_piped=True) == ("reduce",)
    assert found.beside("zero1", is_piped=True) == ()
