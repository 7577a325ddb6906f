"""What the software does is told with the options that said so, and asked where none did."""

from __future__ import annotations

import json

import pytest

from meshwright.interop import FORMATS, Given, Imported
from meshwright.interop.stack_trait import DECIDED_BY
from meshwright.specs.config.source import load_model
from meshwright.specs.plan.plan import Plan

MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 32 --vocab-size 32000 --bf16 "
)
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[compile]\nenable = true\n'
DEEPSPEED = json.dumps({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}})


def read(form: str, text: str) -> Imported:
    model = load_model("llama-3.2-1b") if form == "deepspeed" else None
    return FORMATS[form](text, "file", Given(model=model, cluster="8xH100", sequence_length=1024))


def said(found: Imported) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {trait.name: (trait.value, trait.said_by) for trait in found.traits}


def test_a_trait_is_told_with_the_option_that_said_so() -> None:
    found = read("megatron", MEGATRON + "--overlap-grad-reduce --grad-reduce-in-bf16")
    assert found.stack == "Megatron-LM"
    assert said(found)["overlap"] == ("reduce", ("--overlap-grad-reduce",))
    assert said(found)["reduction_dtype"] == ("bfloat16", ("--grad-reduce-in-bf16",))
    assert said(found)["software"] == ("fused", ())
    assert "etp" not in said(found) and "layers_per_stage" not in said(found), "no experts, no pipeline"


def test_what_nobody_said_is_asked() -> None:
    found = read("megatron", MEGATRON + "--overlap-grad-reduce")
    (asked,) = (line for line in found.assumptions if "as Megatron-LM does" in line)
    assert "software (fused)" in asked and "attention (flash)" in asked and "overlap" not in asked


def test_every_form_tells_its_software() -> None:
    titan, deepspeed = read("torchtitan", TITAN), read("deepspeed", DEEPSPEED)
    assert (titan.stack, said(titan)["software"]) == ("torchtitan", ("compiled", ("compile.enable",)))
    assert (deepspeed.stack, said(deepspeed)["software"]) == ("DeepSpeed", ("eager", ()))
    assert said(deepspeed)["sharding"] == ("zero1", ("zero_optimization.stage",))
    assert json.dumps(titan.to_dict()["traits"][0]) == (
        '{"name": "software", "value": "compiled", "said_by": ["compile.enable"]}'
    )


@pytest.mark.parametrize("uneven", ["", "--decoder-last-pipeline-num-layers 2"])
def test_stages_are_told_where_there_are_some(uneven: str) -> None:
    found = said(read("megatron", MEGATRON + "--pipeline-model-parallel-size 2 " + uneven))
    said_by = ("--decoder-last-pipeline-num-layers",) if uneven else ()
    assert found["layers_per_stage"] == ("unevenly" if uneven else "evenly", said_by)


def test_traits_are_fields_of_a_plan() -> None:
    assert set(DECIDED_BY) <= set(Plan.__dataclass_fields__)
    options = [option for names in DECIDED_BY.values() for option in names]
    assert len(set(options)) == len(options)


def test_how_tokens_go_to_experts_is_told_where_they_travel() -> None:
    experts = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4 "
    options = ("--moe-token-dispatcher-type", "--moe-enable-deepep")
    once = said(read("megatron", f"{MEGATRON}{experts}{options[0]} flex {options[1]}"))["dispatch"]
    assert once[0] == "once" and set(once[1]) == set(options)
    assert said(read("megatron", MEGATRON + experts))["dispatch"] == ("copies", ())
