"""All handlers of the core: of training, and of exchanges and copies of any name."""

from __future__ import annotations

from meshwright.executor.handlers import (
    chain_handler,
    group_handler,
    relay_handler,
    score_handler,
    stage_handler,
    step_handler,
    vocabulary_handler,
)
from meshwright.executor.handlers.offload import offload_handler
from meshwright.executor.rank import exchange_handler
from meshwright.executor.rank.handler import Handlers, joined

CORE_HANDLERS: Handlers = joined(
    exchange_handler.HANDLERS,
    stage_handler.HANDLERS,
    chain_handler.HANDLERS,
    relay_handler.HANDLERS,
    score_handler.HANDLERS,
    group_handler.HANDLERS,
    offload_handler.HANDLERS,
    step_handler.HANDLERS,
    vocabulary_handler.HANDLERS,
)
