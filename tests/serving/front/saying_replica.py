"""A replica for tests: the saying model behind the real API on its socket. A prompt that begins with DIE ends the process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.serving.api.said import (
    BLOCK_TOKENS,
    MAX_TOKENS,
    VOCABULARY,
    ByteText,
    SayingRunner,
    no_grammar,
    saying_service,
)
from tests.serving.rest import wait_for_rest

from meshwright.serving.api.generation.model_service import ModelService
from meshwright.serving.api.http.api_key import keys_of
from meshwright.serving.api.http.metrics import ServerMetrics
from meshwright.serving.api.http.server import Address, serve_until_told
from meshwright.serving.engine.runner import StepInputs
from meshwright.serving.engine.served_adapters import ServedAdapters
from meshwright.serving.front.replica_entry import Told, answer_front
from meshwright.specs.error import SpecError

DIE = [ord(letter) for letter in "DIE"]


def serve(told: Told, announce: Callable[[int], None]) -> Told:
    """As `api.servings.replica` serves a model. told: step_s, max_queue, num_blocks, refuses, adapters."""
    if told.get("refuses"):
        raise SpecError("this model cannot be served", allowed="another")
    address = Address(path=Path(told["path"]))
    folder = Path(told["adapters"]) if told.get("adapters") else None
    adapters = ServedAdapters(2 if folder else 0)
    metrics = ServerMetrics("said", MAX_TOKENS, adapters.most)
    num_blocks = int(told["num_blocks"])
    with (
        address.listen() as listening,
        saying_service(told["step_s"], told["max_queue"], num_blocks, [metrics], adapters) as service,
    ):
        metrics.watch(service.snapshot)
        model = ModelService(
            "said", service, ByteText(), MAX_TOKENS, VOCABULARY, no_grammar, adapters, folder, observer=metrics
        )  # fmt: skip
        serve_until_told(
            model,
            metrics,
            address,
            listening,
            keys_of(None, os.environ),
            lambda _: announce(num_blocks * BLOCK_TOKENS),
        )
        state = wait_for_rest(service)
        counts = {"num_open": state.num_open, "num_held": state.num_held_blocks}
        return {"num_requests": metrics.totals.num_requests, **counts}


def mortal(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Dies of what begins with DIE."""

    def ending(runner: SayingRunner, inputs: StepInputs) -> Any:
        if inputs.token_ids[:3].tolist() == DIE:
            os._exit(9)
        return forward(runner, inputs)

    return ending


if __name__ == "__main__":
    SayingRunner.forward = mortal(SayingRunner.forward)  # type: ignore[method-assign]
    sys.exit(answer_front(serve))
