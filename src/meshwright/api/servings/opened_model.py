"""A model opened for serving: its text, and a service whose engine is started, and started again, as it was chosen."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from meshwright.api.servings.engine_choice import SIMULATED, EngineChoice
from meshwright.executor.job.launch import launch_of
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.decoder.decoder import ONE_TOKEN, decoder_of
from meshwright.serving.engine.served_adapters import AdapterRunner, ServedAdapters
from meshwright.serving.loop.clock import WallClock
from meshwright.serving.openvino.support import LACKING, OTHER_ENGINE, absence, check_installed, refusal
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.stored.pooling import pooling_of
from meshwright.serving.stored.quantisation import method_of
from meshwright.serving.weight.expert_loads import ExpertLoads, RoutingRunner
from meshwright.serving.weight.expert_place import ExpertPlace
from meshwright.serving.weight.weight_place import RESIDENT, weight_place
from meshwright.specs.config.source import CONFIG_FILE, hub_config_path, load_model
from meshwright.specs.data_text import json_of
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.routing.expert_placement import ExpertPlacement

if TYPE_CHECKING:
    from meshwright.serving.engine.proposer import Proposer
    from meshwright.serving.engine.runner import Runner
    from meshwright.serving.engine.runner_engine import RunnerEngine
    from meshwright.serving.loop.service import Service
    from meshwright.serving.loop.serving_loop import Observer
    from meshwright.serving.request.sampling_parameters import SamplingParameters
    from meshwright.serving.sampling.grammar.grammars import GrammarMask, Grammars
    from meshwright.serving.text.local_text import LocalText

DEPTH = 2  # the next batch is chosen and packed while one runs
MAX_QUEUE = 1024
ANY_ENGINE, LIMITS, CONTINUOUS = EngineChoice(), Limits(), ContinuousBatching()
GGUF = ".gguf"
logger = logging.getLogger(__name__)
PRECISIONS = ("float32", "bfloat16", "int8", "int4")  # of weights, as the OpenVINO engine has them


class OpenedModel:
    """Args:
        reference: a folder (of Hugging Face, or a checkpoint of a training), or an id in the local hub cache.
        choice: the engine.
        limits, policy: of the scheduler.
        max_queue: requests that may wait or run.
        observers: see what the loop does.
        adapters: which every engine of it gets.

    Raises:
        SpecError: there is no such folder, or its model or its text cannot be served.
    """

    def __init__(
        self, reference: str | Path, choice: EngineChoice = ANY_ENGINE, limits: Limits = LIMITS,
        policy: ContinuousBatching = CONTINUOUS, max_queue: int = MAX_QUEUE,
        observers: Sequence[Observer] = (), adapters: ServedAdapters | None = None,
    ) -> None:  # fmt: skip
        from meshwright.serving.loop.service import Service

        if choice.engine == SIMULATED:
            raise SpecError(
                "a simulated engine says nothing that is worth hearing: its tokens are drawn",
                allowed="serve MODEL --engine simulated --cluster NAME, for clients and load tools",
                next="plan MODEL CLUSTER --requests FILE simulates a load without a server",
            )
        self._decoder = decoder_of(choice.decoder)
        self.folder, self.name = folder_of(reference), name_of(reference)
        self._choice, self._limits, self._policy = choice, limits, policy
        self.pooling = pooling_of(self.folder)
        self._adapters = adapters or ServedAdapters()
        self._text: LocalText | None = None
        if choice.tokenizer is not None or (self.folder / CONFIG_FILE).is_file():
            self._open_text()  # before the weights: what fails here fails soon
        self.vocabulary_size = self.max_model_tokens = 0
        self._grammars: Grammars | None = None
        self._lock = threading.Lock()
        self._runner: Runner | None = None
        try:
            self.service: Service = Service(self._start, max_queue, observers)
        except BaseException:
            self._close_text()
            raise

    def __enter__(self) -> OpenedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def text(self) -> LocalText:
        """Its tokenizer and chat template."""
        assert self._text is not None, "it is opened before the engine starts"
        return self._text

    def check_grammar(self, text: str) -> None:
        """Raises SpecError where outputs cannot be held to a grammar."""
        self._grammars_of(self.vocabulary_size).check(text)

    def check_tokens(self, token_ids: Sequence[int]) -> None:
        """Raises SpecError where one is not of the model's vocabulary."""
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.vocabulary_size:
            raise SpecError(
                f"tokens {min(token_ids)} to {max(token_ids)}", allowed=f"0 to {self.vocabulary_size - 1}"
            )

    def expert_loads(self) -> ExpertLoads | None:
        """Rows that came to experts since the engine was started; None where the model, or this engine, has none, and where
        the engine has failed."""
        runner: object = self._runner
        if not isinstance(runner, RoutingRunner):
            return None
        try:
            return ExpertLoads.of(runner.slot_rows())
        except ExecutionError as error:
            logger.warning("what came to experts is not known: %s", error)
            return None

    def close(self) -> None:
        """End all that was started."""
        self.service.close()
        self._close_text()

    def _open_text(self, vocabulary_size: int | None = None) -> None:
        """Of a checkpoint, which has no config.json, only the loaded model knows the vocabulary."""
        from meshwright.serving.text.local_text import LocalText

        folder = self._choice.tokenizer or self.folder
        self._text = LocalText.of_folder(folder, self._choice.chat_template, vocabulary_size)

    def _close_text(self) -> None:
        if self._text is not None:
            self._text.close()
        if self._grammars is not None:
            self._grammars.close()

    def _grammars_of(self, vocabulary_size: int) -> Grammars:
        """What knows the grammars of this model; made for the first one."""
        from meshwright.serving.sampling.grammar.grammars import Grammars

        with self._lock:
            if self._grammars is None:
                self._grammars = Grammars(self.text.tokenizer, vocabulary_size)
            return self._grammars

    def _mask_of(self, parameters: SamplingParameters) -> GrammarMask | None:
        if not parameters.grammar:
            return None
        return self._grammars_of(self.vocabulary_size).mask_of(parameters)

    def _start(self, clock: WallClock) -> tuple[Scheduler, RunnerEngine]:
        runner = runner_of(self.folder, self._choice)
        try:
            if self._text is None:
                self._open_text(runner.vocabulary_size)
            if self._adapters.most:
                self._adapters.attach(adapted(runner))
            if self.pooling is not None:
                check_gives_vectors(runner, self._choice)
            proposer = self._decoder.proposer(
                partial(draft_runner, choice=self._choice), runner.vocabulary_size
            )
        except BaseException:
            runner.close()
            raise
        self._runner, self.vocabulary_size = runner, runner.vocabulary_size
        self.max_model_tokens = min(runner.max_model_tokens, self._limits.max_model_tokens)
        limits = replace(self._limits, max_model_tokens=self.max_model_tokens)
        pool = BlockPool(runner.num_blocks, runner.block_tokens)
        host = BlockPool(runner.num_host_blocks, runner.block_tokens) if runner.num_host_blocks else None
        engine = self._engine(runner, proposer, clock)
        scheduler = Scheduler(self._policy, pool, limits, host, engine.num_lanes, self._decoder.tokens)
        return scheduler, engine

    def _engine(self, runner: Runner, proposer: Proposer | None, clock: WallClock) -> RunnerEngine:
        from meshwright.serving.engine.runner_engine import RunnerEngine
        from meshwright.serving.engine.speculating_engine import SpeculatingEngine

        ends = self.text.end_ids
        if proposer is None:
            return RunnerEngine(runner, clock.now_s, ends, DEPTH, self._mask_of, self._adapters)
        return SpeculatingEngine(runner, proposer, clock.now_s, ends, self._mask_of, self._adapters)


def runner_of(folder: Path, choice: EngineChoice) -> Runner:
    """The model, loaded by the engine that was chosen. Raises what the engine raises, and ExecutionError in a job of several
    processes."""
    _check_is_alone()
    return _openvino(folder, choice) if engine_of(folder, choice) == "openvino" else _torch(folder, choice)


def draft_runner(reference: str, choice: EngineChoice) -> Runner:
    """A draft model beside a model that was chosen so: in this process, all of it. Raises as `runner_of`."""
    plain = replace(
        choice,
        tp=1,
        pp=1,
        ep=1,
        expert_placement=None,
        num_host_blocks=0,
        weights=RESIDENT,
        decoder=ONE_TOKEN,
    )
    return runner_of(folder_of(reference), plain)


def _check_is_alone() -> None:
    """In a job of torchrun or Slurm every process would serve the whole model once more."""
    launch = launch_of(os.environ)
    if launch is not None and launch.num_processes > 1:
        raise ExecutionError(
            f"{launch.by} has started {launch.num_processes} processes, and the ranks of a served model are processes of "
            "one host that its server starts itself",
            allowed="one process a replica, with tp and pp within its host",
            next="start `meshwright serve` once on each host, and a router before them",
        )


def check_gives_vectors(runner: Runner, choice: EngineChoice) -> None:
    """Raise SpecError where the engine tells no vectors of texts, as the model's folder asks for."""
    from meshwright.serving.engine.runner import EmbeddingRunner

    is_plain = choice.weights == RESIDENT and choice.decoder == ONE_TOKEN
    if not isinstance(runner, EmbeddingRunner) or not is_plain:
        raise SpecError(
            f"embeddings with --engine {choice.engine}, tp={choice.tp}, pp={choice.pp}, --weights {choice.weights}, "
            f"--decoder {choice.decoder}",
            allowed="--engine torch in one process, with all weights there and no other decoder",
        )


def adapted(runner: Runner) -> AdapterRunner:
    """A runner that takes adapters. Raises SpecError for any other."""
    if not isinstance(runner, AdapterRunner):
        raise SpecError(f"adapters are not served here: {LACKING['adapters']}", next=OTHER_ENGINE)
    return runner


def engine_of(folder: Path, choice: EngineChoice) -> str:
    """An engine by its name; auto: OpenVINO's on a CPU where it is installed and takes the model, else torch."""
    if choice.engine != "auto":
        return choice.engine
    is_for_cpu = (
        choice.tp == 1
        and choice.weights == RESIDENT
        and device_of(choice.device) == "cpu"
        and choice.dtype in ("", *PRECISIONS)
    )
    if pooling_of(folder) or not (is_for_cpu and not absence() and (folder / CONFIG_FILE).is_file()):
        return "torch"
    return "torch" if refusal(load_model(folder)) else "openvino"


def _openvino(folder: Path, choice: EngineChoice) -> Runner:
    check_installed()
    if choice.tp > 1:
        raise SpecError(f"tp={choice.tp}: {LACKING['tensor parallelism']}", next=OTHER_ENGINE)
    if choice.weights != RESIDENT:
        raise SpecError(f"weights={choice.weights} with OpenVINO", allowed=RESIDENT, next=OTHER_ENGINE)
    from meshwright.serving.openvino.runner import OpenVinoOptions, OpenVinoRunner

    options = OpenVinoOptions(
        precision=choice.dtype or preferred_precision(), num_blocks=choice.num_blocks, num_stages=choice.pp,
        num_host_blocks=choice.num_host_blocks, num_threads=choice.num_threads,
    )  # fmt: skip
    _say_how_stored(folder, options.precision)
    return OpenVinoRunner(folder, options)


def preferred_precision() -> str:
    """bfloat16 where the CPU computes in it."""
    from meshwright.serving.openvino.precision import computed_in

    return computed_in("int8")  # what weights of 8 bits are computed in


def _torch(folder: Path, choice: EngineChoice) -> Runner:
    from meshwright.executor.serving.parallel.parallel_runner import ParallelRunner
    from meshwright.executor.serving.parallel.rank_place import fetched_by_ranks
    from meshwright.executor.serving.runner_options import RunnerOptions
    from meshwright.executor.serving.served_model import open_served
    from meshwright.executor.serving.torch_runner import TorchRunner

    served = open_served(folder)
    place = weight_place(choice.weights)
    cache = place.expert_cache() if isinstance(place, ExpertPlace) else None
    options = RunnerOptions(
        dtype=choice.dtype, device=device_of(choice.device), num_blocks=choice.num_blocks,
        num_host_blocks=choice.num_host_blocks, tp=choice.tp, pp=choice.pp, num_threads=choice.num_threads,
        sums=choice.sums, fetched=fetched_by_ranks(place, served.model, choice.tp, choice.pp, choice.ep),
        ep=choice.ep, expert_slots=expert_slots(choice, served.model),
    )  # fmt: skip
    _say_how_stored(folder, options.dtype or served.dtype)
    if options.num_ranks == 1:
        return TorchRunner(served, options, cache)
    if cache is not None:
        raise SpecError(
            f"weights={choice.weights} with tp={choice.tp}, pp={choice.pp}",
            allowed="tp=1, pp=1: the cache of experts is of one process",
        )
    return ParallelRunner(served, options)


def expert_slots(choice: EngineChoice, model: ModelSpec) -> tuple[tuple[int, ...], ...]:
    """Of every layer its experts by slot, as a placement's file says; none: neighbouring ones are on one device. Raises
    SpecError where the file is none, or of another model or number of devices."""
    if choice.expert_placement is None:
        return ()
    placement = ExpertPlacement.load(choice.expert_placement)
    return placement.slots_in(model, choice.ep, takes_copies=True)


def _say_how_stored(folder: Path, dtype: str) -> None:
    """That quantised weights take more memory than their files."""
    if not (folder / CONFIG_FILE).is_file():
        return
    method = method_of(json_of((folder / CONFIG_FILE).read_text(encoding="utf-8")))
    if method:
        stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        weights = load_model(folder).num_parameters
        logger.warning(
            "weights quantised by %s are computed with in %s: %.1f billion of them, %.1f GB in files",
            method, dtype, weights / 1e9, stored / 1e9,
        )  # fmt: skip


def device_of(asked: str) -> str:
    """A device by its name; auto: a GPU where there is one."""
    from meshwright.executor.serving.device_name import served_device

    return served_device(asked)


def folder_of(reference: str | Path) -> Path:
    """The folder of a model. Raises SpecError."""
    folder = Path(reference)
    if folder.suffix == GGUF or (folder.is_dir() and _holds_gguf(folder)):
        raise SpecError(
            f"{reference}: GGUF files are not read", allowed=f"a folder with {CONFIG_FILE} and safetensors",
            next="serve the folder that llama.cpp's convert_hf_to_gguf.py was given, or let transformers write one: "
            "AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=NAME).save_pretrained(TARGET)",
        )  # fmt: skip
    if folder.is_dir():
        return folder
    found = hub_config_path(str(reference))
    if found is None:
        raise SpecError(
            f"{reference} is no folder of a model",
            allowed=f"a folder with {CONFIG_FILE} and safetensors, a checkpoint, or an id in the local hub cache",
        )
    return found.parent


def _holds_gguf(folder: Path) -> bool:
    return any(folder.glob(f"*{GGUF}")) and not any(folder.glob("*.safetensors"))


def name_of(reference: str | Path) -> str:
    """What clients call a model: a folder's own name, an id as it is."""
    return Path(reference).resolve().name if Path(reference).is_dir() else str(reference)
