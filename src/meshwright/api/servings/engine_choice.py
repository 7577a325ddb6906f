"""Which engine computes a model's tokens, and with what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshwright.serving.decoder.decoder import ONE_TOKEN
from meshwright.serving.weight.weight_place import RESIDENT
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.option import option

SIMULATED = "simulated"
ENGINES = ("auto", "torch", "openvino", SIMULATED)
PANEL = "Engine"


@dataclass(frozen=True)
class EngineChoice:
    """Of one model."""

    engine: str = option("auto", f"What computes: {', '.join(ENGINES)}.", panel=PANEL)
    dtype: str = option(
        "",
        "float32 or bfloat16 (openvino: int8, int4, too; simulated: float8, too), of weights; else what the engine likes.",
        panel=PANEL,
    )
    device: str = option("auto", "cpu, cuda, cuda:N; auto: a GPU where there is one.", panel=PANEL)
    tp: int = option(1, "Processes (simulated: devices) that share every layer.", panel=PANEL, least=1)
    pp: int = option(
        1, "Processes (simulated: devices) that have some of the layers each.", panel=PANEL, least=1
    )
    ep: int = option(
        1,
        "Of tp so many have whole experts each, in place of a part of every one (simulated: 1 or tp).",
        panel=PANEL,
        least=1,
    )
    expert_placement: Path | None = option(
        None,
        "A file of `meshwright place -o`: which of ep has which experts, copies of some, too (torch).",
        panel=PANEL,
    )
    decoder: str = option(
        ONE_TOKEN,
        "Who proposes tokens that a step verifies: ngram(tokens=4), draft(model='FOLDER'); `list decoders`.",
        panel=PANEL,
    )
    num_blocks: int = option(
        0, "Blocks of keys and values; else as many as memory has room for.", "--blocks", panel=PANEL, least=0
    )
    num_host_blocks: int = option(
        0, "Blocks in host memory, to which others are swapped out.", "--host-blocks", panel=PANEL, least=0
    )
    num_threads: int = option(
        0, "Threads of each process; else as many as there are cores.", "--threads", panel=PANEL, least=0
    )
    weights: str = option(
        RESIDENT,
        f"Where weights lie while they are not needed: {RESIDENT}, or a name of `meshwright list weights` (torch).",
        panel=PANEL,
    )
    sums: str = option(
        "backend",
        "How processes that share layers sum (torch, CPU): backend, or by messages: star, ring, quickest.",
        panel=PANEL,
    )
    tokenizer: Path | None = option(
        None, "The folder of the tokenizer, where it is not the model's.", panel=PANEL
    )
    chat_template: Path | None = option(
        None, "A file with a chat template, in place of the model's.", panel=PANEL
    )

    cluster: str = option(
        "", "With --engine simulated: at whose pace, such as 8xH100; answers are drawn tokens.", panel=PANEL
    )
    mean_output: int = option(
        200, "With --engine simulated: tokens of an output in the mean, where a request lets it end", panel=PANEL, least=1
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UnknownNameError("engine", self.engine, ENGINES)
        if (self.engine == SIMULATED) != bool(self.cluster):
            raise SpecError(
                f"--engine {self.engine} with --cluster {self.cluster or '(none)'}",
                allowed="--engine simulated --cluster 8xH100, both or none",
            )
        if self.tp % self.ep:
            raise SpecError(
                f"--ep {self.ep} with --tp {self.tp}",
                allowed="tp, or a divisor of it: experts lie on the devices that share every layer",
                next=f"--tp {self.ep} --ep {self.ep}",
            )
        if self.expert_placement is not None and (self.ep == 1 or self.engine == SIMULATED):
            raise SpecError(
                f"--expert-placement with --engine {self.engine} --ep {self.ep}",
                allowed="the torch engine, and as many devices of ep as the placement has",
                next="--tp N --ep N of `meshwright place --devices N`",
            )
        if self.engine == SIMULATED and self.decoder != ONE_TOKEN:
            raise SpecError(f"--engine simulated with --decoder {self.decoder}", allowed=ONE_TOKEN)
        if self.device != "auto" and self.device.partition(":")[0] not in ("cpu", "cuda"):
            raise SpecError(f"device {self.device!r}", allowed="cpu, cuda, cuda:N or auto")
