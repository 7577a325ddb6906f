"""Export then import is the identity for every plan that both can express; all else is refused."""

from __future__ import annotations

import json
import subprocess
import tomllib
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwright.interop import FORMATS, Given, Imported
from meshwright.interop.export import TARGETS, export_plan
from meshwright.interop.exported import ExportError, canonical
from meshwright.specs import Cluster, ModelSpec, Plan, Workload, load_model
from meshwright.specs.error import PlanError, SpecError, UnknownNameError
from meshwright.specs.model.layers import split_layers
from tests.interop.recipe import RECIPES, Recipe

PRESETS = {
    "megatron": ("llama-3.1-8b", "gpt2-large", "qwen2.5-7b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3"),
    "torchtitan": ("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"),
    "deepspeed": ("llama-3.1-8b", "gpt2", "mixtral-8x7b", "gemma-2-9b"),
}
SOFTWARE = {
    "megatron": ("", "fused", "captured"),
    "torchtitan": ("", "compiled", "eager"),
    "deepspeed": ("", "eager"),
}
# Of each format: what it mostly can express, so that few of the drawn plans are refused.
USUAL: dict[str, dict[str, tuple[Any, ...]]] = {
    "megatron": {
        "recompute": ("none", "selective", "full"), "sharding": ("none", "zero1", "zero2", "zero3"),
        "attention": ("flash", "unfused", "unfused_dropout"), "float8": ("", "tensorwise", "blockwise", "mxfp8"),
        "formats": (
            ("bfloat16", "float32", "float32"), ("bfloat16", "float32", "bfloat16"), ("float16", "float32", "float16"),
            ("float16", "float32", "float32"), ("float32", "", ""),
        ),
        "overlap": ((), ("reduce",), ("gather", "reduce"), ("reduce", "gather", "tp")),
        "sequence_parallel": (True, False), "context": ("ring", "all_gather"),
    },
    "torchtitan": {
        "recompute": ("none", "selective_op", "full"), "sharding": ("zero3", "zero2", "none"), "attention": ("flash",),
        "float8": ("", "tensorwise", "rowwise", "mxfp8"),
        "formats": (
            ("bfloat16", "float32", "float32"), ("bfloat16", "bfloat16", "float32"), ("float32", "float32", ""),
        ),
        "overlap": (("reduce", "gather"), ("reduce", "gather", "tp")), "sequence_parallel": (True,),
        "context": ("ring", "all_gather"),
    },
    "deepspeed": {
        "recompute": ("none", "full"), "sharding": ("none", "zero1", "zero2", "zero3"), "attention": ("flash",),
        "float8": ("",), "overlap": ((), ("reduce",), ("reduce", "gather")), "sequence_parallel": (False,),
        "context": ("ring",),
        "formats": (
            ("bfloat16", "float32", "float32"), ("bfloat16", "float32", ""), ("float16", "float32", "float16"),
            ("float32", "", ""),
        ),
    },
}  # fmt: skip
ANY: dict[str, tuple[Any, ...]] = {
    "recompute": ("none", "selective", "selective_op", "full"),
    "sharding": ("none", "zero1", "zero2", "zero3"),
    "attention": ("flash", "unfused", "unfused_dropout"),
    "float8": ("", "tensorwise", "rowwise", "blockwise", "mxfp8"),
    "formats": tuple((dtype, master, reduced) for dtype in ("bfloat16", "float16", "float32", "float64")
                     for master in ("", "float32", "bfloat16", "float64") for reduced in ("", "float32", "bfloat16")),
    "overlap": ((), ("reduce",), ("gather",), ("tp",), ("reduce", "gather"), ("reduce", "gather", "tp")),
    "sequence_parallel": (True, False), "context": ("ring", "all_gather"),
    "token_layout": ("", "contiguous", "zigzag", "stripe"),
}  # fmt: skip
OTHERS: dict[str, tuple[Any, ...]] = {
    "vocabulary": ("ends", "one_barrier"), "split_backward": (False, True), "software": ("", "fused", "eager"),
    "mesh_order": (("pp", "dp", "cp", "tp"), ("dp", "pp", "cp", "tp")), "device_order": ((), "reversed"),
    "schedule": ("1f1b", "gpipe", "zb_h1", "interleaved_1f1b"),
}  # fmt: skip
DEGREES = ("pp", "cp", "ep")  # where the format has none or the model no experts
FEW = settings(
    max_examples=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@st.composite
def layers(draw: st.DrawFn, num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Blocks of stages: even, or with a few less on the ends, dealt out as far as they go."""
    first, last = draw(
        st.sampled_from(((0, 0), (0, 0), (1, 1), (0, 1), (2, 1)) if num_stages > 1 else ((0, 0),))
    )
    share, rest = divmod(num_layers + first + last, num_stages)
    counts = [share + (stage < rest) for stage in range(num_stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts) if min(counts) >= 0 else split_layers(num_layers, num_stages)


@st.composite
def recompute_blocks(
    draw: st.DrawFn, per_stage: tuple[int, ...], recompute: str, has_words: bool, is_usual: bool
) -> tuple[int, ...]:
    """Blocks of stages that are recomputed: all, as many of each, or some of each."""
    if recompute == "none" or (is_usual and not (has_words and recompute == "full")) or draw(st.booleans()):
        return ()
    most = draw(st.integers(1, max(per_stage) + 1))
    counts = tuple(min(most, each) for each in per_stage)
    if not is_usual and draw(st.booleans()):
        counts = tuple(draw(st.integers(0, each)) for each in per_stage)
    return counts if any(counts) else ()


@st.composite
def model_specs(draw: st.DrawFn, form: str) -> ModelSpec:
    """A preset, or a small decoder where the format can say its sizes."""
    if form == "torchtitan" or draw(st.booleans()):
        return load_model(draw(st.sampled_from(PRESETS[form])))
    heads = draw(st.sampled_from((8, 16)))
    return ModelSpec.decoder(
        draw(st.integers(4, 20)), 32 * heads, heads, num_kv_heads=draw(st.sampled_from((heads, 4, 1))),
        vocabulary_size=draw(st.sampled_from((256, 50304))), max_sequence_length=4096,
        has_tied_embeddings=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def plans(draw: st.DrawFn, form: str, is_usual: bool) -> Plan:
    """A random plan of choices that the format mostly has; or one or two of them are any that plans have."""
    drawn = {name: draw(st.sampled_from(values)) for name, values in USUAL[form].items()}
    odd = (
        [] if is_usual else draw(st.lists(st.sampled_from((*ANY, *OTHERS, *DEGREES)), min_size=1, max_size=2))
    )
    drawn |= {name: draw(st.sampled_from(ANY[name])) for name in odd if name in ANY}
    cluster = Cluster(draw(st.sampled_from(("1xH100", "4xH100", "8xH100", "2x8xH100", "4x8xB200"))))
    model, left, degrees = draw(model_specs(form)), cluster.num_devices, {}
    for axis in ("tp", "pp", "cp"):
        degree = draw(st.sampled_from((1, 1, 2, 4)))
        is_there = left % degree == 0 and (form != "deepspeed" or axis == "tp" or axis in odd)
        degrees[axis] = degree if is_there else 1
        left //= degrees[axis]
    chunks = draw(st.sampled_from((1, 1, 2, 3))) if degrees["pp"] > 1 else 1
    dtype, master, reduced = drawn.pop("formats")
    drawn["sequence_parallel"] &= degrees["tp"] > 1
    choices: dict[str, Any] = {
        **degrees, **drawn, "dtype": dtype, "master_dtype": master, "reduction_dtype": reduced, "num_chunks": chunks,
        "schedule": "1f1b" if chunks == 1 else "interleaved_1f1b", "dp": left,
        "ep": draw(st.sampled_from((1, 1, 2, 4, 8))) if model.num_experts or "ep" in odd else 1,
        "microbatch_size": draw(st.integers(1, 3)), "software": draw(st.sampled_from(SOFTWARE[form])),
        "layers_per_stage": (per_stage := draw(layers(model.num_layers, degrees["pp"] * chunks))),
        "recompute_blocks": draw(recompute_blocks(per_stage, drawn["recompute"], form == "megatron", is_usual)),
        "sharding_degree": draw(st.sampled_from((0, 0, 0, left, 2))),
    }  # fmt: skip
    if is_usual and drawn["sharding"] == "zero3" and "gather" not in drawn["overlap"]:
        choices["overlap"] = ("reduce", "gather")
    choices |= {name: draw(st.sampled_from(OTHERS[name])) for name in odd if name in OTHERS}
    if choices.get("device_order"):
        choices["device_order"] = tuple(reversed(range(cluster.num_devices)))
    batch = left * choices["microbatch_size"] * degrees["pp"] * draw(st.sampled_from((1, 2, 5)))
    workload = Workload(
        batch, draw(st.sampled_from((1024, 1000))), num_tokens=draw(st.sampled_from((None, 10**9)))
    )
    try:
        return Plan.of(model, cluster, workload, **choices)
    except PlanError:
        assume(False)
        raise


def back(plan: Plan, form: str, text: str, **more: Any) -> Imported:
    """The text read again, with what the format does not carry."""
    carried = {
        "megatron": {},
        "torchtitan": {},
        "deepspeed": {"sequence_length": plan.workload.sequence_length},
    }
    model = None if form == "torchtitan" else plan.model
    size = {"cluster": plan.cluster.removeprefix("1x"), "num_devices": plan.num_devices}
    given = {**size, "model": model, **carried[form], **more}
    return FORMATS[form](text, "exported", Given(**given))


def same(plan: Plan, form: str) -> Plan:
    """What has to come back: how long to train and the names of things are not a plan's, an open class is filled in."""
    software = {"megatron": "fused", "torchtitan": "compiled", "deepspeed": "eager"}[form]
    batch = Workload(plan.workload.global_batch, plan.workload.sequence_length)
    return canonical(plan.changed(workload=batch), software)


@pytest.mark.parametrize("form", TARGETS)
def test_what_a_format_can_say_comes_back(form: str) -> None:
    @FEW
    @given(plans(form, is_usual=True))
    def check(plan: Plan) -> None:
        try:
            exported = export_plan(plan, form, Cluster(plan.cluster))
        except ExportError as error:
            assert error.refusals
            assume(False)  # hypothesis complains where this is most of them
            raise
        found = back(plan, form, exported.text)
        assert canonical(found.plan) == same(plan, form)
        assert found.unknown == ()
        assert exported == export_plan(plan, form, Cluster(plan.cluster))

    check()


@pytest.mark.parametrize("form", TARGETS)
def test_nothing_of_any_plan_is_dropped(form: str) -> None:
    @FEW
    @given(plans(form, is_usual=False))
    def check(plan: Plan) -> None:
        try:
            text = export_plan(plan, form, Cluster(plan.cluster)).text
        except ExportError as error:
            assert error.refusals and error.exit_code == 2
            return
        assert canonical(back(plan, form, text).plan) == same(plan, form)

    check()


def one_change(name: str, value: Any) -> Any:
    return pytest.param({name: value}, id=f"{name}={value}")


CHANGES = [
    one_change(name, value)
    for name, values in {**ANY, **OTHERS}.items()
    for value in values
    if name not in ("formats", "device_order", "schedule")
]
BASES: dict[str, dict[str, Any]] = {
    "megatron": {"sharding": "zero1", "overlap": ("reduce", "gather"), "software": "fused"},
    "torchtitan": {"sharding": "zero3", "overlap": ("reduce", "gather"), "software": "compiled"},
    "deepspeed": {"sharding": "zero2", "overlap": ("reduce",), "software": "eager"},
}


def base(form: str, **choices: Any) -> Plan:
    """A plan that the format can express."""
    formats = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
    degrees = {"tp": 2, "pp": 2, "sequence_parallel": True} if form != "deepspeed" else {"tp": 2}
    layers_per_stage = {"layers_per_stage": (16, 16)} if form != "deepspeed" else {}
    fields = {**formats, **degrees, **layers_per_stage, **BASES[form], **choices}
    return Plan.of(load_model("llama-3.1-8b"), Cluster("2x8xH100"), Workload(64, 4096), **fields)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", TARGETS)
def test_each_choice_is_said_or_refused(form: str, change: dict[str, Any]) -> None:
    plan = base(form, **change)
    try:
        text = export_plan(plan, form, Cluster(plan.cluster)).text
    except ExportError as error:
        (name,) = change
        words = {"mesh_order": "mesh_order", "split_backward": "split_backward", "recompute": "recompute"}
        assert words.get(name, "") in str(error)
        return
    assert canonical(back(plan, form, text).plan) == same(plan, form)


@pytest.mark.parametrize("form", TARGETS)
def test_every_refusal_is_listed_at_once(form: str) -> None:
    plan = base(form, vocabulary="one_barrier", split_backward=True, dtype="float64")
    with pytest.raises(ExportError) as error:
        export_plan(plan, form, Cluster(plan.cluster))
    choices = [refusal.choice for refusal in error.value.refusals]
    assert {'vocabulary = "one_barrier"', "split_backward = true", 'dtype = "float64"'} <= set(choices)
    assert all(f"  {each.choice}: {each.reason}" in str(error.value) for each in error.value.refusals)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_published_recipe_survives_the_way_there_and_back(recipe: Recipe) -> None:
    plan = FORMATS[recipe.form](recipe.text, recipe.name, Given(cluster=recipe.cluster)).plan
    exported = export_plan(plan, recipe.form, Cluster(plan.cluster))
    assert canonical(back(plan, recipe.form, exported.text).plan) == canonical(plan)


def test_texts_are_what_they_say() -> None:
    texts = {form: export_plan(base(form), form, Cluster("2x8xH100")) for form in TARGETS}
    assert tomllib.loads(texts["torchtitan"].text)["parallelism"]["data_parallel_shard_degree"] == 4
    assert json.loads(texts["deepspeed"].text)["zero_optimization"] == {"stage": 2, "overlap_comm": True}
    script = texts["megatron"].text
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert all(exported.plan_digest in exported.text for exported in texts.values())


def test_mistakes_are_told() -> None:
    plan = base("megatron")
    with pytest.raises(UnknownNameError, match="megatron"):
        export_plan(plan, "megatrom", Cluster("2x8xH100"))
    with pytest.raises(PlanError, match="16 devices"):
        export_plan(plan, "megatron", Cluster("8xH100"))
    with pytest.raises(SpecError):
        Cluster("0xH100")
