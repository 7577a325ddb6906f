"""Bytes that a stage of a program keeps from F to its backward, and from I to W, per token of the whole microbatch.

Two kinds of software: the executor's own decoder, tensor by tensor as it keeps them, and training stacks on GPUs, by
what their kernels keep (`specs.saved_block`). Which one a plan means its class of software says; one that names none by its
degrees and formats: tensor parallelism and a master copy are then the stacks'.
"""

from __future__ import annotations

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.adaptation import trains_table
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.software import EXECUTOR
from meshwright.stage.mesh import folds_experts
from meshwright.stage.piece import has_vocabulary_passes, has_vocabulary_share, is_vocabulary_split
from meshwright.stage.saved.recomputed import is_partly_recomputed, kept_layers, recomputed_layers
from meshwright.stage.saved.saved import (
    SavingContext,
    head_saved,
    pending_gradient_bytes_per_token,
    residual_bytes_per_token,
    saved_bytes_per_token,
    stage_saved_bytes,
)
from meshwright.stage.saved.saved import pending_bytes_per_token as bytes_for_w

FINAL_NORM_SAVED = ("input", "norm statistics")
WIDENED_BYTES = 4  # log-probabilities or exponentials of logits, in float32


def saving_context(plan: Plan) -> SavingContext:
    """Which tensors the plan's software keeps."""
    if plan.software == EXECUTOR.name:
        return SavingContext(
            plan.dtype, plan.recompute, plan.tp, num_row_parts(plan), sequence_parallel=plan.sequence_parallel,
            keeps_gathered=plan.gathered == "kept",
            attention="recomputed" if plan.core_attention == "flash" else "unfused",
        )  # fmt: skip
    return SavingContext(
        dtype=plan.dtype, recompute=plan.recompute, tp=plan.tp, num_row_parts=num_row_parts(plan),
        sequence_parallel=plan.sequence_parallel, attention="flash" if plan.core_attention == "flash" else "unfused",
        is_fused=plan.software_class.fuses_blocks, has_dropout=plan.attention == "unfused_dropout",
        keeps_float8=bool(plan.float8) and plan.software_class.fuses_loss, keeps_gathered=plan.gathered == "kept",
    )  # fmt: skip


def num_row_parts(plan: Plan) -> int:
    """Into how many parts tp devices divide the rows of their tokens that go to experts, before any is gathered: as many as
    have other tokens, or other matrices; one where all have gathered the stream, and share every expert as attention."""
    if not folds_experts(plan):
        return 1
    return plan.tp if plan.sequence_parallel else plan.tp // min(plan.tp, plan.expert_tp)


def is_own_decoder(plan: Plan) -> bool:
    """Is it the executor's decoder that the plan's sizes are of?"""
    if plan.software:
        return plan.cp == 1 and plan.software == EXECUTOR.name
    return plan.tp == plan.cp == 1 and not plan.master_dtype


def _is_undivided(plan: Plan) -> bool:
    """Is it the executor's decoder, and every block whole on a device?"""
    return is_own_decoder(plan) and plan.tp == 1


def kept_bytes_per_token(plan: Plan, layers: StageLayers) -> float:
    """What a stage keeps from F to its backward on one device, per token of the whole microbatch.

    With recompute "full" it is what R makes again; F keeps the stage's input only, which is a value of its own. Of a
    stage that is recomputed in part R makes `remade_bytes_per_token` of it.
    """
    if _is_undivided(plan):
        whole = float(saved_bytes_per_token(plan.model, layers, plan.dtype)) + _widened_bytes(plan, layers)
        return whole - _loss_elsewhere_bytes(plan, layers)
    context = saving_context(plan)
    if plan.recompute == "full":
        context = context._replace(recompute="none")
    return (in_flight_bytes_per_token(plan, layers, context) + _logits_bytes(plan, layers)) / plan.cp


def in_flight_bytes_per_token(plan: Plan, layers: StageLayers, context: SavingContext) -> float:
    """What `context` keeps of the blocks that are recomputed, and of the others what it keeps without recompute; per token
    of one device, the loss left out."""
    length = plan.workload.sequence_length
    kept = stage_saved_bytes(plan.model, recomputed_layers(plan, layers), context, length)
    if plan.recompute_blocks:
        others = context._replace(recompute="none")
        kept += stage_saved_bytes(plan.model, kept_layers(plan, layers), others, length)
    return kept


def remade_bytes_per_token(plan: Plan, layers: StageLayers) -> float:
    """The part of `kept_bytes_per_token` that R makes where F keeps the rest: of a stage that is recomputed in part, all
    of its recomputed blocks; what the embedding gives the first of them is kept."""
    if plan.recompute != "full" or not is_partly_recomputed(plan, layers):
        return 0.0
    part, dtype = recomputed_layers(plan, layers), plan.dtype
    if _is_undivided(plan):
        input_bytes = residual_bytes_per_token(plan.model, dtype) if layers.has_embedding else 0
        return float(saved_bytes_per_token(plan.model, part, dtype) - input_bytes)
    context = saving_context(plan)._replace(recompute="none")
    made = stage_saved_bytes(plan.model, part, context, plan.workload.sequence_length)
    if layers.has_embedding:
        made -= residual_bytes_per_token(plan.model, dtype) / (plan.tp if plan.sequence_parallel else 1)
    return made / plan.cp


def _widened_bytes(plan: Plan, layers: StageLayers) -> float:
    """What the logits' log-probabilities in float32 have beyond the format of activations."""
    if not layers.has_head or has_vocabulary_passes(plan):
        return 0.0
    return float(plan.model.vocabulary_size * max(0, WIDENED_BYTES - dtype_bytes(plan.dtype)))


def _loss_elsewhere_bytes(plan: Plan, layers: StageLayers) -> float:
    """What passes of their own keep of head and loss, where the vocabulary has them: all but the final norm's."""
    if not (layers.has_head and has_vocabulary_passes(plan)):
        return 0.0
    kept = head_saved(plan.model, plan.dtype)
    return float(sum(tensor.bytes_per_token for tensor in kept if tensor.name not in FINAL_NORM_SAVED))


def _logits_bytes(plan: Plan, layers: StageLayers) -> float:
    """What the backward of the loss reads: logits as they are, or widened."""
    is_split = is_vocabulary_split(plan)
    if has_vocabulary_passes(plan):  # values of their own, from S to T
        return 0.0
    if not (has_vocabulary_share(plan, layers) if is_split else layers.has_head):
        return 0.0
    each = dtype_bytes(plan.dtype) if plan.software_class.has_loss_in_place else WIDENED_BYTES
    each = max(each, WIDENED_BYTES) if is_own_decoder(plan) else each
    return each * plan.model.vocabulary_size / (plan.tp * (plan.pp if is_split else 1))


def pending_bytes_per_token(plan: Plan, layers: StageLayers) -> float:
    """Output gradients that I leaves to W, before tensor parallelism divides them; those of tables whose passes are their
    own are none of them."""
    whole = float(pending_gradient_bytes_per_token(plan.model, layers, plan.dtype))
    if has_vocabulary_passes(plan):
        model = plan.model
        has_head = layers.has_head and trains_table(model, of_head=True)
        has_embedding = layers.has_embedding and trains_table(model, of_head=False)
        elements = has_head * model.vocabulary_size + has_embedding * model.hidden_size
        whole -= elements * dtype_bytes(plan.dtype)
    return whole


def local_pending_bytes_per_token(plan: Plan, layers: StageLayers) -> float:
    """What I adds on one device, per token of the whole microbatch: W reads inputs, which F keeps anyway, and I's output
    gradients. All else that F kept for the backward I frees, layer by layer, so that these take its place; that is counted
    of the executor's own decoder, whose tensors are known one by one."""
    added = pending_bytes_per_token(plan, layers) / (plan.cp * plan.tp)
    if not _is_undivided(plan) or has_vocabulary_passes(plan):
        return added
    model, dtype = plan.model, plan.dtype
    inputs = bytes_for_w(model, layers, dtype) - pending_gradient_bytes_per_token(model, layers, dtype)
    freed = kept_bytes_per_token(plan, layers) - inputs
    return max(0.0, added - max(0.0, freed))
