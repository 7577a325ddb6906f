"""Which parameters of a model train: all, those whose names fit patterns, and low-rank additions to frozen matrices.

LoRA (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, arXiv 2106.09685) adds to a matrix W
[outputs, inputs] the product (alpha / rank) B A, with A [rank, inputs] and B [outputs, rank]; B begins at zero. Here the
matrices are the executor's: queries, keys and values are one (one A for the three), as are gate and up.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from meshwright.specs.error import SpecError
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.parameter import (
    Parameter,
    all_parameters,
    block_parameters,
    embedding_parameters,
    head_parameters,
    num_parameters,
)
from meshwright.specs.model.parameter_name import MODULES, executed_name
from meshwright.specs.model.shape import ModelShape

LORA_TARGETS = ("qkv", "attention_output", "gate_up", "down")
MLP_TARGETS = ("gate_up", "down")
LORA_COLUMNS = ("qkv", "gate_up")  # those that tensor parallelism divides by outputs, the others by inputs
WHOLE_FLOPS, WEIGHT_FLOPS = (
    6,
    2,
)  # of a parameter and a token: forward and backward; of them the weight gradient
LORA_A, LORA_B = "lora_a", "lora_b"


def trains(model: ModelShape, name: str) -> bool:
    """Does the parameter with this name of the executor train? "layers.3.qkv.weight", "layers.3.qkv.lora_a.weight"."""
    if f".{LORA_A}." in name or f".{LORA_B}." in name:
        return True
    if model.trained:
        return any(fnmatchcase(name, pattern) for pattern in model.trained)
    return model.lora_rank == 0


def lora_choices(model: ModelShape) -> tuple[str, ...]:
    """The matrices of every block that may have low-rank additions: experts, and what latent attention reads, have none."""
    without = [*MLP_TARGETS] if any(block.experts for block in model.kinds) else []
    without += ["qkv"] if any(block.attention.latent for block in model.kinds) else []
    return tuple(target for target in LORA_TARGETS if target not in without)


def lora_sizes(model: ModelShape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the matrices that have low-rank additions."""
    inner = model.intermediate_size
    sizes = {
        "qkv": (model.hidden_size, model.attention.qkv_size),
        "attention_output": (model.attention.result_size, model.hidden_size),
        "gate_up": (model.hidden_size, 2 * inner if model.has_gated_mlp else inner),
        "down": (inner, model.hidden_size),
    }
    return {target: sizes[target] for target in model.lora_targets} if model.lora_rank else {}


def lora_scale(model: ModelShape) -> float:
    """What B A is multiplied by."""
    return (model.lora_alpha or model.lora_rank) / model.lora_rank


def lora_parameters(model: ModelShape, block: int) -> tuple[Parameter, ...]:
    """A and B of every adapted matrix of a block, in the executor's names."""
    found = []
    for target, (num_in, num_out) in lora_sizes(model).items():
        prefix, layer = f"layers.{block}.{target}", str(block)
        found.append(Parameter(f"{prefix}.{LORA_A}.weight", (model.lora_rank, num_in), layer, True))
        found.append(Parameter(f"{prefix}.{LORA_B}.weight", (num_out, model.lora_rank), layer, True))
    return tuple(found)


def trained_names(model: ModelShape, block: int) -> tuple[str, ...]:
    """Parameters of a block that train ("qkv.weight", "mlp_norm.bias"), additions aside."""
    names = [executed_name(model.architecture, each.name) for each in block_parameters(model, block)]
    return tuple(dict.fromkeys(name.split(".", 2)[2] for name in names if trains(model, name)))


def first_trained_block(model: ModelShape) -> int:
    """The first block that a gradient must reach: those before it have no backward on the stage that begins with the
    tokens.
    """
    if not model.trained or trains(model, "embedding.weight") or trains(model, "positions.weight"):
        return 0
    if model.lora_rank:
        return 0
    found = (block for block in range(model.num_layers) if trained_names(model, block))
    return next(found, model.num_layers)


def backward_layers(model: ModelShape, layers: StageLayers) -> StageLayers:
    """The part of a stage that has a backward."""
    if not (model.is_adapted and layers.has_embedding):
        return layers
    skipped = min(max(first_trained_block(model) - layers.first_block, 0), layers.num_blocks)
    rest = layers._replace(first_block=layers.first_block + skipped, num_blocks=layers.num_blocks - skipped)
    has_embedding = any(trains(model, f"{table}.weight") for table in ("embedding", "positions"))
    return rest._replace(has_embedding=has_embedding)


def trained_block_parameters(model: ModelShape, block: int) -> tuple[Parameter, ...]:
    """Parameters of a block that train: of checkpoint names, then the additions."""
    own = block_parameters(model, block)
    if not model.is_adapted:
        return own
    kept = (p for p in own if trains(model, executed_name(model.architecture, p.name)))
    return (*kept, *lora_parameters(model, block))


def trains_table(model: ModelShape, *, of_head: bool) -> bool:
    """Does the embedding's table, or the head's, train? A tied head is the embedding's."""
    name = "head.weight" if of_head and not model.has_tied_embeddings else "embedding.weight"
    return trains(model, name)


def num_trained_parameters(model: ModelShape) -> int:
    """All parameters that train, a tied table counted once."""
    if not model.is_adapted:
        return num_parameters(model)
    ends = (
        parameter.num_elements
        for parameter in (*embedding_parameters(model), *head_parameters(model))
        if trains(model, executed_name(model.architecture, parameter.name))
    )
    blocks = (
        parameter.num_elements
        for block in range(model.num_layers)
        for parameter in trained_block_parameters(model, block)
    )
    return sum(ends) + sum(blocks)


def adapted_train_flops(model: ModelShape) -> float:
    """What the additions cost a token more (6 FLOPs a parameter), less the weight gradients of frozen matrices (2)."""
    additions = model.num_layers * sum(parameter.num_elements for parameter in lora_parameters(model, 0))
    matrices = trained = 0
    for block in range(model.num_layers):
        matrices += sum(_num_active(model, p) for p in block_parameters(model, block) if p.is_matmul)
        own = trained_block_parameters(model, block)
        trained += sum(_num_active(model, parameter) for parameter in own if parameter.is_matmul)
    matrices += model.num_head_parameters
    trained += model.num_head_parameters * trains_table(model, of_head=True)
    return WHOLE_FLOPS * additions - WEIGHT_FLOPS * (matrices + additions - trained)


def _num_active(model: ModelShape, parameter: Parameter) -> int:
    """Elements that one token uses: of experts those it goes to."""
    experts = model.experts if parameter.is_expert else None
    if experts is None:
        return parameter.num_elements
    return parameter.num_elements // experts.num_experts * experts.num_experts_per_token


def check_adaptation(model: ModelShape) -> None:
    """Raises SpecError where rank, targets or patterns cannot be, or nothing would train."""
    if model.lora_rank < 0 or model.lora_alpha < 0 or bool(model.lora_rank) != bool(model.lora_targets):
        raise SpecError(
            f"{model.name}: lora_rank {model.lora_rank}, lora_alpha {model.lora_alpha}, "
            f"lora_targets {model.lora_targets!r}",
            allowed="a rank from 1 and targets, or neither; alpha from 0 (0: as the rank)",
        )
    if not model.is_adapted:
        return
    choices = lora_choices(model)
    unknown = [target for target in model.lora_targets if target not in choices]
    if unknown or len(set(model.lora_targets)) != len(model.lora_targets):
        raise SpecError(f"{model.name}: lora_targets {model.lora_targets!r}", allowed=", ".join(choices))
    if model.architecture not in MODULES:
        raise SpecError(
            f"{model.name}: frozen parameters of {model.architecture} models are not known",
            allowed=", ".join(MODULES),
        )
    names = [executed_name(model.architecture, parameter.name) for parameter in all_parameters(model)]
    for pattern in model.trained:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SpecError(
                f"{model.name}: no parameter is named {pattern!r}",
                allowed=f"patterns of names such as {names[0]}, layers.3.qkv.weight, layers.*.mlp_norm.*",
            )
