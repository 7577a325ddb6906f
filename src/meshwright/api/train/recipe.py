"""What a person chooses about a training beside its plan: how long, at which rates, what is kept and what is looked at."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.lowering.sharding.gradient_norm import Clipping
from meshwright.specs.error import SpecError
from meshwright.specs.plan.plan import PassOption, Plan

if TYPE_CHECKING:
    from meshwright.executor.ops.optimizer_step import OptimizerConfig
    from meshwright.executor.training.learning_rate import LearningRate

LEARNING_RATE = 1e-3  # of AdamW, for decoders of a few million parameters
DEFAULT_ITERATIONS = 20
# Llama warms up over 2,000 of about 350,000 steps, and ends at a tenth of the peak (arXiv 2302.13971, section 2.2).
WARMUP_SHARE, FINAL_SHARE = 0.01, 0.1
PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Recipe:
    """AdamW and the rate of every step. Matrices decay, norms and biases do not.

    Args:
        learning_rate: the peak.
        warmup: steps of a line up to it; None: a hundredth of the steps, none where their number is not known.
        final_share: where the cosine ends, as a share of the peak; a training by the clock alone has no end and keeps the
            peak.
        weight_decay, betas, epsilon: of AdamW; defaults of Llama's training (Touvron et al. 2023, arXiv 2302.13971).
        clip: the largest norm of all gradients; None: what the plan says.
    """

    learning_rate: float = LEARNING_RATE
    warmup: int | None = None
    final_share: float = FINAL_SHARE
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.weight_decay < 0 or self.epsilon <= 0 or not all(0 <= beta < 1 for beta in self.betas):
            raise SpecError(
                f"AdamW with weight decay {self.weight_decay}, betas {self.betas}, epsilon {self.epsilon}",
                allowed="a decay from 0, betas from 0 to below 1, an epsilon above 0",
            )

    def rates(self, num_steps: int | None, lead: float = 0.0) -> LearningRate:
        """The rate of every step of a training of so many (None: nobody knows); `lead` as `Length.lead` says."""
        from meshwright.executor.training.learning_rate import LearningRate

        length = None if num_steps is None else num_steps + lead
        warmup = self.warmup
        if warmup is None:
            warmup = 0 if length is None else math.ceil(WARMUP_SHARE * length)
        return LearningRate(self.learning_rate, warmup, length, self.final_share, lead)

    def optimizer(self, clip_norm: float | None) -> OptimizerConfig:
        """The optimizer's own numbers."""
        from meshwright.executor.ops.optimizer_step import OptimizerConfig

        return OptimizerConfig(
            learning_rate=self.learning_rate, betas=self.betas, epsilon=self.epsilon,
            weight_decay=self.weight_decay, clip_norm=clip_norm,
        )  # fmt: skip

    def clipped(self, plan: Plan) -> Plan:
        """The plan with the pass that clips, where a norm is given."""
        if self.clip is None:
            return plan
        others = tuple(each for each in plan.passes if each.name != Clipping.name)
        return plan.changed(passes=(*others, PassOption(Clipping.name, {"max_norm": float(self.clip)})))


@dataclass(frozen=True)
class Length:
    """How long: steps or tokens since the very first step (the smaller one counts), and seconds of this run."""

    iterations: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for given, what in (
            (self.iterations, "iterations"),
            (self.tokens, "tokens"),
            (self.seconds, "seconds"),
        ):
            if given is not None and not given > 0:
                raise SpecError(f"{given} {what}", allowed="1 iteration or token or more, or time above 0")

    def num_steps(self, plan: Plan, done: int = 0, done_tokens: int | None = None) -> int | None:
        """Steps of the whole training; None where only the clock ends it.

        ``done``: steps that were done before, on ``done_tokens`` (None: of this plan's batches).
        """
        steps = [] if self.iterations is None else [self.iterations]
        if self.tokens is not None:
            per_step = plan.workload.tokens_per_step
            left = self.tokens - (done * per_step if done_tokens is None else done_tokens)
            steps.append(done + math.ceil(left / per_step))
        if not steps and self.seconds is None:
            steps.append(DEFAULT_ITERATIONS)
        return min(steps, default=None)

    def lead(self, plan: Plan, done: int = 0, done_tokens: int | None = None) -> float:
        """Where the length is in tokens: steps of this plan that the tokens done are, less the steps that they were. The
        rate then goes on from where it was, whatever batches there were before."""
        if self.tokens is None or done_tokens is None:
            return 0.0
        if self.iterations is not None and self.num_steps(plan, done, done_tokens) == self.iterations:
            return 0.0
        return done_tokens / plan.workload.tokens_per_step - done


@dataclass(frozen=True)
class Checkpoints:
    """Where a training is kept, and whether it goes on from there.

    Args:
        folder: all ranks see it.
        every: steps between two; 0: only at the end, also where Ctrl-C or the clock is the end.
        keep: how many of the last are kept.
        resumes: go on from the newest one, whatever layout wrote it; where there is none, begin.
        accepts_other_data: go on with other text, or another tokenizer; otherwise they are refused.
    """

    folder: PathLike
    every: int = 0
    keep: int = 3
    resumes: bool = False
    accepts_other_data: bool = False

    def newest(self, is_first: bool = True) -> Path | None:
        """The checkpoint to go on from, None where there is none. Of several processes the first puts the folder in order.

        Raises SpecError where there is one and it is not to be resumed.
        """
        from meshwright.executor.checkpoint.folder import checkpoint_at, latest_checkpoint, steps_in

        folder = Path(self.folder)
        if is_first:
            found = latest_checkpoint(folder)
        else:
            found = checkpoint_at(folder) if steps_in(folder) else None
        if found is not None and not self.resumes:
            raise SpecError(
                f"{self.folder} holds a training already, its newest checkpoint is {found.name}",
                allowed="an empty folder, or --resume to go on with it",
            )
        return found

    def config(self, resume_from: Path | None, plan: Plan) -> Any:
        """As the job has it."""
        from meshwright.executor.checkpoint.checkpoint import CheckpointConfig
        from meshwright.specs.plan.file import plan_text

        return CheckpointConfig(
            os.fspath(self.folder), self.every, self.keep,
            resume_from="" if resume_from is None else str(resume_from),
            files={"plan.toml": plan_text(plan)}, accepts_other_data=self.accepts_other_data,
        )  # fmt: skip


@dataclass(frozen=True)
class Source:
    """What is read: text or token shards, how text becomes tokens, and the weights to begin with.

    Args:
        data: a folder or file of text, or a folder of token shards; None: the Python standard library's sources.
        tokenizer: a `tokenizers` file for text; None: that of `weights`, where the folder has one, else bytes.
        weights: a Hugging Face folder whose weights the training begins with; None: drawn by the seed.
        evaluate_every: steps between two evaluations of the held-out loss; 0: none.
        num_evaluated: global batches of held-out text in one evaluation.
        modules: a torch.nn.Sequential that is trained instead of the plan's model, which gives its sizes: "mine.py:model".
        text_field: field of the objects of a JSONL file that holds the text.
        document_mask: documents packed into one sequence do not see each other; False: a sequence is one text.
    """

    data: PathLike | None = None
    tokenizer: PathLike | None = None
    weights: PathLike | None = None
    evaluate_every: int = 0
    num_evaluated: int = 4
    modules: str = ""
    text_field: str = "text"
    document_mask: bool = True

    def __post_init__(self) -> None:
        if self.evaluate_every < 0 or self.num_evaluated < 1:
            raise SpecError(
                f"an evaluation of {self.num_evaluated} batches every {self.evaluate_every} steps",
                allowed="a batch or more; every 0 steps is never",
            )
