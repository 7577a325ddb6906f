"""Goodput: the share of a long job's time that is training, when devices fail: how often to save, how long a budget takes.

One device fails after an exponential time of mean `device_mtbf_s`; of n devices the first fails after one of mean
M = device_mtbf_s / n, the least of n independent ones. The job then waits `restart_s` (noticed, replaced, loaded) and
repeats what it did since it last saved. Saving stops training for `checkpoint_s`.

The time of a segment, tau seconds of training and delta of saving, s = tau + delta together, with failures of rate 1 / M
in all of it and in restarts of R seconds, too:

    an attempt at something that takes a seconds succeeds with probability p = exp(-a / M); each failure starts it anew.
    Expected time of all attempts: sum over attempts of E[min(X, a)] = M (1 - p) each, 1 / p attempts, so M (exp(a/M) - 1).
    Failures on the way: 1 / p - 1 = exp(s / M) - 1, each followed by a restart, which takes M (exp(R / M) - 1).
    E = M (exp(s/M) - 1) + (exp(s/M) - 1) M (exp(R/M) - 1) = M exp(R / M) (exp((tau + delta) / M) - 1)

which is the model of Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22, 2006. Goodput is tau / E. dE/dtau = E / tau gives (1 - x) exp(x) = exp(-delta / M) for
x = tau / M, whose root is x = 1 + W(-exp(-1 - delta / M)) with Lambert's W, the branch from -1 up. To first order that
is Young's sqrt(2 delta M) ("A first order approximation to the optimum checkpoint interval", CACM 17, 1974).
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass

from meshwright.specs.error import PlanError
from meshwright.specs.option import option
from meshwright.specs.units import format_seconds, parse_seconds

# Of saving to the mean time between failures: below it W loses digits to its branch point, and Daly's series is exact to
# a part in a million.
LEAST_RATIO = 1e-6


@dataclass(frozen=True, slots=True)
class Failures:
    """How often one device fails, and what saving and restarting take. Raises PlanError on numbers that cannot be.

    Attributes:
        device_mtbf_s: mean seconds between failures of ONE device, all causes that stop the job counted, those of hosts
            and network divided among the devices. Of a job that is known: its mean times its number of devices.
        checkpoint_s: seconds that training stops for to save.
        restart_s: seconds from a failure until training goes on from what was saved.
    """

    device_mtbf_s: float = option(
        MISSING, "Mean time between failures of ONE device: 50000h.", "--mtbf", parse=parse_seconds
    )
    checkpoint_s: float = option(
        MISSING, "Training stops to save for: 60s.", "--checkpoint", parse=parse_seconds
    )
    restart_s: float = option(
        MISSING, "From a failure until training goes on: 10min.", "--restart", parse=parse_seconds
    )

    def __post_init__(self) -> None:
        finite = all(map(math.isfinite, (self.device_mtbf_s, self.checkpoint_s, self.restart_s)))
        if not finite or self.device_mtbf_s <= 0 or self.checkpoint_s <= 0 or self.restart_s < 0:
            raise PlanError(
                f"a device that fails every {format_seconds(self.device_mtbf_s)}, saving in "
                f"{format_seconds(self.checkpoint_s)}, restarting in {format_seconds(self.restart_s)}",
                allowed="times above 0; a restart may take none",
            )

    def job_mtbf_s(self, num_devices: int) -> float:
        """Mean seconds until the first of so many devices fails. Raises PlanError below one device."""
        if num_devices < 1:
            raise PlanError(f"{num_devices} devices", allowed="at least one")
        return self.device_mtbf_s / num_devices


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """The best rhythm of saving: after so many steps, seconds of training between, and the share of time that is training."""

    every_steps: int
    interval_s: float
    goodput: float


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds until a budget of tokens is read: without failures, and with them (the same where nobody said any)."""

    num_tokens: int
    without_failures_s: float
    expected_s: float
    checkpointing: Checkpointing | None = None


def goodput(interval_s: float, failures: Failures, num_devices: int) -> float:
    """Share of the expected time that is training, when it saves after every `interval_s` seconds of training, 0 to 1.

    Exact for failures that come independently of the past; see the module. 0 where a float cannot hold it.
    """
    mtbf = failures.job_mtbf_s(num_devices)
    segment = (interval_s + failures.checkpoint_s) / mtbf
    # the logarithm of exp(segment) - 1, which exp would overflow
    log_growth = segment + math.log(-math.expm1(-segment))
    return math.exp(min(0.0, math.log(interval_s / mtbf) - failures.restart_s / mtbf - log_growth))


def best_interval_s(failures: Failures, num_devices: int) -> float:
    """Seconds of training between two checkpoints at which goodput is highest: exact, by Lambert's W."""
    mtbf = failures.job_mtbf_s(num_devices)
    ratio = failures.checkpoint_s / mtbf
    if ratio < LEAST_RATIO:
        return daly_interval_s(failures, num_devices)
    from scipy.special import lambertw  # a quarter of a second that most commands need not wait

    return mtbf * (1.0 + float(lambertw(-math.exp(-1.0 - ratio)).real))


def young_interval_s(failures: Failures, num_devices: int) -> float:
    """Young's first-order interval, sqrt(2 delta M)."""
    return math.sqrt(2 * failures.checkpoint_s * failures.job_mtbf_s(num_devices))


def daly_interval_s(failures: Failures, num_devices: int) -> float:
    """Daly's higher-order interval: sqrt(2 delta M) (1 + r / 3 + r^2 / 9) - delta with r = sqrt(delta / 2 M), and M from
    delta = 2 M on."""
    mtbf, delta = failures.job_mtbf_s(num_devices), failures.checkpoint_s
    if delta >= 2 * mtbf:
        return mtbf
    root = math.sqrt(delta / (2 * mtbf))
    return math.sqrt(2 * delta * mtbf) * (1 + root / 3 + root * root / 9) - delta


def best_checkpointing(failures: Failures, num_devices: int, step_s: float) -> Checkpointing:
    """The best number of whole steps between two checkpoints: goodput has one maximum, so one of its two neighbours."""
    steps = best_interval_s(failures, num_devices) / step_s
    counts = {max(1, math.floor(steps)), max(1, math.ceil(steps))}
    found = [
        Checkpointing(count, count * step_s, goodput(count * step_s, failures, num_devices))
        for count in sorted(counts)
    ]
    return max(found, key=lambda each: each.goodput)


def duration(
    num_tokens: int, step_s: float, tokens_per_step: float, num_devices: int, failures: Failures | None = None
) -> Duration:
    """How long a budget takes, in whole steps. Infinite where failures leave no progress that a float can hold.

    Args:
        step_s, tokens_per_step: seconds and expected tokens of one step.
        failures: None: nothing fails, and nothing is saved.

    Raises PlanError for a budget of no tokens.
    """
    if num_tokens < 1:
        raise PlanError(f"a budget of {num_tokens} tokens", allowed="at least one, such as 2T")
    seconds = math.ceil(num_tokens / tokens_per_step) * step_s
    if failures is None:
        return Duration(num_tokens, seconds, seconds)
    best = best_checkpointing(failures, num_devices, step_s)
    return Duration(num_tokens, seconds, seconds / best.goodput if best.goodput else math.inf, best)
