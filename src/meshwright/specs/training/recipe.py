"""What a person chooses about a training beside its plan: how long, and at which rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.specs.error import SpecError
from meshwright.specs.option import option
from meshwright.specs.plan.optimizer import AdamW
from meshwright.specs.plan.plan import Plan
from meshwright.specs.slot import reference_text
from meshwright.specs.training.expert_capacity import DROPS, POSITION, ExpertCapacity
from meshwright.specs.training.learning_rate import LearningRate
from meshwright.specs.training.router_losses import RouterLosses
from meshwright.specs.units import parse_count

LENGTH, OPTIMIZER, EXPERTS = "How long", "Optimizer", "Experts"
ADAMW = "adamw"

LEARNING_RATE = 1e-3  # of AdamW, for decoders of a few million parameters
DEFAULT_ITERATIONS = 20
# Llama warms up over 2,000 of about 350,000 steps, and ends at a tenth of the peak (arXiv 2302.13971, section 2.2).
WARMUP_SHARE, FINAL_SHARE = 0.01, 0.1


def _betas(text: str) -> tuple[float, float]:
    """Two numbers with a comma between them."""
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise SpecError(f"--betas {text}", allowed="two numbers from 0 to below 1: 0.9,0.95") from None
    return first, second


def _whole(text: str) -> int:
    """A number of tokens. Raises SpecError for one that is none."""
    number = parse_count(text)
    if number < 1:
        raise SpecError(f"--tokens {text}", allowed="1 or more, such as 2e9")
    return number


@dataclass(frozen=True)
class Recipe:
    """The optimizer and the rate of every step. Matrices decay, norms and biases do not.

    Args:
        learning_rate: the peak.
        warmup: steps of a line up to it; None: a hundredth of the steps, none where their number is not known.
        final_share: where the cosine ends, as a share of the peak; a training by the clock alone has no end and keeps the
            peak.
        weight_decay: of every optimizer; betas, epsilon: of AdamW (defaults of Llama's training, Touvron et al. 2023, arXiv
            2302.13971).
        clip: the largest norm of all gradients; None: what the plan says.
        optimizer: a name in the slot, with its options; empty: what the plan says.
        balance_loss, z_loss: coefficients, as of `RouterLosses`.
        router_bias_update_rate: what a step adds to a router's correction or takes from it (DeepSeek-V3: 0.001); 0: they stay
            as they are; None: what the plan says.
        capacity_factor, drop: as of `ExpertCapacity`.
    """

    learning_rate: float = option(LEARNING_RATE, "The peak.", panel=OPTIMIZER)
    warmup: int | None = option(None, "Steps up to the peak (1 in 100).", panel=OPTIMIZER)
    final_share: float = option(
        FINAL_SHARE, "Share of the peak at the end of the cosine.", "--final-lr", panel=OPTIMIZER
    )
    weight_decay: float = option(0.1, "Of matrices, not of norms.", panel=OPTIMIZER)
    betas: tuple[float, float] = option((0.9, 0.95), "Of AdamW.", panel=OPTIMIZER, parse=_betas)
    epsilon: float = 1e-8
    clip: float | None = option(None, "Largest norm of all gradients (the plan's).", panel=OPTIMIZER)
    optimizer: str = option("", "NAME(option=...) (the plan's).", panel=OPTIMIZER)
    balance_loss: float = option(0.0, "Coefficient of the loss that balances experts.", panel=EXPERTS)
    z_loss: float = option(0.0, "Coefficient of the squares of routers' log-sums.", panel=EXPERTS)
    router_bias_update_rate: float | None = option(
        None, "What a step changes corrections of routers by (the plan's).", panel=EXPERTS
    )
    capacity_factor: float = option(
        0.0, "Tokens that an expert takes, in even shares (0: all).", panel=EXPERTS
    )
    drop: str = option(POSITION, f"What is beyond that: {' or '.join(DROPS)}.", "--drop-by", panel=EXPERTS)

    def __post_init__(self) -> None:
        if self.weight_decay < 0:
            raise SpecError(f"a weight decay of {self.weight_decay}", allowed="a number from 0")
        if not 0 <= (self.router_bias_update_rate or 0) < math.inf:
            raise SpecError(
                f"a router's bias updated at rate {self.router_bias_update_rate}", allowed="a number from 0"
            )
        AdamW(self.betas, self.epsilon)  # raises where they cannot be
        _ = self.router, self.capacity  # so do these

    @property
    def router(self) -> RouterLosses:
        """Losses of routers."""
        return RouterLosses(self.balance_loss, self.z_loss)

    @property
    def capacity(self) -> ExpertCapacity:
        """Of experts."""
        return ExpertCapacity(self.capacity_factor, self.drop)

    def rule(self, optimizer: str) -> str:
        """An optimizer as a slot names it, with the betas and epsilon from here where it is AdamW and says none itself.

        Raises SpecError where betas are given to another one.
        """
        if optimizer == ADAMW:
            return reference_text(ADAMW, {"betas": self.betas, "epsilon": self.epsilon})
        if (self.betas, self.epsilon) != (Recipe.betas, Recipe.epsilon):
            raise SpecError(
                f"betas {self.betas}, epsilon {self.epsilon} of optimizer {optimizer}",
                allowed=f"those of {ADAMW}",
                next="write its options behind its name: NAME(option=value)",
            )
        return optimizer

    def rates(self, num_steps: int | None, lead: float = 0.0) -> LearningRate:
        """The rate of every step of a training of so many (None: nobody knows); `lead` as `Length.lead` says."""
        length = None if num_steps is None else num_steps + lead
        warmup = self.warmup
        if warmup is None:
            warmup = 0 if length is None else math.ceil(WARMUP_SHARE * length)
        return LearningRate(self.learning_rate, warmup, length, self.final_share, lead)


@dataclass(frozen=True)
class Length:
    """How long: steps or tokens since the very first step (the smaller one counts), and seconds of this run."""

    iterations: int | None = option(None, f"Steps since the very first ({DEFAULT_ITERATIONS}).", panel=LENGTH)
    tokens: int | None = option(None, "The same in tokens: 2e9.", panel=LENGTH, parse=_whole)
    seconds: float | None = option(None, "Stop by the clock.", panel=LENGTH)

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
