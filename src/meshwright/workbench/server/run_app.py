"""The paths of a run that is followed: the page with what is known of it, and what is known by now."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from meshwright.workbench.document.followed import ADDRESS, FollowedRun
from meshwright.workbench.server.answer import ASSETS, HANDLERS, data_answer, page_answer
from meshwright.workbench.server.guard import LoopbackGuard


def create_run_app(run: FollowedRun, port: int) -> LoopbackGuard:
    """The ASGI application, for requests to this port of the loopback interface."""

    async def page(request: Request) -> Response:
        return page_answer(run.document())

    async def now(request: Request) -> Response:
        return data_answer(run.document().to_json())

    routes = [Route("/", page), *ASSETS, Route(ADDRESS, now)]
    return LoopbackGuard(Starlette(routes=routes, exception_handlers=dict(HANDLERS)), port)
