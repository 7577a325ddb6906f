"""Software classes: what a training stack's kernels touch, keep and launch; a handful, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from meshwright.specs.error import UnknownNameError
from meshwright.specs.operator import Operator

# Of PyTorch's caching allocator: "fixed", as it comes: a segment stays as large as it was asked for; "": nobody knows, they
# may as well expand (PYTORCH_CUDA_ALLOC_CONF=expandable_segments, which torchtitan's launch script sets).
Segments = Literal["", "fixed"]
NarrowGradients = Literal["", "backward", "always"]


@dataclass(frozen=True)
class Keeping:
    """What one kind of software keeps.

    Attributes:
        narrow_gradients: those of bfloat16 whose sums are float32: "", each is added where it is made; "backward", those of a
            whole stage are there until its microbatch's backward has ended (nanotron's FP32GradientAccumulator.backward);
            "always", until the next one begins (DeepSpeed's BF16_Optimizer.backward).
        has_buckets: where nothing is sharded, data parallelism copies gradients into buckets that stay (PyTorch's
            DistributedDataParallel without gradient_as_bucket_view).
        flat_bytes: the most that an exchange of data parallelism copies into one flat tensor at once; inf: all of a stage.
            No freed block is large enough for it.
        returns_late: what sequence parallelism gathers and reduces is given back to the allocator only when the device is
            done with it, while the host is ahead (PyTorch's Tensor.record_stream; off where
            TORCH_NCCL_AVOID_RECORD_STREAMS is set).
        num_wide_logits: logits in float32 at once where the loss is not fused: log-probabilities, their gradient, the
            logits' gradient (PyTorch's cross entropy); 2: widened, and their exponentials, in whose place the gradient is
            written (cross entropies of split vocabularies).
        segments: of the caching allocator.
    """

    narrow_gradients: NarrowGradients = ""
    has_buckets: bool = False
    flat_bytes: float = 0.0
    returns_late: bool = False
    num_wide_logits: int = 3
    segments: Segments = ""


@dataclass(frozen=True)
class SoftwareClass:
    """One kind of training software.

    Attributes:
        name: what a plan's `software` says.
        meaning: for people.
        traffic: operator variant or kind -> share of its unfused 16-bit traffic that the kernels of this class move.
        gap_share: of the gaps between kernels of a framework that launches each operation by itself, the part that is left.
        operator_s: seconds that the host needs to dispatch one operator of a block; 0: it is always ahead.
        step_share: of what a step takes besides its instructions, the part that is left.
        cast_share: of the traffic of casts to float8, the part that no other kernel does on the way.
        fuses_blocks: elementwise kernels of a block keep their inputs only.
        fuses_loss: the loss is one kernel, which reads 16-bit logits.
        has_loss_in_place: that kernel widens no logits in memory, and writes their gradient in their place.
        has_native_attention: attention kernels written for the chip's generation; else portable ones, which use what
            all generations have.
        waits_for_routing: the host waits in every layer of experts until it knows how many tokens each gets; False where
            the whole step is one captured graph.
        sums_whole_tables: an embedding's gradient is made as large as its table, and added to the sum whole (PyTorch's own);
            False: the tokens' rows are added.
        stops_early: recompute ends with the last tensor that the backward needs; the product behind it is not run.
        keeps: what it holds on a device beside what every training needs.
    """

    name: str
    meaning: str
    traffic: Mapping[str, float] = field(default_factory=dict, hash=False)
    gap_share: float = 1.0
    operator_s: float = 0.0
    step_share: float = 1.0
    cast_share: float = 1.0
    fuses_blocks: bool = False
    fuses_loss: bool = False
    has_loss_in_place: bool = False
    has_native_attention: bool = True
    waits_for_routing: bool = True
    stops_early: bool = False
    sums_whole_tables: bool = False
    keeps: Keeping = Keeping()

    def share(self, operator: Operator) -> float:
        """Of the unfused bytes of an operator, the part that is moved."""
        return self.traffic.get(operator.variant, self.traffic.get(operator.kind, 1.0))


# Shares of unfused traffic. Fused activation: a gated one reads gate and up and writes the product (3 of 5 touches),
# backward reads three and writes two (5 of 9). A residual added by the norm behind it is read once less (2 of 3).
_FUSED = {"activation": 0.6, "activation_backward": 0.56, "elementwise": 0.67}
# The loss, in bytes for one logit, of 4 forward and 8 backward that are counted unfused in 16 bits.
# One kernel that reads 16-bit logits, and writes their gradient in their place: 2 and 4 (flash-attn's cross entropy).
_FUSED_LOSS = {"loss": 0.5, "loss_backward": 0.5}
# Logits copied to float32, log-probabilities written and read, and the same back: 14 and 14 (torch cross_entropy).
_FLOAT_LOSS = {"loss": 3.5, "loss_backward": 1.75}
# The same, with the copies and sums joined by a compiler: 6 and 8.
_COMPILED_LOSS = {"loss": 1.5, "loss_backward": 1.0}
# One by one in float32 (cross_entropy.py of Megatron-LM): logits are widened, searched for the largest, lowered by it,
# raised, summed and divided; backward multiplied by the loss's gradient and narrowed: 38 and 14.
_STEPWISE_LOSS = {"loss": 9.5, "loss_backward": 1.75}

# Host seconds of one operator of a block that PyTorch runs eagerly, with modules, views and casts around it: 25.5 tokens a
# second of Llama 7B, one by one and bound by the host (pytorch.org/blog/accelerating-generative-ai-2), are 39 ms for 32
# blocks of 11 operators.
EAGER_OPERATOR_S = 1 / 25.5 / 32 / 11
# Of the gap between two kernels, what a captured graph leaves: 1 to 2 us of 10 (CUDA programming guide, graphs). Between two
# steps the host launches a graph and reads the next batch, as little behind the device: the same share is taken.
CAPTURED_GAPS = 0.2

CLASSES: Mapping[str, SoftwareClass] = {
    each.name: each
    for each in (
        SoftwareClass(
            "fused", "hand-fused kernels for norms, activations and casts (Megatron-LM with Transformer Engine)",
            {**_FUSED, **_COMPILED_LOSS}, cast_share=0.5, fuses_blocks=True, fuses_loss=True,
        ),
        SoftwareClass(
            "captured", "as fused, and the whole step is one CUDA graph: nothing waits for the host",
            {**_FUSED, **_COMPILED_LOSS}, gap_share=CAPTURED_GAPS, step_share=CAPTURED_GAPS, cast_share=0.5,
            fuses_blocks=True, fuses_loss=True, waits_for_routing=False,
        ),
        SoftwareClass(
            "fused, stepwise loss",
            "as fused, but the loss operation by operation (Megatron-LM without --cross-entropy-loss-fusion)",
            {**_FUSED, **_STEPWISE_LOSS}, cast_share=0.5, fuses_blocks=True, sums_whole_tables=True,
        ),
        SoftwareClass(
            "eager", "every operation by itself, as PyTorch launches it; the loss in float32",
            _FLOAT_LOSS, operator_s=EAGER_OPERATOR_S, has_native_attention=False, stops_early=True,
        ),
        SoftwareClass(
            "eager, fused loss", "every operation by itself, but the loss in one kernel (llm-foundry)",
            _FUSED_LOSS, operator_s=EAGER_OPERATOR_S, fuses_loss=True, has_loss_in_place=True, has_native_attention=False,
            stops_early=True,
        ),
        SoftwareClass(
            "compiled", "the compiler fuses what lies between products (torch.compile)",
            {**_FUSED, **_COMPILED_LOSS}, cast_share=0.5, fuses_blocks=True, has_native_attention=False, stops_early=True,
        ),
    )
}  # fmt: skip
# Kernels of another class, other things kept. nanotron gathers all parameters of a stage into one tensor after the step
# (all_gather_coalesced); DeepSpeed reduces in pieces of 5e8 elements (MEMORY_OPT_ALLREDUCE_SIZE of runtime/engine.py).
DEEPSPEED_FLAT_BYTES = 5e8 * 4
_KEEPING = (
    replace(
        CLASSES["eager"], name="eager, float32 sums",
        meaning="as eager; all gradients beside their sums in float32, exchanges return memory late (nanotron)",
        keeps=Keeping("backward", True, float("inf"), True, num_wide_logits=2, segments="fixed"),
    ),
    replace(
        CLASSES["fused"], name="fused, float32 sums",
        meaning="as fused; all gradients beside their sums in float32 (Megatron-DeepSpeed)",
        keeps=Keeping("always", flat_bytes=DEEPSPEED_FLAT_BYTES, segments="fixed"),
    ),
    replace(
        CLASSES["fused"], name="fused, loss in place",
        meaning="as fused; the loss writes the logits' gradient in their place (Transformer Engine's cross entropy)",
        has_loss_in_place=True,
    ),
)  # fmt: skip
CLASSES = {**CLASSES, **{each.name: each for each in _KEEPING}}
# What `executor` runs, filled in where a plan is lowered for processes; not among those to choose a prediction from.
EXECUTOR = SoftwareClass(
    "executor", "PyTorch's operations one by one; the loss, and the logits' gradient, in their place", has_loss_in_place=True,
    has_native_attention=False,
)  # fmt: skip
# A plan that names no class: who shards parameters uses PyTorch's FSDP, and compiles; the rest is Megatron-LM's kind.
DEFAULT_CLASS, SHARDED_DEFAULT_CLASS = "fused", "compiled"


def software_class(name: str, *, gathers_values: bool = False) -> SoftwareClass:
    """The class of this name; for an empty one the default of plans that gather what computes read, or do not.

    Raises UnknownNameError.
    """
    if name == EXECUTOR.name:
        return EXECUTOR
    if name and name not in CLASSES:
        raise UnknownNameError("software class", name, sorted(CLASSES))
    return CLASSES[name or (SHARDED_DEFAULT_CLASS if gathers_values else DEFAULT_CLASS)]
