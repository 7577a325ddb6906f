"""ServingJob: a plan that serves as exporters see it, and an export of one in the making."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field

from meshwright.interop.exported import DIGEST_DIGITS, Exported, ExportError, Refusal
from meshwright.interop.script_text import comment

HIDDEN = "the transfer of keys and values between replicas is set up by hand there"


@dataclass(frozen=True)
class ServingJob:
    """What is to be served, and how.

    Args:
        model: a folder, an id of the hub, or the name of a preset; `is_preset`: the last one, which servers do not know.
        gpu: of which a host has `num_gpus`.
        dtype: of the weights of linear layers.
        max_model_tokens: of a prompt and its output together.
        tp, pp, ep, attention_dp: degrees of one replica.
        replicas, num_prefill: how many, and how many of them compute prompts alone.
        max_batch_tokens, max_sequences, block_tokens: of a replica's steps and blocks.
        router: which replica gets a request.
        weights: where those of a replica lie.
        usual_weights: where they lie unless somebody says so.
        others: what else the plan decides, by name and value.
    """

    model: str
    is_preset: bool
    gpu: str
    num_gpus: int
    dtype: str
    max_model_tokens: int
    tp: int
    pp: int
    ep: int
    attention_dp: int
    replicas: int
    num_prefill: int
    max_batch_tokens: int
    max_sequences: int
    block_tokens: int
    router: str
    weights: str
    usual_weights: str
    others: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        """Of all that it says."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:DIGEST_DIGITS]

    @property
    def num_each(self) -> int:
        """GPUs of a replica."""
        return self.tp * self.pp


@dataclass
class ServingExport:
    """An export in the making: what was refused so far, and what is left to the user."""

    target: str
    job: ServingJob
    refusals: list[Refusal] = field(default_factory=list)
    left_open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        job = self.job
        self.need(not job.num_prefill, "num_prefill", HIDDEN)
        self.refusals += [Refusal(f"{name} = {value}", "it has no word for it") for name, value in job.others]
        if job.is_preset:
            self.left_open.append(f"the folder or hub id of {job.model}, which here is the name of a preset")

    def need(self, holds: bool, field: str, reason: str) -> None:
        """Refuse what the plan says in a field unless `holds`."""
        if not holds:
            self.refusals.append(Refusal(f"{field} = {getattr(self.job, field)}", reason))

    def check_weights(self) -> None:
        """A server that keeps its weights."""
        self.need(self.job.weights == self.job.usual_weights, "weights", "it keeps weights on its devices")

    def fits_a_host(self) -> None:
        """A replica is on one host."""
        self.need(
            self.job.num_each <= self.job.num_gpus, "tp" if self.job.pp == 1 else "pp",
            f"a replica of {self.job.num_each} GPUs is more than one host of {self.job.num_gpus}",
        )  # fmt: skip

    def finished(self, text: str, suffix: str, first: str = "") -> Exported:
        """`first`, a line that says what it is, and the text. Raises ExportError where anything was refused."""
        if self.refusals:
            raise ExportError(self.target, self.refusals)
        job = self.job
        how = f"{job.replicas} x tp{job.tp} pp{job.pp}, {job.dtype}"
        title = comment(f"meshwright serving plan {job.digest}: {job.model}, {how}, {job.gpu}")
        return Exported(self.target, f"{first}{title}\n{text}", job.digest, suffix, tuple(self.left_open))
