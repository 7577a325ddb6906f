"""Rows of training tables become plans and clusters with what their words say, and what is assumed is said."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.evidence.training_sample import table_row

from meshwright.evidence.tables.job import TrainingJob, job_of
from meshwright.evidence.tables.table import TrainingRow, read_lines, read_training_table, training_row
from meshwright.evidence.tables.words import by_cumulative_cost, redistributed, with_vocabulary_as_layers
from meshwright.prediction.predicted import predict
from meshwright.specs.error import MeshwrightError, PlanError, SpecError

MOE = {"n_experts": 8, "topk": 2, "moe_ffn": 768, "ffn": 0, "dense_layers": 0, "shared_ffn": 0}
GPT = {"gated_mlp": 0, "kv_heads": 32, "ffn": 16384}
STAGE_TIMES = "vocab_parallel_stage_times.csv"


def _row(row_id: str = "ours-1", **fields) -> TrainingRow:
    values = {column: str(value) for column, value in table_row(row_id, 1.0, **fields).items()}
    return training_row(values, "ours.csv, line 2", "ours")


def _job(row_id: str = "ours-1", **fields) -> TrainingJob:
    return job_of(_row(row_id, **fields))


def _says(job: TrainingJob, words: str) -> bool:
    return any(words in line for line in job.assumptions)


def test_a_sharded_row_is_told_as_it_stands() -> None:
    plan, cluster = _job().plan, _job().cluster
    assert (plan.dp, plan.microbatch_size, plan.num_microbatches) == (8, 1, 2)
    assert (plan.sharding, plan.recompute, plan.dtype, plan.master_dtype) == (
        "zero3",
        "full",
        "bfloat16",
        "float32",
    )
    assert (plan.model.num_kv_heads, plan.model.num_parameters) == (8, 8_030_261_248)
    assert (cluster.name, cluster.devices[0].name, len(cluster.levels)) == ("8xH100", "H100", 1)


@pytest.mark.parametrize(
    ("extras", "is_hidden"),
    [
        ("asyncTP", True), ("compile; AsyncTP", True), ("async_tp", True), ("async-TP on", True), ("async TP", True),
        ("async tensor parallel", True), ("enable_async_tensor_parallel = true", True), ("tp_comm_overlap", True),
        ("tp-comm overlap", True), ("user buffers", True), ("ub-overlap", True), ("vanilla TP", False), ("compile", False),
        ("no asyncTP", False), ("without async TP, compile", False), ("tp_comm_overlap=off", False),
        ("tp-comm-overlap: false; compile", False), ("asynchronous checkpoints", False), ("async checkpoints; tp 2", False),
    ],
)  # fmt: skip
def test_exchanges_that_kernels_hide_have_many_names(extras: str, is_hidden: bool) -> None:
    assert ("tp" in _job(tp=2, sp=1, extras=extras).plan.overlap) == is_hidden


def test_what_a_row_denies_wins_over_what_its_source_is_known_for() -> None:
    named = {"source_repo": "https://github.com/NVIDIA/Megatron-LM", "tp": 2, "sp": 1, "zero": 1}
    assert "tp" in _job(**named).plan.overlap
    assert "tp" not in _job(**named, extras="tp_comm_overlap=false").plan.overlap


def test_what_is_hidden_in_part_is_said() -> None:
    job = _job(tp=2, sp=1, extras="nanotron; tp_mode REDUCE_SCATTER with async communication")
    assert "tp" not in job.plan.overlap and _says(job, "hides gathers in part")


@pytest.mark.parametrize(
    ("precision", "recipe"),
    [
        ("float8 row-wise", "rowwise"), ("fp8 rowwise", "rowwise"), ("float8 rowwise_with_gw_hp", "rowwise"),
        ("fp8 (per-token scales)", "rowwise"), ("float8 axiswise", "rowwise"), ("float8 tensorwise", "tensorwise"),
        ("fp8 sub-channel", "blockwise"), ("FP8-SC", "blockwise"), ("FP8-CS", "tensorwise"), ("mxfp8", "mxfp8"),
        ("fp8 per-tensor, narrow", "tensorwise"),
    ],
)  # fmt: skip
def test_recipes_of_float8_are_told_apart(precision: str, recipe: str) -> None:
    assert _job(precision=precision).plan.float8 == recipe


def test_bandwidths_of_the_row_are_those_of_two_levels() -> None:
    cluster = _job(gpus=32, global_batch_seqs=32, intra_GBps=123, inter_GBps=12.5).cluster
    assert [(level.num_devices, level.bandwidth_bytes_per_s) for level in cluster.levels] == [
        (8, 123e9),
        (32, 12.5e9),
    ]
    assert all(level.latency_s > 0 for level in cluster.levels)


def test_domains_of_72_are_filled_equally() -> None:
    job = _job(gpus=256, global_batch_seqs=256, gpu="GB300-NVL72", gpus_per_node=72)
    assert [level.num_devices for level in job.cluster.levels] == [64, 256]
    assert _says(job, "do not fill domains of 72")


def test_empty_columns_of_a_cluster_are_the_devices_usual_ones() -> None:
    job = _job(gpus=16, gpus_per_node="", intra_GBps="", inter_GBps="")
    assert [level.num_devices for level in job.cluster.levels] == [8, 16]
    assert all(_says(job, f"{name} is empty") for name in ("gpus_per_node", "intra_GBps", "inter_GBps"))


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("A100-80GB-SXM", "A100-80"),
        ("A100-40GB-SXM", "A100-40"),
        ("H100-96GB-HBM2e", "H100-96GB-HBM2e"),
        ("H200-141GB-SXM", "H200"),
        ("B200-SXM", "B200"),
        ("B300-SXM", "B300"),
        ("GB200-NVL72", "GB200"),
    ],
)
def test_names_of_devices_are_those_of_presets(name: str, preset: str) -> None:
    assert _job(gpu=name).cluster.devices[0].name == preset


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(MeshwrightError, match="abacus"):
        _job(gpu="abacus")


@pytest.mark.parametrize(
    ("words", "dtype", "recipe"),
    [
        ("amp_bf16", "bfloat16", ""),
        ("fp16 mixed", "float16", ""),
        ("fp16/bf16 mixed", "bfloat16", ""),
        ("fp32", "float32", ""),
        ("FP8-CS", "bfloat16", "tensorwise"),
        ("float8 rowwise", "bfloat16", "rowwise"),
        ("FP8-MX", "bfloat16", "mxfp8"),
        ("MXFP8", "bfloat16", "mxfp8"),
        ("FP8-SC", "bfloat16", "blockwise"),
        ("fp8 (transformer engine hybrid)", "bfloat16", "tensorwise"),
        ("float8 linears", "bfloat16", "tensorwise"),
    ],
)
def test_words_of_precision(words: str, dtype: str, recipe: str) -> None:
    plan = _job(precision=words).plan
    assert (plan.dtype, plan.float8) == (dtype, recipe)


def test_float8_without_a_recipe_is_said() -> None:
    assert _says(_job(precision="FP8"), "names no recipe")


@pytest.mark.parametrize(
    ("words", "recompute"),
    [
        ("selective (attention core)", "selective"),
        ("selective or none", "selective"),
        ("selective op", "selective_op"),
        ("selective (layernorm, moe act)", "none"),  # attention is not computed again
        ("selective (layernorm, core_attn)", "selective"),
        ("full", "full"),
        ("none", "none"),
    ],
)
def test_words_of_recompute(words: str, recompute: str) -> None:
    assert _job(recompute=words).plan.recompute == recompute


@pytest.mark.parametrize(
    ("fields", "etp", "overlap"),
    [
        ({"tp": 2, "cp": 2, "ep": 4}, 1, ()),  # experts take in devices of tp and cp
        ({"tp": 2, "cp": 2, "ep": 2}, 1, ()),  # those of tp alone
        ({"tp": 4, "cp": 2, "ep": 2}, 1, ()),  # some of those of tp
        ({"tp": 1, "ep": 4}, 0, ()),
        ({"tp": 2, "ep": 4, "extras": "DeepEP; 1f1b A2A overlap"}, 1, ("ep",)),
        ({"tp": 2, "ep": 4, "extras": "DeepEP; no A2A overlap"}, 1, ()),
    ],
)
def test_experts_of_a_source_that_keeps_them_whole(
    fields: dict[str, object], etp: int, overlap: tuple[str, ...]
) -> None:
    job = _job(
        source_repo="yanring/Megatron-MoE-ModelZoo", n_experts=8, topk=2, moe_ffn=512, gpus=16, global_batch_seqs=64,
        **fields,
    )  # fmt: skip
    beside = ("tp", *overlap) if job.plan.tp > 1 else overlap
    assert job.plan.etp == etp and job.plan.overlap == ("reduce", "gather", *beside)


@pytest.mark.parametrize(
    ("repository", "extras", "dispatch"),
    [
        ("yanring/Megatron-MoE-ModelZoo", "DeepEP; expert parallel inside the node", "once"),
        ("yanring/Megatron-MoE-ModelZoo", "HybridEP; forced balance", "once"),
        ("yanring/Megatron-MoE-ModelZoo", "all-to-all dispatcher", "copies"),
        ("AMD-AGI/Primus", "baseline", "copies"),
        ("AMD-AGI/Primus", "no DeepEP", "copies"),
        ("NVIDIA-NeMo/Megatron-Bridge", "MoE force-balanced", "once"),  # as its recipes
        ("NVIDIA-NeMo/Megatron-Bridge", "all-to-all dispatcher", "copies"),
    ],
)
def test_how_tokens_go_to_their_experts(repository: str, extras: str, dispatch: str) -> None:
    fields: dict[str, object] = {"n_experts": 8, "topk": 2, "moe_ffn": 512, "gpus": 16}
    job = _job(source_repo=repository, ep=4, extras=extras, global_batch_seqs=64, **fields)
    assert job.plan.dispatch == dispatch


def test_open_recompute_is_none_where_it_fits_else_full() -> None:
    small, large = _job(recompute=""), _job(recompute="", seq=131072)
    assert (small.plan.recompute, large.plan.recompute) == ("none", "full")
    assert _says(small, "recompute is empty: none")


def test_a_source_that_never_recomputes_all_is_not_said_to() -> None:
    job = _job(source_repo="NVIDIA-NeMo/Megatron-Bridge", recompute="", seq=131072)
    assert job.plan.recompute == "selective"
    assert _says(job, "none of the choices fits")


@pytest.mark.parametrize(
    "fields", [{"precision": "NVFP4"}, {"model": "llama3_70b_lora"}, {"extras": "LoRA fine-tuning"}]
)
def test_adapters_and_four_bits_are_refused(fields) -> None:
    with pytest.raises(SpecError, match="LoRA|NVFP4"):
        _job(**fields)


def test_words_of_extras_decide_sharing_and_overlap() -> None:
    named = {"source_repo": "InternLM/InternEvo", "gpus": 64, "zero": 1, "global_batch_seqs": 128}
    plan = _job(**named, extras="zero1 group size 8").plan
    assert (plan.sharding, plan.sharding_degree, plan.overlap) == ("zero1", 8, ("reduce",))
    assert _job(**named, extras="zero1 group size all").plan.sharding_degree == 0
    plan = _job(tp=2, sp=1, zero=1, extras="overlap grad-reduce, param-gather, tp-comm").plan
    assert (set(plan.overlap), plan.sequence_parallel) == ({"reduce", "gather", "tp"}, True)


def test_mixed_precision_of_fsdp_decides_the_format_of_sums() -> None:
    formats = {
        kind: _job(extras=f"fsdp_mixed_precision={kind}").plan.reduction_dtype for kind in ("DEFAULT", "PURE")
    }
    assert formats == {"DEFAULT": "float32", "PURE": "bfloat16"}


@pytest.mark.parametrize(
    ("method", "vocabulary"),
    [
        ("baseline", "ends"),
        ("redis", "ends"),
        ("vocab-1", "two_barriers"),
        ("vocab-2", "one_barrier"),
        ("interlaced", "interlaced"),
    ],
)
def test_methods_of_the_vocabulary_have_the_scripts_names(method: str, vocabulary: str) -> None:
    assert (
        _job(extras=f"method={method} (baseline=...)", pp=8, zero=0, recompute="none").plan.vocabulary
        == vocabulary
    )


def test_stages_that_show_how_layers_were_redistributed() -> None:
    """Counts behind the forward times that sail-sg/VocabularyParallelism publishes, 32 blocks on 8 stages."""
    by_vocabulary = {
        32000: (4, 4, 4, 4, 4, 4, 4, 4), 64000: (4, 4, 4, 4, 4, 4, 5, 3),
        128000: (4, 4, 4, 4, 4, 5, 5, 2), 256000: (4, 4, 4, 5, 5, 5, 5, 0),
    }  # fmt: skip
    block = 24 * 3072**2 + 4 * 2048 * 3072
    for vocabulary, counts in by_vocabulary.items():
        assert redistributed(32, 8, 2 * vocabulary * 3072 / block) == counts


def test_126_layers_on_64_stages_count_embedding_and_head() -> None:
    counts = with_vocabulary_as_layers(126, 64)
    assert counts == (1, *(2,) * 62, 1)
    job = _job(layers=126, gpus=64, pp=8, vpp=8, zero=1)
    assert job.plan.layers_per_stage == counts
    assert job.plan.schedule == "interleaved_1f1b"


def test_chunks_without_a_pipeline_are_one() -> None:
    assert (_job(vpp=4).plan.num_chunks, _job(vpp=4).plan.schedule) == (1, "1f1b")


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "tp", "pp", "gpus", "batch", "microbatch", "chunks"),
    [
        (24, 2304, 24, 1, 1, 32, 512, 16, 1),
        (48, 8192, 64, 8, 2, 512, 1536, 4, 1),
        (80, 12288, 96, 8, 8, 1536, 2304, 2, 2),
        (105, 20480, 128, 8, 35, 2520, 2520, 1, 3),
    ],
)
def test_the_2021_papers_open_columns(layers, hidden, heads, tp, pp, gpus, batch, microbatch, chunks) -> None:
    fields = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": "",
        "ffn": 4 * hidden,
    }
    job = _job(
        note="arXiv 2104.04473, table 1", **fields, vocab=51200, seq=2048, gated_mlp=0, tied_emb=1, tp=tp, pp=pp, gpus=gpus,
        global_batch_seqs=batch, micro_batch_seqs="", num_microbatches="", vpp="", zero=0,
    )  # fmt: skip
    assert (job.plan.microbatch_size, job.plan.num_chunks) == (microbatch, chunks)
    assert (job.plan.attention, job.plan.overlap, job.stack) == ("unfused_dropout", (), "Megatron-LM, early")


def test_as_many_chunks_as_divide() -> None:
    job = _job(
        source_repo="NVIDIA/Megatron-LM", **GPT, gpus=64, pp=8, vpp="", global_batch_seqs=64, micro_batch_seqs="",
        num_microbatches="",
    )  # fmt: skip
    assert (job.plan.num_chunks, job.plan.microbatch_size) == (4, 4)


def test_of_an_unknown_source_a_microbatch_is_one_sequence() -> None:
    job = _job(micro_batch_seqs="", num_microbatches="", vpp="")
    assert job.plan.microbatch_size == 1
    assert job.stack == ""
    assert _says(job, "micro_batch_seqs is empty")


def test_a_known_number_of_microbatches_gives_their_size() -> None:
    assert _job(micro_batch_seqs="", num_microbatches=1).plan.microbatch_size == 2


def test_software_is_known_by_its_repository_too() -> None:
    assert _job(source_repo="pytorch/torchtitan", extras="compile").stack == "torchtitan compiled"
    assert _job(source_repo="pytorch/torchtitan", extras="eager").stack == "torchtitan eager"


def test_a_microbatch_that_does_not_divide_becomes_the_nearest() -> None:
    job = _job(global_batch_seqs=48, micro_batch_seqs=4)
    assert job.plan.microbatch_size == 3
    assert _says(job, "do not divide 6")


def test_a_batch_that_does_not_divide_over_replicas_is_refused() -> None:
    with pytest.raises(SpecError, match="15 sequences do not divide over dp"):
        _job(global_batch_seqs=15)


def test_dp_is_what_is_left_of_the_devices() -> None:
    job = _job(dp=2)
    assert job.plan.dp == 8
    assert _says(job, "dp is 2 in the table")
    with pytest.raises(SpecError, match="8 devices do not divide"):
        _job(tp=3)


def test_an_ungated_model_is_gpt2s_kind_and_ties_its_table() -> None:
    model = _job(**GPT, tied_emb="").plan.model
    assert (model.architecture, model.has_tied_embeddings, model.mlp.has_bias) == ("gpt2", True, True)


def test_an_ungated_model_with_grouped_heads_keeps_its_parameters() -> None:
    job = _job(gated_mlp=0, ffn=16384)
    assert job.plan.model.architecture == "llama"
    assert 3 * job.plan.model.intermediate_size == pytest.approx(2 * 16384, rel=1e-3)
    assert _says(job, "ungated")


def test_a_vocabulary_that_does_not_divide_is_padded() -> None:
    job = _job(vocab=50257, tp=8, zero=1)
    assert job.plan.model.vocabulary_size == 51200
    assert _says(job, "padded to 51200")


def test_open_shapes_are_the_usual_ones() -> None:
    model = _job(kv_heads="", head_dim="", ffn="", gated_mlp="").plan.model
    assert (model.num_kv_heads, model.head_dim, model.intermediate_size) == (32, 128, 16384)


def test_experts_and_windows() -> None:
    model = _job(**MOE, ep=8, model="qwen3_30b_a3b").plan.model
    assert (model.architecture, model.num_experts, model.attention.has_query_key_norm) == (
        "qwen3_moe",
        8,
        True,
    )
    windowed = _job(**MOE, ep=8, model="gpt_oss_120b", attention="gqa+sliding128 alternating").plan
    assert (windowed.model.dimensions()["sliding_window"], windowed.ep) == (128, 8)
    assert windowed.model.dimensions()["sliding_layers"] == tuple(range(0, 32, 2))


def test_latent_attention_has_deepseeks_ranks() -> None:
    fields = {**MOE, "ffn": 18432, "moe_ffn": 2048, "dense_layers": 3, "shared_ffn": 2048}
    job = _job(**fields, model="deepseek_v3", attention="mla", heads=128, kv_heads=128, hidden=7168)
    model = job.plan.model
    assert (model.attention.latent.key_value_rank, model.head_dim) == (512, 192)
    assert [count for _, count in model.blocks][0] == 3 and not model.layers[2].experts
    assert _says(job, "latent attention")


@given(
    heads=st.sampled_from([1, 2, 6, 12, 25]),
    group=st.sampled_from([1, 2, 3]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    dp=st.integers(1, 3),
    layers=st.integers(1, 9),
    vocab=st.integers(17, 600),
    microbatch=st.sampled_from(["", 1, 2, 3, 7]),
    vpp=st.sampled_from(["", 1, 2, 5]),
    gated=st.booleans(),
)
def test_odd_shapes_become_plans_of_the_same_size(
    heads, group, tp, pp, cp, dp, layers, vocab, microbatch, vpp, gated
) -> None:
    kv_heads = heads // group if heads % group == 0 else heads
    gpus, batch = tp * pp * cp * dp, 4 * dp
    fields = {
        "heads": heads,
        "kv_heads": kv_heads,
        "hidden": heads * 16,
        "head_dim": "",
        "ffn": "",
        "layers": layers,
    }
    asked = partial(
        _job, **fields, tp=tp, pp=pp, cp=cp, dp="", gpus=gpus, vocab=vocab, micro_batch_seqs=microbatch, vpp=vpp, sp=1,
        gated_mlp=int(gated), global_batch_seqs=batch, zero=1, recompute="", num_microbatches="", seq=64,
    )  # fmt: skip
    if heads % tp or kv_heads % tp:  # decision 18
        with pytest.raises(PlanError, match=f"tp={tp} does not divide"):
            asked()
        return
    job = asked()
    assert job.plan.world_size == job.cluster.num_devices == gpus
    assert sum(job.plan.layers_per_stage) == layers
    assert job.plan.num_microbatches * job.plan.microbatch_size * dp == batch
    assert job.plan.model.vocabulary_size % tp == 0


def test_every_core_row_of_the_shared_tables_becomes_a_plan(shared_data: Path) -> None:
    folder = shared_data / "calibration" / "training"
    rows = [
        row
        for path in sorted(folder.glob("*.csv"))
        if path.name != STAGE_TIMES
        for row in read_training_table(path)
    ]
    core = [row for row in rows if row.is_core]
    assert len(core) == 230
    for row in core:
        job = job_of(row)
        assert job.plan.world_size == job.cluster.num_devices == row.count("gpus")
        assert job.plan.workload.tokens_per_step == row.count("seq") * row.count("global_batch_seqs")
        assert job.stack
    with pytest.raises(SpecError, match="single stages"):
        read_training_table(folder / STAGE_TIMES)


def test_nothing_follows_from_what_a_table_calls_its_source(shared_data: Path) -> None:
    tables = [
        path
        for path in sorted((shared_data / "calibration").glob("training*/*.csv"))
        if path.name != STAGE_TIMES
    ]
    rows = [
        row for path in tables for row in read_lines(path) if isinstance(row, TrainingRow) and row.is_core
    ]
    seen = {(row.source, row.text("extras"), row.text("schedule"), row.text("note")): row for row in rows}
    assert len({row.source for row in rows}) == 15
    for row in seen.values():
        ours, others = job_of(row), job_of(replace(row, source="somebody", row_id="somebody-1"))
        assert (others.plan, others.stack) == (replace(ours.plan, model=others.plan.model), ours.stack)


def test_of_the_other_rows_only_adapters_and_four_bits_are_left_out(shared_data: Path) -> None:
    folder = shared_data / "calibration" / "training"
    for path in sorted(folder.glob("*.csv")):
        if path.name == STAGE_TIMES:
            continue
        for row in read_training_table(path):
            try:
                job_of(row)
            except SpecError as error:
                assert "LoRA" in str(error) or "FP4" in str(error)


def test_steps_on_amd_are_near_though_nothing_was_fitted_on_them(shared_data: Path) -> None:
    table = shared_data / "calibration" / "training_wild" / "primus_amd.csv"
    rows = [row for row in read_training_table(table) if row.is_core]
    errors = []
    for row in rows:
        job = job_of(row)
        step = predict(job.plan, job.cluster).step
        assert step.basis == "never seen" and step.low <= row.measured_s <= step.high
        errors.append(abs(step.value / row.measured_s - 1))
    assert len(errors) == 6 and sorted(errors)[3] <= 0.15


@pytest.mark.parametrize(
    ("fields", "software"),
    [
        ({"extras": "my own loop"}, "eager, float32 sums"),
        ({"extras": "Megatron-DeepSpeed"}, "fused, float32 sums"),
        ({"extras": "fused cross entropy", "source_repo": "AMD-AGI/Primus"}, "fused, loss in place"),
        ({"extras": "NeMo, fused cross entropy"}, "fused"),
        ({"extras": "NeMo, CUDA graphs"}, "captured"),
        ({"extras": "NeMo, no CUDA graphs"}, "fused"),
        ({"source_repo": "somebody/Megatron-LM"}, "fused"),
        ({"extras": "my own loop, compiled"}, "fused"),
        ({"extras": "NeMo, CUDA graphs", **MOE}, "fused"),
        ({"extras": "NeMo; CUDA graphs of attn, moe_router", **MOE}, "captured"),
        ({"extras": "NeMo; no CUDA graphs of attn, moe_router", **MOE}, "fused"),
    ],
)
def test_of_software_that_nobody_knows_every_operation_runs_by_itself(
    fields: dict[str, str | int], software: str
) -> None:
    assert _job(schedule="1f1b", zero=1, **fields).plan.software == software


def test_a_run_of_a_day_before_fused_attention_writes_its_scores() -> None:
    named = {"schedule": "1f1b", "zero": 1, "extras": "Megatron"}
    assert (
        _job(**named, note="line 3, 2022-02-26; after the fix of 2022-02-25").plan.attention
        == "unfused_dropout"
    )
    assert _job(**named, note="2022-02-26, measured again 2023-02-26").plan.attention == "flash"
    named["extras"] = "my own loop"
    assert _job(**named, note="arXiv 2104.12345").plan.attention == "unfused"


def test_stages_that_are_balanced_by_cost_have_few_blocks_beside_the_head() -> None:
    """By hand: 16 blocks and a head of 4 on 4 stages, 5 each; a stage ends behind the block that exceeds its share."""
    assert by_cumulative_cost(16, 4, 4.0) == (6, 5, 5, 0)
    assert by_cumulative_cost(4, 2, 0.0) == (3, 1)
    named = {"source_repo": "somebody/nanotron", "schedule": "1f1b", "zero": 1, "pp": 4, "dp": 2}
    layers = _job(**named).plan.layers_per_stage
    assert sum(layers) == 32 and layers[-1] < layers[0]
