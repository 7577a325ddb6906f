"""What a plan is asked for: the keywords of `plan`, and the options of the command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.option import option, words_of
from meshwright.specs.sequence.length_distribution import LengthDistribution
from meshwright.specs.training.source import PathLike
from meshwright.specs.units import parse_bytes, parse_seconds, parse_sequence, parse_whole

BETWEEN = re.compile(r"\+(?![^(]*\))")  # several values; not within options of a name
RISK = 0.0  # that the first plan does not fit, where nobody says: its memory does at the upper end of its interval
AS_IN_TABLES = {"micro": "microbatch_size"}  # what plans are called there -> what it is
TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")


def capacity_of(cluster: ClusterSpec, limit_bytes: object) -> int:
    """Bytes of a device that may be used, all of it without a limit. What is no limit is the search's to refuse."""
    return min(cluster.memory_bytes, limit_bytes) if isinstance(limit_bytes, int) else cluster.memory_bytes


def all_words_of(given: Sequence[str]) -> tuple[str, ...]:
    """The words of several texts."""
    return tuple(word for text in given for word in words_of(text))


def fixed_of(given: Sequence[str]) -> Mapping[str, Any]:
    """NAME=VALUE pairs, with numbers and yes or no read as such; `micro`, as tables of plans say it, is the microbatch's
    size."""
    found: dict[str, Any] = {}
    for pair in all_words_of(given):
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise SpecError(f"--fix {pair!r}", allowed="NAME=VALUE, such as tp=8,pp=4")
        name = AS_IN_TABLES.get(name, name)
        if found.get(name, value) != value and str(found[name]) != value:
            raise SpecError(
                f"--fix says {name}={found[name]} and {name}={value}", allowed="one value for each name"
            )
        found[name] = _value(name, value)
    return found


def _value(name: str, text: str) -> Any:
    if name in ("overlap", "passes"):
        return tuple(BETWEEN.split(text))
    if text.isdigit():
        return int(text)
    return True if text in TRUE else False if text in FALSE else text


@dataclass(frozen=True)
class PlanRequest:
    """The job and the limits of a search, in SI units; None: not said. Raises PlanError where what is fixed is no mapping.

    Args:
        global_batch, seq: sequences of a step, and tokens of one.
        lengths: of the documents that are packed into the sequences: a folder of token shards, a file of lengths, or a
            distribution; None: every sequence is one text. The step is then the mean of drawn batches.
        fix: fields of a plan that are decided already, such as {"pp": 4, "schedule": "1f1b"}. On GPUs a `dtype` that nobody
            chose is bfloat16, with master parameters and gradients in float32.
        dtype: the same as fixing it.
        forbid: names of choices that must not be used, one or several.
        max_memory_bytes, time_limit_s: of a device; of the whole search.
        extrapolate: plan for GPUs that were never measured, too, by their data sheet.
        profile: of this machine, or its file; None: the one in the user's cache. Of GPUs one of `calibrate --from-log`: all
            times are then by its factor longer than predicted.
        planner: a name of `meshwright list planners`, or ./mine.py:NAME.
        layer_wise, microbatch_sizes, num_simulated, iterations: as of `planner.search.search`.
        risk: chance, from 0, which is the default, to 1, that the first plan does not fit; those that do not with a larger
            one stand behind all others (`Predicted.fit_probability`).
        framework: a program of `meshwright export` that has words for every plan; others are left out.
        objective: "time", "cost", "energy" or "memory" (`planner.search.objective`).
    """

    global_batch: int | None = option(None, "Sequences of a step: 512, 1k.", parse=parse_whole)
    seq: int | None = option(None, "Tokens of a sequence: 8192, 8k (of 1024).", parse=parse_sequence)
    lengths: PathLike | LengthDistribution | None = option(
        None,
        "Documents of these lengths are packed into the sequences: token shards, or a file with a length a line.",
        parse=Path,
    )
    fix: Mapping[str, Any] | None = option(
        None, "What is decided already: tp=8,pp=4,recompute=full.", parse=fixed_of, repeats=True
    )
    forbid: Sequence[str] | None = option(
        None, "What must not be used: cp,zero3,interleaved_1f1b.", parse=all_words_of, repeats=True
    )
    max_memory_bytes: int | None = option(
        None, "Of a device, at most: 72GB.", "--max-memory", parse=parse_bytes
    )
    time_limit_s: float | None = option(
        None, "End after so long with the best so far: 30s.", "--time-limit", parse=parse_seconds
    )
    extrapolate: bool = option(False, "Accept GPUs that were never measured, by their data sheet.")
    profile: Profile | Path | None = option(
        None, "What `calibrate -o` wrote: of processes on CPUs, or of GPUs from a log of yours."
    )
    planner: str | None = option(
        None,
        "Another search than ours: a name of `meshwright list planners` (with --requests `serving_planners`), or "
        "./mine.py:NAME.",
    )
    layer_wise: bool | None = option(
        None, "Also vary the best plans stage by stage: blocks, and how many are run again."
    )
    risk: float | None = option(
        None,
        "Accept as the first plan one that may not fit, with at most this chance (0: none may).",
        least=0,
    )
    framework: str | None = option(
        None, "Only plans that it can be told: megatron, torchtitan or deepspeed.", "--for"
    )
    objective: str | None = None
    dtype: str | None = None
    microbatch_sizes: Sequence[int] | None = None
    num_simulated: int | None = None
    iterations: int | None = None

    def __post_init__(self) -> None:
        if self.fix is not None and not isinstance(self.fix, Mapping):
            raise PlanError(f"fix is {self.fix!r}", allowed='names and values, such as {"tp": 8, "pp": 4}')
        if self.risk is not None and not 0 <= self.risk <= 1:
            raise PlanError(f"a risk of {self.risk}", allowed="a chance from 0 to 1")

    @staticmethod
    def of(given: Mapping[str, Any]) -> PlanRequest:
        """What keywords say. Raises PlanError for one that there is not."""
        known = [each.name for each in fields(PlanRequest)]
        if unknown := sorted(set(given) - set(known)):
            raise PlanError(f"a search has no {', '.join(unknown)}", allowed=", ".join(known))
        return PlanRequest(**given)

    def keywords(self, *but: str) -> dict[str, Any]:
        """What was said, by name, without some."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in but}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def decided(self) -> dict[str, Any]:
        """What is fixed, with one kind of overlap as a tuple of it."""
        found = {**({} if self.dtype is None else {"dtype": self.dtype}), **(self.fix or {})}
        if isinstance(found.get("overlap"), str):
            found["overlap"] = (found["overlap"],)
        return found

    @property
    def forbidden(self) -> tuple[str, ...]:
        """What must not be used."""
        return (self.forbid,) if isinstance(self.forbid, str) else tuple(self.forbid or ())
