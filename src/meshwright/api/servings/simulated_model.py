"""A model that is only simulated, opened for serving: its steps take as long as on a cluster, and its tokens are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.api.loads.planning_load import FORMATS
from meshwright.api.servings.engine_choice import EngineChoice
from meshwright.api.subjects.loading import cluster_named
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.request.request_file import BLOCK_TOKENS
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.drawn.drawing_engine import DrawingEngine
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.replica_memory import replica_memory
from meshwright.serving.simulated.simulated_engine import SimulatedEngine
from meshwright.serving.simulated.step_table import StepTable
from meshwright.specs.config.source import hub_config_path, load_model
from meshwright.specs.error import SpecError, UnknownNameError

if TYPE_CHECKING:
    from meshwright.serving.loop.clock import WallClock
    from meshwright.serving.loop.serving_loop import Observer
    from meshwright.serving.policy.continuous_batching import ContinuousBatching
    from meshwright.serving.policy.limits import Limits
    from meshwright.serving.text.local_text import LocalText

NUM_SPOKEN = 4096  # tokens of which outputs are drawn, at most
NO_WORDS = "a simulated engine draws its tokens"


class SimulatedModel:
    """What `OpenedModel` is for a real one.

    Args:
        reference: a preset, a folder or an id, as `load_model` takes it; its tokenizer is its folder's, or --tokenizer's,
            else a byte is a token.
        choice: the cluster, and how many of its devices (tp, pp, ep) one replica has; dtype, blocks.
        limits, policy, max_queue, observers: as of `OpenedModel`.

    Raises:
        SpecError, PlanError, UnknownNameError, OutOfMemoryError: it cannot be divided so, or does not fit.
    """

    def __init__(
        self, reference: str | Path, choice: EngineChoice, limits: Limits, policy: ContinuousBatching, max_queue: int,
        observers: Sequence[Observer] = (),
    ) -> None:  # fmt: skip
        from meshwright.serving.loop.service import Service

        dtype = choice.dtype or FORMATS[0]
        if dtype not in FORMATS:
            raise UnknownNameError("number format of a model that is simulated", dtype, FORMATS)
        self.name, model = name_of_model(reference), load_model(reference)
        self.max_model_tokens = min(limits.max_model_tokens, model.max_sequence_length)
        self.vocabulary_size = model.vocabulary_size
        self._limits = replace(limits, max_model_tokens=self.max_model_tokens)
        layout = ReplicaLayout(choice.tp, choice.pp, choice.ep)
        program = ForwardProgram(model, cluster_named(choice.cluster), layout, dtype)
        room = replica_memory(program, self._limits, BLOCK_TOKENS).num_blocks
        num_blocks = choice.num_blocks or room
        steps = StepTable(program, limits.max_batch_tokens, limits.max_sequences, self.max_model_tokens)
        steps.step(BatchShape.of((), 1, 1))  # a table is made when it is first asked: nobody waits for it yet
        self.text = text_of(reference, choice)
        token_ids = spoken_ids(self.text, self.vocabulary_size)

        def start(clock: WallClock) -> tuple[Scheduler, DrawingEngine]:
            scheduler = Scheduler(
                policy, BlockPool(num_blocks, BLOCK_TOKENS), self._limits, num_lanes=layout.pp
            )
            simulated = SimulatedEngine(scheduler, steps, layout.pp)
            return scheduler, DrawingEngine(
                simulated, token_ids, choice.mean_output, BLOCK_TOKENS, clock.now_s
            )

        try:
            self.service = Service(start, max_queue, observers)
        except BaseException:
            self.text.close()
            raise

    pooling = None  # vectors that are drawn are nobody's

    def check_grammar(self, text: str) -> None:
        """Raises SpecError: what is drawn follows no grammar."""
        raise SpecError(f"{NO_WORDS}, and holds none of them to a grammar", next="leave it out")

    def expert_loads(self) -> None:
        """None: tokens that are drawn are routed nowhere."""

    def close(self) -> None:
        """End all that was started."""
        self.service.close()
        self.text.close()

    def __enter__(self) -> SimulatedModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def name_of_model(reference: str | Path) -> str:
    """What clients call it."""
    return Path(reference).resolve().name if Path(reference).exists() else str(reference)


def text_of(reference: str | Path, choice: EngineChoice) -> LocalText:
    """Of the tokenizer that was named, or of the model's folder; of a preset, which has none, of bytes."""
    from meshwright.serving.text.local_text import LocalText
    from meshwright.serving.text.template_source import found_template
    from meshwright.serving.text.tokenizer import TOKENIZER_FILE, ByteTokenizer

    found = hub_config_path(str(reference))
    folder = Path(reference) if Path(reference).is_dir() else found.parent if found else None
    if choice.tokenizer is None and (folder is None or not (folder / TOKENIZER_FILE).is_file()):
        template = choice.chat_template
        where = folder or (template and template.parent)
        return LocalText(ByteTokenizer(), found_template(where, template) if where else None)
    return LocalText.of_folder(choice.tokenizer or folder or Path(), choice.chat_template)


def spoken_ids(text: LocalText, vocabulary_size: int) -> list[int]:
    """Tokens that are words or pieces of them, in letters of their own."""
    found = []
    for token in range(min(text.vocabulary_size, vocabulary_size)):
        said = text.token_bytes(token).decode("utf-8", "replace").strip(" ")
        if said.isascii() and said.isalpha() and token not in text.tokenizer.special_ids:
            found.append(token)
        if len(found) == NUM_SPOKEN:
            break
    return found or list(range(min(text.vocabulary_size, vocabulary_size)))
