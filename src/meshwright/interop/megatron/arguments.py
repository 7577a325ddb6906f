"""Reads a Megatron-LM launch: a shell script, or any text with its options; as a plan."""

from __future__ import annotations

from meshwright.interop.imported import Draft, Given, Imported
from meshwright.interop.launch.shell_script import ShellScript
from meshwright.interop.megatron.model import megatron_model
from meshwright.interop.megatron.option import AS_ASSUMED, IRRELEVANT, NOT_IN_A_PLAN, PIPELINE_INSIDE
from meshwright.interop.megatron.router import read_router
from meshwright.interop.option_set import OptionSet, launch_words
from meshwright.specs.error import PlanError
from meshwright.specs.model.division import shared_by_expert
from meshwright.specs.model.layers import split_layers
from meshwright.specs.stack.traits import traits_of

SOFTWARE = traits_of(["megatron"]).fuses  # its efficiency class, with Transformer Engine
CAPTURED = "captured"  # the same as one graph for the whole step
ATTENTION_DROPOUT = "0.1"  # where --attention-dropout is left out
GRAPH_SCOPE, WHOLE_STEP = "cuda-graph-scope", "full_iteration"
# Both ways: our name of a choice -> the option.
DEGREES = {
    "tp": "tensor-model-parallel-size", "pp": "pipeline-model-parallel-size", "cp": "context-parallel-size",
    "ep": "expert-model-parallel-size",
}  # fmt: skip
# Heads exchanged inside a ring: how many devices do, and how many such groups the ring has.
IN_TWO_LEVELS, LEVELS = "a2a+p2p", "hierarchical-context-parallel-sizes"
# Our kind of context parallelism -> what --cp-comm-type says; the first is meant where it is left out.
CONTEXTS = {"ring": "p2p", "all_gather": "all_gather", "ulysses": "a2a"}
OVERLAPS = {
    "reduce": "overlap-grad-reduce",
    "gather": "overlap-param-gather",
    "tp": "tp-comm-overlap",
    "ep": "overlap-moe-expert-parallel-comm",
}
_FLOAT8 = {"delayed": "tensorwise", "tensorwise": "tensorwise", "blockwise": "blockwise", "mxfp8": "mxfp8"}
_FSDP_STRATEGIES = {
    "no_shard": "none", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3",
}  # fmt: skip


def import_megatron(text: str, where: str, given: Given) -> Imported:
    """The plan that a script asks for, with its three lists.

    Args:
        text: the script, or lines of options.
        where: its file, for messages.
        given: what the user says beside it.

    Raises PlanError naming the option, or the flag for what the script does not say.
    """
    script = ShellScript.read(text, given.variables)
    draft = Draft("megatron", where, given)
    words = launch_words(script.commands)
    if not any(word.startswith("--") for word in words):
        words = [word for values in script.variables.values() for text in values for word in text.split()]
        draft.assumptions.append(f"{where} launches nothing: its options are those of its variables")
    options = OptionSet(words, draft)
    if not options.values:
        raise PlanError(
            f"{where} has no options of Megatron-LM",
            allowed="a shell script that launches it, or text with --num-layers ... and the like",
        )
    draft.assumptions += script.notes
    _read_batch(options)
    _read_degrees(options)
    _read_world(options)
    draft.model = megatron_model(options, draft.degree("tp"))
    draft.fill()
    cluster = draft.cluster()
    _read_precision(options)
    num_replicas = draft.data_parallel(cluster.num_devices) * draft.degree("cp")
    _read_expert_degree(options, num_replicas)
    _read_sharding(options, num_replicas)
    _read_context(options)
    _read_recompute(options)
    _read_overlap(options)
    _read_stages(options)
    _read_recomputed_blocks(options)
    dispatcher = options.text("moe-token-dispatcher-type", "exchange of tokens: {value}", "alltoall")
    if dispatcher == "allgather":
        draft.assumptions.append(
            "tokens go to their experts all to all, not by --moe-token-dispatcher-type allgather"
        )
    is_once = options.flag("moe-enable-deepep", "dispatch = once")
    backend = options.text("moe-flex-dispatcher-backend", "dispatch = once", "")
    if dispatcher == "flex" and (is_once or backend):
        draft.choices["dispatch"] = "once"
    read_router(options)
    for name in AS_ASSUMED:
        options.flag(name, "as assumed")
    options.sort_rest(IRRELEVANT, NOT_IN_A_PLAN)
    return draft.finish(cluster)


def _read_batch(options: OptionSet) -> None:
    draft = options.draft
    draft.sequence_length = options.integer("seq-length", "sequence_length = {value}")
    draft.global_batch = options.integer("global-batch-size", "global_batch = {value}")
    microbatch = options.integer("micro-batch-size", "microbatch_size = {value}")
    if microbatch is None and draft.given.microbatch_size is None:
        draft.assumptions.append("no --micro-batch-size: one sequence")
    draft.choices["microbatch_size"] = microbatch or 1


def _read_degrees(options: OptionSet) -> None:
    for axis, name in DEGREES.items():
        options.draft.degrees[axis] = options.count(name, f"{axis} = {{value}}", 1)
    is_on = options.flag("sequence-parallel", "sequence_parallel, where tp is above 1")
    options.draft.choices["sequence_parallel"] = is_on and options.draft.degree("tp") > 1
    if options.flag("use-tp-pp-dp-mapping", f"mesh_order = {'-'.join(PIPELINE_INSIDE)}"):
        options.draft.choices["mesh_order"] = PIPELINE_INSIDE


def _read_expert_degree(options: OptionSet, num_replicas: int) -> None:
    """Devices that share an expert, where another number is said than follows from the other degrees: any that, with ep,
    divides the devices of a stage."""
    name, degree = "expert-tensor-parallel-size", options.draft.degree
    ours = shared_by_expert(degree("tp"), num_replicas, degree("ep"))
    devices = num_replicas * degree("tp")
    etp = options.integer(name, "tensor parallelism inside an expert = {value}", ours) or ours
    if devices % (etp * degree("ep")):
        options.reject(
            name if name in options else DEGREES["ep"],
            f"etp({etp}) x ep({degree('ep')}) does not divide the {devices} devices of a stage",
        )
    elif etp != ours:
        options.draft.choices["etp"] = etp


def _read_world(options: OptionSet) -> None:
    """Processes that the launcher starts."""
    nodes = options.integer("nnodes", "nodes = {value}")
    each = options.integer("nproc-per-node", "devices a node = {value}")
    for other, meaning in (("num-nodes", "nodes = {value}"), ("num-gpus", "devices a node = {value}")):
        found = options.integer(other, meaning)
        nodes, each = (found or nodes, each) if other == "num-nodes" else (nodes, found or each)
    if each is not None:
        options.draft.num_devices = each * (nodes or 1)


def _read_precision(options: OptionSet) -> None:
    choices = options.draft.choices
    is_half = [options.flag(name, f"dtype = {name}") for name in ("bf16", "fp16")]
    choices["dtype"] = "bfloat16" if is_half[0] else "float16" if is_half[1] else "float32"
    choices["master_dtype"] = "float32" if any(is_half) else ""
    in_bf16 = options.flag("grad-reduce-in-bf16", "reduction_dtype = bfloat16")
    in_fp32 = options.flag("accumulate-allreduce-grads-in-fp32", "reduction_dtype = float32")
    # With --bf16 Megatron keeps and sums gradients in float32 unless it is told otherwise.
    choices["reduction_dtype"] = "bfloat16" if in_bf16 else "float32" if is_half[0] or in_fp32 else ""
    for name in ("main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype"):
        if name in options and options.values[name] not in (["fp32"], []):
            options.reject(name, "the optimizer's copy and its moments have one format, float32")
        elif name in options:
            options.note(name, "as assumed")
    if options.text("fp8-format", "products of linear layers in float8 ({value})"):
        recipe = options.text("fp8-recipe", "float8 recipe {value}", "delayed")
        choices["float8"] = _FLOAT8.get(recipe, "tensorwise")
        if recipe not in _FLOAT8:
            options.draft.assumptions.append(f"the float8 recipe {recipe!r} is counted as tensorwise")
    for name in (
        "fp8-amax-history-len",
        "fp8-amax-compute-algo",
        "fp8-margin",
        "fp8-interval",
        "no-fp8-wgrad",
    ):
        if name == "no-fp8-wgrad" and name in options:
            options.reject(name, "weight gradients are computed in float8 too")
        else:
            options.flag(name, "detail of the float8 recipe")


def _read_sharding(options: OptionSet, num_copies: int) -> None:
    choices = options.draft.choices
    sharding = "zero1" if options.flag("use-distributed-optimizer", "sharding = zero1") else "none"
    if options.flag("use-torch-fsdp2", "sharding = zero3"):
        sharding = "zero3"
    if options.flags(("use-megatron-fsdp", "use-custom-fsdp"), "Megatron's FSDP"):
        strategy = options.text("data-parallel-sharding-strategy", "sharding: {value}", "no_shard")
        sharding = _FSDP_STRATEGIES.get(strategy, "zero3")
    choices["sharding"] = sharding
    instances = options.count("num-distributed-optimizer-instances", "{value} copies of the sharded state", 1)
    if instances > 1 and sharding != "none":
        choices["sharding_degree"] = num_copies // instances
    choices["software"] = _software(options)


def _software(options: OptionSet) -> str:
    """Graphs count only where one holds the whole step; of parts of a layer they are listed as not understood."""
    is_on = "enable-cuda-graph" in options or options.values.get("cuda-graph-impl") == ["local"]
    if not is_on or options.values.get(GRAPH_SCOPE) != [WHOLE_STEP]:
        return SOFTWARE
    for name in ("enable-cuda-graph", "cuda-graph-impl", GRAPH_SCOPE):
        options.flag(name, f"software = {CAPTURED}")
    return CAPTURED


def _read_context(options: OptionSet) -> None:
    """One kind for all layers, or heads exchanged inside a ring; different kinds by layer a plan cannot say."""
    values = set(options.values.get("cp-comm-type", []))
    levels = options.values.get(LEVELS, [])
    if values == {IN_TWO_LEVELS} and len(levels) == 2 and all(each.isdigit() for each in levels):
        group, ring = map(int, levels)
        if group * ring == options.draft.degree("cp") and min(group, ring) > 1:
            for name in ("cp-comm-type", LEVELS):
                options.note(name, f"ulysses = {group} in a ring of {ring}")
            options.draft.choices |= {"context": "ring", "ulysses": group}
            return
    kinds = [ours for ours, theirs in CONTEXTS.items() if values == {theirs}]
    if kinds:
        options.note("cp-comm-type", f"context = {kinds[0]}")
        options.draft.choices["context"] = kinds[0]
    elif values:
        known = ", ".join(CONTEXTS.values())
        options.reject("cp-comm-type", f"a plan knows {known}, one for all layers; keys and values go round")


def _read_recompute(options: OptionSet) -> None:
    choices = options.draft.choices
    granularity = options.text("recompute-granularity", "recompute = {value}")
    if options.flags(("recompute-activations", "checkpoint-activations"), "recompute"):
        granularity = granularity or ("full" if "checkpoint-activations" in options else "selective")
    choices["recompute"] = granularity if granularity in ("selective", "full") else "none"
    modules = options.values.get("recompute-modules")
    if modules and set(modules) != {"core_attn"}:
        options.reject("recompute-modules", "a plan recomputes the attention core, or whole blocks")
    elif modules:
        options.note("recompute-modules", "the attention core")
    backend = options.text("attention-backend", "attention: {value}", "auto")
    impl = options.text("transformer-impl", "layers of {value}", "transformer_engine")
    is_flash = options.flag("use-flash-attn", "attention = flash")
    is_unfused = backend in ("unfused", "local") or (impl == "local" and not is_flash)
    choices["attention"] = _unfused(options) if is_unfused else "flash"


def _read_recomputed_blocks(options: OptionSet) -> None:
    """By method "block" the first blocks of every chunk of a rank are recomputed; "uniform" recomputes all."""
    choices, draft = options.draft.choices, options.draft
    method = options.text("recompute-method", "recompute of blocks: {value}")
    count = options.integer("recompute-num-layers", "blocks: {value}")
    if choices["recompute"] != "full":
        return
    if method == "block":
        num_stages = draft.degree("pp") * choices["num_chunks"]
        even = split_layers(draft.required_model().num_layers, num_stages)
        per_stage = choices.get("layers_per_stage", even)
        counts = tuple(min(count or 1, each) for each in per_stage)
        choices["recompute_blocks"] = () if counts == per_stage else counts
        if count is None:
            draft.assumptions.append("no --recompute-num-layers: one block of every stage")
    elif (count or 1) > 1:
        draft.assumptions.append(f"--recompute-method {method} of {count} blocks is counted as every block")


def _unfused(options: OptionSet) -> str:
    """Attention that writes its scores, with a dropout of its own unless its rate is 0."""
    rate = options.text("attention-dropout", "dropout of attention's scores = {value}", ATTENTION_DROPOUT)
    return "unfused" if not rate.strip("0.") else "unfused_dropout"


def _read_overlap(options: OptionSet) -> None:
    found = [kind for kind, name in OVERLAPS.items() if options.flag(name, f"overlap of {kind!r}")]
    if "tp" in found and not options.draft.choices["sequence_parallel"]:
        found.remove("tp")
        options.draft.assumptions.append(
            "--tp-comm-overlap has no effect without --sequence-parallel and tp above 1"
        )
    if options.draft.choices["sharding"] == "zero3":
        found = [*dict.fromkeys(["reduce", "gather", *found])]
    options.draft.choices["overlap"] = tuple(found)


def _read_stages(options: OptionSet) -> None:
    """Chunks of a device, and blocks of every stage: even, or with shorter ends."""
    draft = options.draft
    pp, num_layers = draft.degree("pp"), draft.required_model().num_layers
    ends = [
        int(options.flag(f"account-for-{end}-in-pipeline-split", f"the {end} counts as a layer"))
        for end in ("embedding", "loss")
    ]
    first = options.integer(
        "decoder-first-pipeline-num-layers", "blocks of the first pipeline rank = {value}"
    )
    last = options.integer(
        "decoder-last-pipeline-num-layers", "blocks of the last pipeline rank = {value}", least=0
    )
    per_chunk = options.integer("num-layers-per-virtual-pipeline-stage", "blocks of a chunk = {value}")
    chunks = options.count("num-virtual-stages-per-pipeline-rank", "num_chunks = {value}", 1)
    if per_chunk:
        each, rest = divmod(num_layers + sum(ends), pp * per_chunk)
        if rest:
            raise PlanError(
                f"{draft.where}: {num_layers} layers do not divide into pp({pp}) x chunks of {per_chunk}",
                allowed="--num-layers-per-virtual-pipeline-stage that divides the layers of a pipeline rank",
            )
        chunks = each
    chunks = chunks if pp > 1 else 1
    draft.choices["num_chunks"] = chunks
    draft.choices["schedule"] = "interleaved_1f1b" if chunks > 1 else "1f1b"
    group = options.integer(
        "microbatch-group-size-per-virtual-pipeline-stage", "microbatches of a group = {value}"
    )
    if group not in (None, pp):
        draft.assumptions.append(f"chunks change after {pp} microbatches, not after {group}")
    if first is not None or last is not None or any(ends):
        draft.choices["layers_per_stage"] = _stage_layers(
            draft.where, num_layers, pp, chunks, (first, last), ends
        )


def _stage_layers(
    where: str, num_layers: int, pp: int, chunks: int, given: tuple[int | None, int | None], ends: list[int]
) -> tuple[int, ...]:
    """Blocks of each stage, stage s on pipeline rank s modulo pp."""
    first, last = given
    if first is None and last is None:
        each, rest = divmod(num_layers + sum(ends), pp * chunks)
        counts = [each] * (pp * chunks)
        counts[0] -= ends[0]
        counts[-1] -= ends[1]
    else:
        middle = num_layers - (first or 0) - (last or 0)
        others = pp - (first is not None) - (last is not None)
        each, rest = divmod(middle, max(1, others))
        ranks = [each] * pp
        ranks[0] = each if first is None else first
        ranks[-1] = each if last is None else last
        rest = rest or sum(count % chunks for count in ranks)
        counts = [count // chunks for _ in range(chunks) for count in ranks]
    if rest or min(counts) < 0:
        raise PlanError(
            f"{where}: {num_layers} layers do not divide over pp({pp}) x {chunks} chunks with these ends",
            allowed="ends that leave as many blocks for every other stage",
        )
    return tuple(counts)
