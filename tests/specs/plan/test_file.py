"""Plan files: whole round trips, and one clear message for every broken file."""

import dataclasses
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.covering import examples

from meshwright.specs import (
    Cluster,
    ModelSpec,
    PassOption,
    Plan,
    PlanError,
    Workload,
    load_model,
    model_presets,
)
from meshwright.specs.model.dimension import ADDED_DIMENSIONS
from meshwright.specs.plan.file import plan_table
from meshwright.specs.plan.software import CLASSES

CLUSTER = Cluster("4xcpu")


TEXT = f"""\
# llama-3.1-8b on 4xcpu: pp(2) x dp(2) x cp(1) x tp(1) = 4. What is not said here is as in meshwright.Plan.
schema = 6
cluster = "4xcpu"
num_devices = 4
pp = 2
dp = 2
layers_per_stage = [16, 16]
recompute = "full"

[model]
preset = "llama-3.1-8b"
digest = "{load_model("llama-3.1-8b").digest}"

[workload]
global_batch = 16
sequence_length = 128
"""


def small(**choices):
    model = ModelSpec.decoder(6, 64, 4, has_tied_embeddings=True)
    return Plan.of(model, CLUSTER, Workload(16, 128), **{"pp": 2, **choices})


OPTIONS = st.dictionaries(
    st.text("abc_", min_size=1, max_size=5), st.one_of(st.integers(-5, 5), st.booleans(), st.text(max_size=5))
)


@settings(max_examples=examples(60), deadline=None)
@given(
    pp=st.sampled_from([1, 2, 4]),
    microbatch_size=st.sampled_from([1, 2]),
    recompute=st.sampled_from([("none", 0), ("full", 0), ("full", 3), ("selective", 2)]),
    split_backward=st.booleans(),
    schedule=st.sampled_from(["gpipe", "interleaved_1f1b", "./mine.py:wave", 'quo"te']),
    order=st.permutations(range(4)),
    lengths=st.sampled_from([(), ((128, 0.25), (64, 0.75))]),
    num_tokens=st.sampled_from([None, 10**12]),
    passes=st.lists(st.builds(PassOption, st.text(max_size=8), OPTIONS), max_size=2).map(tuple),
)
def test_what_is_saved_is_loaded(lengths, num_tokens, order, recompute, **choices):
    workload = Workload(16, 128, lengths, num_tokens)
    choices["num_chunks"] = (
        2 if choices["schedule"] == "interleaved_1f1b" else 1
    )  # the others are nobody's here
    plan = Plan.of(load_model("qwen3-8b"), CLUSTER, workload, device_order=tuple(order), **choices)
    kind, count = recompute
    plan = plan.changed(recompute=kind, recompute_blocks=(count,) * plan.num_stages if count else ())
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.toml")
        assert Plan.load(Path(folder) / "plan.toml") == plan
        assert [path.name for path in Path(folder).iterdir()] == ["plan.toml"]


@settings(max_examples=examples(60), deadline=None)
@given(
    degrees=st.sampled_from([(2, 1, 2), (1, 2, 2), (1, 4, 1), (1, 1, 4)]),
    sharding=st.sampled_from(["none", "zero1", "zero2", "zero3"]),
    is_partial=st.booleans(),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "selective_op", "full"]),
    float8=st.sampled_from(["", "tensorwise", "rowwise", "blockwise", "mxfp8"]),
    reduction_dtype=st.sampled_from(["", "float32", "bfloat16"]),
    master_dtype=st.sampled_from(["", "float32"]),
    overlap=st.lists(st.sampled_from(["reduce", "gather", "tp"]), unique=True).map(tuple),
    vocabulary=st.sampled_from(["ends", "one_barrier", "two_barriers", "interlaced"]),
    attention=st.sampled_from(["flash", "unfused"]),
    software=st.sampled_from(["", *CLASSES]),
    mesh_order=st.permutations(["pp", "dp", "cp", "tp"]).map(tuple),
)
def test_every_choice_is_loaded_as_saved(degrees, is_partial, sequence_parallel, **choices):
    dp, cp, tp = degrees
    plan = small(
        pp=1, dp=dp, cp=cp, tp=tp, ep=dp * cp, sharding_degree=cp if is_partial else 0,
        sequence_parallel=sequence_parallel and tp > 1, **choices,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.toml")
        assert Plan.load(Path(folder) / "plan.toml") == plan


def test_a_file_says_what_is_not_as_usual_and_the_degrees_first(tmp_path):
    plan = Plan.of(load_model("llama-3.1-8b"), CLUSTER, Workload(16, 128), pp=2, recompute="full")
    plan.save(tmp_path / "plan.toml")
    assert (tmp_path / "plan.toml").read_text() == TEXT
    assert Plan.load(tmp_path / "plan.toml") == plan


def test_a_complete_table_names_every_field_of_a_plan():
    assert set(plan_table(small(), complete=True)) == {
        "schema",
        *(field.name for field in dataclasses.fields(Plan)),
    }


@pytest.mark.parametrize("name", model_presets())
def test_a_preset_is_named(name):
    model = load_model(name)
    table = plan_table(Plan.of(model, CLUSTER, Workload(16, 128)))["model"]
    assert table == {"preset": name, "digest": model.digest}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_sequence_length": 64}, {"preset": "llama-3.1-8b", "max_sequence_length": 64}),
        (
            {"lora_rank": 8, "lora_targets": ("qkv",), "source": "mine"},
            {"preset": "llama-3.1-8b", "lora_rank": 8, "lora_targets": ["qkv"], "source": "mine"},
        ),
        ({"name": "mine"}, {"name": "mine", "architecture": "llama"}),
        ({"num_layers": 4}, {"name": "llama-3.1-8b", "architecture": "llama"}),
        ({"has_qkv_bias": True}, {"name": "llama-3.1-8b", "architecture": "llama"}),
    ],
)
def test_a_changed_preset_says_what_is_changed(tmp_path, change, said):
    plan = Plan.of(load_model("llama-3.1-8b").changed(**change), CLUSTER, Workload(16, 128))
    table = plan_table(plan)["model"]
    assert said.items() <= table.items() and ("preset" in table) == ("preset" in said)
    assert ("blocks" in table) == ("preset" not in said)
    plan.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == plan


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('preset = "llama-3.1-8b"', 'preset = "llama-3.1-9b"', "did you mean llama-3.1-8b"),
        ('preset = "llama-3.1-8b"', "preset = 8", "'8'"),
        ('preset = "llama-3.1-8b"', 'preset = "llama-3.1-70b"', "hash to"),
        ("digest =", "rope_theta = 5.0\ndigest =", "hash to"),
        ("digest =", "rope_theat = 5.0\ndigest =", "did you mean rope_theta"),
        ('digest = "', 'digest = "0', "hash to"),
    ],
)
def test_a_preset_that_is_another_is_refused(tmp_path, old, new, said):
    assert old in TEXT
    (tmp_path / "plan.toml").write_text(TEXT.replace(old, new))
    with pytest.raises(PlanError, match=re.escape(said)):
        Plan.load(tmp_path / "plan.toml")


MODELS = st.sampled_from(
    [
        ModelSpec.decoder(8, 64, 4),
        ModelSpec.gpt(8, 64, 4, vocabulary_size=128, max_sequence_length=128, name='quo"te', source=""),
        load_model("deepseek-v2-lite").changed(num_layers=8),
        load_model("gpt-oss-20b").changed(num_layers=8, sliding_layers=(0, 1, 6)),
        load_model("gemma-2-9b").changed(num_layers=8, sliding_layers=tuple(range(8))),
        load_model("qwen3-0.6b").changed(num_layers=8, rope_scaling="llama3", rope_factor=2.0, rope_high_factor=4.0,
                                         rope_original_length=9),
    ]
)  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(MODELS, st.sampled_from([1, 2, 4]), st.lists(st.builds(PassOption, st.text(), st.dictionaries(st.text(), st.lists(
    st.one_of(st.integers(), st.text(), st.dictionaries(st.text(), st.booleans())))))))  # fmt: skip
def test_any_model_and_any_options_come_back(model, pp, passes):
    plan = Plan.of(model, CLUSTER, Workload(16, 64), pp=pp, passes=tuple(passes))
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.toml")
        assert Plan.load(Path(folder) / "plan.toml") == plan


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema = 6", "schema = 7", "install a meshwright that reads schema 7"),
        ("schema = 6", "", "'schema' is missing"),
        ("recompute =", "recompte =", "did you mean recompute"),
        ("cluster =", "clutser =", "did you mean cluster"),
        ("[workload]", "[workload", "is not a TOML file"),
        ("pp = 2", 'pp = "2"', "'pp' is '2'"),
        ("pp = 2", "pp = 3", "pp(3) x dp(2)"),
        ("dp = 2", "dp = 2\nsplit_backward = 0", "true or false"),
        ("dp = 2", "dp = 2\nrecompute_blocks = 1", "'recompute_blocks' is 1"),
        ("dp = 2", 'dp = 2\nrecompute_blocks = ["1"]', "'recompute_blocks', entry 0 is '1'"),
        ('"full"', '"none"\nrecompute_blocks = [1, 1]', 'with recompute = "none"'),
        ('layers = "0-5"', 'layers = "0-6"', "hash to"),
        ('layers = "0-5"', "", "'layers' is None"),
        ("num_heads = 4", "num_heads = 8", "hash to"),
        ("num_heads = 4", "", "'num_heads' is missing"),
        ("num_heads = 4", 'num_heads = "4"', "a whole number"),
        ("hidden_size = 64", "hidden_size = -1", "hidden_size is -1"),
        ("sequence_length = 128", "sequence_length = -1", "whole number from 1"),
        ("global_batch = 16", "", "'global_batch' is missing"),
        ("layers_per_stage = [3, 3]", "", "'layers_per_stage' is missing"),
        ("dp = 2", "dp = 2\nsequence_parallel = 1", "true or false"),
        ("dp = 2", "dp = 2\nsequence_parallel = true", "sequence_parallel is on with tp=1"),
        ("dp = 2", 'dp = 2\nsharding_degree = "4"', "'sharding_degree' is '4'"),
        ("dp = 2", 'dp = 2\nattention = "flesh"', "flash or unfused"),
        ("dp = 2", 'dp = 2\nsoftware = "fuzed"', "did you mean fused"),
        ("[workload]", "[softwear]\n[workload]", "did you mean software"),
    ],
)
def test_a_broken_file_gives_one_clear_message(tmp_path, old, new, said):
    path = tmp_path / "plan.toml"
    small(recompute="full").save(path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PlanError, match=re.escape(said)) as caught:
        Plan.load(path)
    assert str(caught.value).count(str(path)) == 1


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b", "gemma-2-9b", "mistral-7b"])
def test_plans_of_every_kind_of_block_are_loaded_as_saved(tmp_path, name):
    plan = Plan.of(load_model(name), CLUSTER, Workload(16, 128), pp=4)
    plan.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == plan


def test_a_plan_of_schema_1_is_loaded_with_the_digest_it_had(tmp_path):
    """`plan_schema_1.toml` was written by the version that had schema 1."""
    path = Path(__file__).parent / "plan_schema_1.toml"
    assert not any(field in path.read_text() for field in ADDED_DIMENSIONS)
    loaded = Plan.load(path)
    assert loaded == small() and loaded.model_digest == "cee9f1715337f113"
    loaded.save(tmp_path / "plan.toml")
    assert (tmp_path / "plan.toml").read_text().splitlines()[1] == "schema = 6"


def test_a_contiguous_ring_of_schema_5_is_a_ring_with_contiguous_tokens(tmp_path):
    path, plan = tmp_path / "plan.toml", small(dp=1, cp=2, token_layout="contiguous")
    plan.save(path)
    text = path.read_text()
    old = text.replace("schema = 6", "schema = 5").replace('token_layout = "contiguous"', "")
    path.write_text(old.replace("cp = 2\n", 'cp = 2\ncontext = "ring_contiguous"\n', 1))
    assert Plan.load(path) == plan
    path.write_text(text.replace("cp = 2\n", 'cp = 2\ncontext = "ring_contiguous"\n', 1))
    with pytest.raises(PlanError, match="ring or all_gather or ulysses"):
        Plan.load(path)


def test_a_plan_of_schema_2_is_loaded_with_the_defaults_of_what_it_did_not_know(tmp_path):
    """`plan_schema_2.toml` was written by the version that had schema 2."""
    path = Path(__file__).parent / "plan_schema_2.toml"
    text = path.read_text()
    assert text.startswith("schema = 2\n") and "[software]" not in text and "overlap" not in text
    expected = small(recompute="full", split_backward=True, dtype="bfloat16", device_order=(1, 0, 3, 2))
    loaded = Plan.load(path)
    assert loaded == expected and loaded.overlap == ("reduce",) and loaded.vocabulary == "ends"
    loaded.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == loaded


def test_a_plan_of_schema_3_recomputes_all_blocks(tmp_path):
    """`plan_schema_3.toml` was written by the version that had schema 3."""
    path = Path(__file__).parent / "plan_schema_3.toml"
    text = path.read_text()
    assert text.startswith("schema = 3\n") and "recompute_blocks" not in text
    loaded = Plan.load(path)
    assert loaded == small(
        recompute="full", sharding="zero1", dtype="bfloat16", master_dtype="float32", software="fused",
        overlap=("reduce", "gather"),
    )  # fmt: skip
    assert loaded.num_recomputed_blocks == loaded.layers_per_stage
    loaded.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == loaded


def test_a_plan_of_schema_4_has_its_sections_and_its_model_as_one_list_of_numbers(tmp_path):
    """`plan_schema_4.toml` was written by the version that had schema 4."""
    path = Path(__file__).parent / "plan_schema_4.toml"
    text = path.read_text()
    assert text.startswith("schema = 4\n") and "[parallel]" in text and "sliding_layers" in text
    loaded = Plan.load(path)
    assert loaded == Plan.of(
        load_model("gpt-oss-20b"), CLUSTER, Workload(16, 128, ((128, 0.25), (64, 0.75)), 10**12), pp=2,
        recompute="full", recompute_blocks=(1, 2), sharding="zero1", dtype="bfloat16",
        passes=(PassOption("offload", {"bytes": 3}),),
    )  # fmt: skip
    assert f'digest = "{loaded.model_digest}"' in text
    loaded.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == loaded
    changed = tmp_path / "changed.toml"
    changed.write_text(text.replace("num_experts = 32", "num_experts = 64"))
    with pytest.raises(PlanError, match="hash to"):
        Plan.load(changed)
    changed.write_text(text.replace("[parallel]", "[parallel]\nrecompte = 1"))
    with pytest.raises(PlanError, match="did you mean recompute"):
        Plan.load(changed)


def test_a_width_that_no_block_has_is_known_again_and_left_out():
    """All blocks of `plan_schema_4_unused_width.toml` have experts; its digest counts the width of an MLP, too."""
    path = Path(__file__).parent / "plan_schema_4_unused_width.toml"
    loaded = Plan.load(path)
    assert loaded.model == load_model("qwen3-30b-a3b") and loaded.model_digest not in path.read_text()


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"schema = 1\n", b"model = 3\nschema = 1\n"])
def test_a_corrupt_file_is_a_plan_error(tmp_path, content):
    path = tmp_path / "plan.toml"
    path.write_bytes(content)
    with pytest.raises(PlanError, match=re.escape(str(path))):
        Plan.load(path)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_cut_or_changed_file_never_shows_a_traceback_of_another_kind(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        small().save(path)
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            del content[place:]
        else:
            content[place] = data.draw(st.integers(0, 255))
        path.write_bytes(bytes(content))
        try:
            loaded = Plan.load(path)
        except PlanError:
            return
        assert loaded.layers_per_stage and sum(loaded.layers_per_stage) == loaded.model.num_layers


def test_a_missing_file_and_an_unwritable_place(tmp_path):
    with pytest.raises(PlanError, match="there is no file"):
        Plan.load(tmp_path / "none.toml")
    with pytest.raises(PlanError, match="cannot be written"):
        small().save(tmp_path / "no" / "folder" / "plan.toml")


def test_a_file_that_says_a_whole_number_for_a_fraction_keeps_its_digest(tmp_path):
    path = tmp_path / "plan.toml"
    plan = small().changed(model=small().model.changed(rope_theta=20000.0))
    plan.save(path)
    assert "rope_theta = 20000.0" in path.read_text()
    path.write_text(path.read_text().replace("rope_theta = 20000.0", "rope_theta = 20000"))
    assert Plan.load(path) == plan
