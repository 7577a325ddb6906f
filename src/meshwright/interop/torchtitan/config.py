"""Reads a torchtitan configuration (TOML) as a plan."""

from __future__ import annotations

from meshwright.interop.imported import Draft, Given, Imported, Option
from meshwright.interop.torchtitan.key import TomlKeys
from meshwright.interop.torchtitan.option import FLAVORS
from meshwright.specs.config.source import load_model
from meshwright.specs.data_text import toml_of
from meshwright.specs.error import PlanError, UnknownNameError
from meshwright.specs.model.model import ModelSpec

DEGREES = {  # our name of a choice -> the key, both ways
    "tp": "tensor_parallel_degree", "pp": "pipeline_parallel_degree", "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
}  # fmt: skip
# Our kind of context parallelism -> what context_parallel_rotate_method says; both deal tokens out in a zigzag.
CONTEXTS = {"ring": "alltoall", "all_gather": "allgather"}
SCHEDULES = {"1F1B": "1f1b", "Interleaved1F1B": "interleaved_1f1b", "GPipe": "gpipe"}
INTERLEAVED_CHUNKS = 2  # stages of a rank where the file does not say, for schedules with several
ATTENTION_SUFFIXES = ("_flex", "_varlen")  # of a flavor: another attention kernel on the same sizes
SEQUENCE_LENGTH, LOCAL_BATCH = 2048, 8  # torchtitan's own defaults
EXPECTED = ("model.name", "model.flavor", "training.local_batch_size", "parallelism.tensor_parallel_degree")
FLOAT8_DETAILS = (
    *("enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp"),
    *("force_recompute_fp8_weight_in_bwd", "emulate"),
)
EVERY_OTHER_LAYER = "2"  # the default of selective_ac_option


def import_torchtitan(text: str, where: str, given: Given) -> Imported:
    """The plan that a TOML file asks for, with its three lists. Raises PlanError or UnknownNameError."""
    try:
        tables = toml_of(text)
    except ValueError as error:
        raise PlanError(
            f"{where} is not TOML: {error}", allowed="a torchtitan configuration (.toml)"
        ) from None
    draft = Draft("torchtitan", where, given)
    keys = TomlKeys(draft, tables)
    if not any(name in keys.values for name in EXPECTED):
        raise PlanError(
            f"{where} is no torchtitan configuration", allowed="tables [model], [training], [parallelism]"
        )
    draft.model = _model(keys, given.model)
    draft.sequence_length = keys.count("training.seq_len", "sequence_length = {value}", SEQUENCE_LENGTH)
    draft.fill()
    _read_degrees(keys)
    cluster = draft.cluster()
    _read_mesh(keys, cluster.num_devices)
    _read_batch(keys)
    _read_precision(keys)
    _read_recompute(keys)
    _read_stages(keys)
    keys.sort_rest()
    return draft.finish(cluster)


def _model(keys: TomlKeys, given: ModelSpec | None) -> ModelSpec | None:
    """The preset of the file's flavor. Raises UnknownNameError where there is none and the user gave no model."""
    name = keys.read("model.name", "model {value}", "")
    flavor = keys.read("model.flavor", "flavor {value}", "")
    if given is not None:
        return None
    flavors = FLAVORS.get(name)
    if flavors is None:
        raise UnknownNameError(
            "torchtitan model", name, FLAVORS, next="or say which one it is: --model NAME|config.json"
        )
    plain = flavor
    for suffix in ATTENTION_SUFFIXES:
        plain = plain.removesuffix(suffix)
    if plain not in flavors:
        raise UnknownNameError(
            f"flavor of {name}", flavor, flavors, next="or give the model's dimensions: --model config.json"
        )
    if plain != flavor:
        keys.draft.assumptions.append(f"attention of flavor {flavor} is counted as causal flash attention")
    return load_model(flavors[plain])


def _read_degrees(keys: TomlKeys) -> None:
    for axis, name in DEGREES.items():
        keys.draft.degrees[axis] = keys.count(f"parallelism.{name}", f"{axis} = {{value}}", 1)
    experts_tp = keys.count(
        "parallelism.expert_tensor_parallel_degree", "tensor parallelism inside an expert = {value}", 1
    )
    if experts_tp not in (1, keys.draft.degree("tp")):
        keys.draft.assumptions.append(f"experts are split over tp, not over {experts_tp} devices")
    keys.draft.choices["sequence_parallel"] = keys.draft.degree("tp") > 1


def _read_mesh(keys: TomlKeys, num_devices: int) -> None:
    """dp = replicas x shards; -1 takes what is left."""
    draft, choices = keys.draft, keys.draft.choices
    replicas = keys.count(
        "parallelism.data_parallel_replicate_degree", "copies of the sharded model = {value}", 1
    )
    shards = keys.count(
        "parallelism.data_parallel_shard_degree", "sharded over {value} devices (-1: what is left)", -1
    )
    others = draft.degree("tp") * draft.degree("pp") * draft.degree("cp")
    if shards == -1:
        if num_devices % (others * replicas):
            raise PlanError(
                f"{draft.where}: degrees x copies = {others * replicas} do not divide {num_devices} devices",
                next="add --gpus or --cluster with the size of the job",
            )
        shards = num_devices // (others * replicas)
    draft.degrees["dp"] = replicas * shards
    is_sharded = shards * draft.degree("cp") > 1
    reshard = keys.read(
        "parallelism.fsdp_reshard_after_forward", "parameters are dropped after use: {value}", "default"
    )
    # The default keeps gathered parameters where there is a pipeline: they are used again by the next microbatch.
    keeps = reshard == "never" or (reshard == "default" and draft.degree("pp") > 1)
    choices["sharding"] = "none" if not is_sharded else "zero2" if keeps else "zero3"
    if replicas > 1 and is_sharded:
        choices["sharding_degree"] = shards * draft.degree("cp")
    overlap = ["reduce", "gather"] if is_sharded else ["reduce"]
    if keys.read("parallelism.enable_async_tensor_parallel", "overlap of 'tp': {value}", False):
        overlap += ["tp"] if draft.degree("tp") > 1 else []
    choices["overlap"] = tuple(overlap)
    keys.read("parallelism.disable_loss_parallel", "the loss is whole on each device: {value}", False)
    method = keys.read(
        "parallelism.context_parallel_rotate_method", "keys and values move by {value}", "allgather"
    )
    if draft.degree("cp") > 1:
        choices["context"] = next(
            (ours for ours, theirs in CONTEXTS.items() if theirs == method), "all_gather"
        )
        if method not in CONTEXTS.values():
            draft.assumptions.append("keys and values of other ranks are gathered")
        if choices["context"] == "all_gather":
            draft.assumptions.append(
                "the gather of keys and values is waited for; torchtitan begins with the attention to a rank's own meanwhile"
            )
    if (
        keys.read("parallelism.expert_parallel_comm_backend", "exchange of tokens by {value}", "standard")
        != "standard"
    ):
        draft.assumptions.append(
            "the exchange of tokens is counted as one all-to-all, as with the standard backend"
        )


def _read_batch(keys: TomlKeys) -> None:
    draft = keys.draft
    local = keys.count("training.local_batch_size", "{value} sequences of a rank", LOCAL_BATCH)
    whole = keys.count(
        "training.global_batch_size", "global_batch = {value} (-1: one local batch a rank)", -1
    )
    draft.compare("--global-batch", draft.given.global_batch, whole if whole > 0 else None)
    if draft.global_batch is None and whole > 0:
        draft.global_batch = whole
    draft.local_batch = local
    size = keys.count(
        "parallelism.pipeline_parallel_microbatch_size", "microbatch_size = {value} in a pipeline", 1
    )
    count = keys.count(
        "parallelism.pipeline_parallel_microbatches", "{value} microbatches of a local batch", 0
    )
    if draft.degree("pp") > 1:
        size = local // count if count and not local % count else size
    else:
        size = local
    draft.choices.setdefault("microbatch_size", size)


def _read_precision(keys: TomlKeys) -> None:
    choices = keys.draft.choices
    whole = keys.read("training.dtype", "parameters in {value}", "float32")
    choices["dtype"] = keys.read("training.mixed_precision_param", "dtype = {value}", "bfloat16")
    if choices["sharding"] == "none" and "training.mixed_precision_param" not in keys.values:
        keys.draft.assumptions.append("computes in bfloat16 under autocast")
    choices["master_dtype"] = whole
    choices["reduction_dtype"] = keys.read(
        "training.mixed_precision_reduce", "reduction_dtype = {value}", "float32"
    )
    is_compiled = keys.read("compile.enable", "torch.compile: {value}", False)
    parts = keys.read("compile.components", "compiled: {value}", ["model", "loss"])
    choices["software"] = "compiled" if is_compiled and "model" in parts else "eager"
    choices["float8"] = _float8(keys)


def _float8(keys: TomlKeys) -> str:
    """The recipe of linear layers, where a converter or the oldest releases' switch asks for one."""
    converters = keys.read("model.converters", "products of linear layers: {value}")
    names = [converters] if isinstance(converters, str) else converters or []
    if not isinstance(names, list):
        raise PlanError(
            f"{keys.draft.where}: model.converters is {converters!r}", allowed='a list such as ["float8"]'
        )
    recipe = keys.read("quantize.linear.float8.recipe_name", "float8 recipe {value}", "tensorwise")
    is_old = keys.read("quantize.linear.float8.enable_float8_linear", "float8: {value}", False)
    for name in FLOAT8_DETAILS:
        keys.read(f"quantize.linear.float8.{name}", "detail of the float8 recipe", False)
    keys.read("quantize.linear.mx.recipe_name", "recipe {value}", "")
    keys.read("quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", "detail of the recipe", "")
    found = ""
    for name in names:
        if name in ("mx", "quantize.linear.mx"):
            found = "mxfp8"
        elif name in ("float8", "quantize.linear.float8"):
            found = "rowwise" if recipe.startswith("rowwise") else "tensorwise"
        else:
            keys.draft.unknown.append(
                Option("model.converters", name, "a plan has a recipe for linear layers only")
            )
    return found or ("tensorwise" if is_old else "")


def _read_recompute(keys: TomlKeys) -> None:
    mode = keys.read("activation_checkpoint.mode", "recompute = {value}", "selective")
    option = str(
        keys.read("activation_checkpoint.selective_ac_option", "selective: {value}") or EVERY_OTHER_LAYER
    )
    choices = keys.draft.choices
    choices["recompute"] = {"none": "none", "full": "full"}.get(mode, "selective_op")
    if mode == "selective" and option != "op":
        choices["recompute"] = "full" if option == "1" else "selective_op"
        if option != "1":
            keys.draft.assumptions.append(
                f"recompute of every {option}. layer is counted as the per-operation policy (selective_ac_option = 'op')"
            )
    elif mode not in ("none", "full", "selective"):
        keys.draft.assumptions.append(
            f"activation_checkpoint.mode {mode!r} is counted as the per-operation policy"
        )
    for name in ("memory_budget", "visualize_memory_budget_pareto"):
        if mode == "memory_budget" and f"activation_checkpoint.{name}" in keys.values:
            keys.reject(f"activation_checkpoint.{name}", "a plan has no budget")
        else:
            keys.read(f"activation_checkpoint.{name}", "not used in this mode")


def _read_stages(keys: TomlKeys) -> None:
    """Schedule, chunks, and blocks of every stage as torchtitan deals them out."""
    draft, pp = keys.draft, keys.draft.degree("pp")
    name = keys.read("parallelism.pipeline_parallel_schedule", "schedule {value}", "1F1B")
    first = keys.read(
        "parallelism.pipeline_parallel_first_stage_less_layers", "the first stage has {value} less", 1
    )
    last = keys.read(
        "parallelism.pipeline_parallel_last_stage_less_layers", "the last stage has {value} less", 1
    )
    each = keys.count("parallelism.pipeline_parallel_layers_per_stage", "{value} layers a stage", 0)
    if pp == 1:
        return
    if name not in SCHEDULES:
        raise UnknownNameError(
            "schedule",
            name,
            SCHEDULES,
            next="choose one of those, or change the plan's schedule after the import",
        )
    draft.choices["schedule"] = SCHEDULES[name]
    weight = draft.required_model().num_layers + first + last
    chunks = INTERLEAVED_CHUNKS if name == "Interleaved1F1B" else 1
    if each:
        chunks, rest = divmod(-(-weight // each), pp)
        if rest or (chunks == 1) != (name != "Interleaved1F1B"):
            raise PlanError(
                f"{draft.where}: pipeline_parallel_layers_per_stage {each} makes {-(-weight // each)} stages",
                allowed=f"a multiple of pipeline_parallel_degree {pp} that fits the schedule {name}",
            )
    share, rest = divmod(weight, pp * chunks)
    counts = [share + (stage < rest) for stage in range(pp * chunks)]
    counts[0] -= first
    counts[-1] -= last
    draft.choices["num_chunks"] = chunks
    draft.choices["layers_per_stage"] = tuple(counts)
