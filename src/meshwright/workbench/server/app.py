"""The workbench's paths: the page, the catalog, documents of a state, searches, what is pasted."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from meshwright.prediction.predicted import predict
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.workbench.document.document import Document
from meshwright.workbench.document.plan import PARTS, plan_document
from meshwright.workbench.document.segments import segments_document
from meshwright.workbench.server.answer import (
    ASSETS,
    HANDLERS,
    NOT_FOUND,
    Answer,
    data_answer,
    error_answer,
    error_data,
    page_answer,
)
from meshwright.workbench.server.choices import choices, cluster_choice, model_choice
from meshwright.workbench.server.guard import MOST_BODY_BYTES, LoopbackGuard
from meshwright.workbench.server.load.asked_load import asked_load_of
from meshwright.workbench.server.load.load_desk import AGAINST_LOAD, LoadDesk
from meshwright.workbench.server.load.load_desk import PARTS as LOAD_PARTS
from meshwright.workbench.server.load.load_search import searched_layouts
from meshwright.workbench.server.newest import NewestFirst, Superseded, TookTooLong
from meshwright.workbench.server.pasted import pasted_cluster, pasted_job, pasted_model
from meshwright.workbench.server.search_job import Search, SearchJob, SearchJobs, searched_plans
from meshwright.workbench.server.session import Session
from meshwright.workbench.server.state import (
    DEFAULTS,
    MOST_CELLS,
    MOST_DEVICES,
    SERVE,
    asked_of,
    workload_of,
)

LIMIT_S = 30.0  # that one view may take
MOST_DRAWN_ROWS = 400_000  # over loopback: 64 devices with 512 microbatches
LATER = ("binds", AGAINST_LOAD)  # asked for alone: they price, or simulate, many
ALL_PARTS = (*PARTS, *LOAD_PARTS)
EVERY_MOVE = tuple(part for part in ALL_PARTS if part not in LATER)


class Workbench:
    """What one server knows: what was pasted, what is being worked at."""

    def __init__(self) -> None:
        self.session = Session()
        self.jobs, self.desk = SearchJobs(), LoadDesk()
        self.views, self.insides = NewestFirst(LIMIT_S), NewestFirst(LIMIT_S)
        self.later = NewestFirst(LIMIT_S)  # what follows when moves rest: the next move does not wait for it

    def warm(self) -> None:
        """Begin what the first view would wait for: kernels are compiled, measured costs read. What is there then stays, and
        the collector of cyclic garbage need not look at it with every move again."""
        self.views.first(self._warmed)

    def _warmed(self) -> None:
        choices(self.session)
        self._document(DEFAULTS, EVERY_MOVE).to_json()
        gc.freeze()

    async def view(self, request: Request) -> Response:
        """A state's document, and the request's sequence number back."""
        body = await _body(request)
        parts = _parts(body.get("parts"))
        queue = self.views if set(parts) <= set(EVERY_MOVE) else self.later
        document = await queue.run(partial(self._document, body.get("state"), parts))
        return data_answer({**document.to_json(), "sequence": body.get("sequence")})

    def _document(self, state: object, parts: tuple[str, ...]) -> Document:
        if workload_of(state) == SERVE:
            return self.desk.document(asked_load_of(state, self.session), parts)
        asked = asked_of(state, self.session)
        found = predict(asked.plan(), asked.cluster, extrapolate=True)
        made = plan_document(found, parts=parts, most_rows=MOST_DRAWN_ROWS)
        return replace(made, kind="workbench", notes=[*asked.notes, *made.notes])

    async def segments(self, request: Request) -> Response:
        """The inside of one stage."""
        body = await _body(request)
        stage = body.get("stage")
        if not isinstance(stage, int) or isinstance(stage, bool):
            raise SpecError("stage is no whole number", allowed='{"state": {...}, "stage": 0}')
        document = await self.insides.run(partial(self._segments, body.get("state"), stage))
        return data_answer({**document.to_json(), "sequence": body.get("sequence")})

    def _segments(self, state: object, stage: int) -> Document:
        asked = asked_of(state, self.session)
        plan = asked.plan().placed(asked.cluster)
        return segments_document(plan, asked.cluster, stage, most_rows=MOST_DRAWN_ROWS)

    async def plan(self, request: Request) -> Response:
        """Begin a search."""
        search = self._search((await _body(request)).get("state"))
        return data_answer({"job": self.jobs.start(search).id}, 202)

    def _search(self, state: object) -> Search:
        if workload_of(state) == SERVE:
            return partial(searched_layouts, asked_load_of(state, self.session))
        return partial(searched_plans, asked_of(state, self.session), self.session)

    async def job(self, request: Request) -> Response:
        """How far a search is, or what it found; with DELETE it is given up."""
        id = request.path_params["id"]
        job = self.jobs.cancel(id) if request.method == "DELETE" else self.jobs.find(id)
        if job is None:
            return error_answer("there is no such search", "", "begin another", status=NOT_FOUND)
        return data_answer(_told(job))

    async def pasted(self, request: Request) -> Response:
        """A job, a model or a cluster from a text."""
        body = await _body(request)
        text = body.get("text")
        if not isinstance(text, str):
            raise SpecError("text is no text", allowed='{"text": "..."}')
        what = request.url.path.rsplit("/", 1)[-1]
        work: Callable[[], Answer]
        if what == "import":
            work = partial(self._job_of, text, body.get("state", {}))
        else:
            work = partial(self._model_of if what == "model" else self._cluster_of, text)
        return data_answer(await self.insides.run(work))

    def _model_of(self, text: str) -> Answer:
        name = pasted_model(text, self.session)
        return model_choice(name, self.session.models[name])

    def _cluster_of(self, text: str) -> Answer:
        name = pasted_cluster(text, self.session)
        return cluster_choice(name, self.session.clusters[name])

    def _job_of(self, text: str, given: object) -> Answer:
        asked_of(given, self.session)
        assert isinstance(given, Mapping), "what is no state was refused"
        taken = pasted_job(text, self.session, given)
        return {"state": dict(taken.state), "notes": list(taken.notes)}

    async def sources(self, request: Request) -> Response:
        """The texts of what was pasted or found, by their names (`?names=A,B`): what a link carries. Names of nothing that is
        kept are left out."""
        names = request.query_params.get("names", "").split(",")
        found = [self.session.source(name) for name in names]
        return data_answer({"sources": [each._asdict() for each in found if each is not None]})

    async def catalog(self, request: Request) -> Response:
        """What a state may say."""
        limits = {
            "devices": MOST_DEVICES, "cells": MOST_CELLS, "body_bytes": MOST_BODY_BYTES, "seconds": LIMIT_S,
        }  # fmt: skip
        return data_answer({**choices(self.session), "limits": limits})

    def close(self) -> None:
        """Nothing works any more."""
        self.jobs.close()
        self.views.close()
        self.insides.close()
        self.later.close()


def create_app(workbench: Workbench, port: int) -> LoopbackGuard:
    """The ASGI application, for requests to this port of the loopback interface."""
    routes = [
        Route("/", _page),
        *ASSETS,
        Route("/api/catalog", workbench.catalog),
        Route("/api/sources", workbench.sources),
        Route("/api/view", workbench.view, methods=["POST"]),
        Route("/api/segments", workbench.segments, methods=["POST"]),
        Route("/api/plan", workbench.plan, methods=["POST"]),
        Route("/api/plan/{id}", workbench.job, methods=["GET", "DELETE"]),
        *(
            Route(f"/api/{what}", workbench.pasted, methods=["POST"])
            for what in ("import", "model", "cluster")
        ),
    ]
    handlers = {**HANDLERS, Superseded: _superseded, TookTooLong: _too_long}
    return LoopbackGuard(Starlette(routes=routes, exception_handlers=handlers), port)


async def _page(request: Request) -> Response:
    return page_answer()


async def _body(request: Request) -> Answer:
    """The object of a request. Raises SpecError for anything else."""
    try:
        found = json_of(await request.body())
    except ValueError as error:
        raise SpecError(f"the body is no JSON: {error}", allowed="an object") from None
    if not isinstance(found, Mapping):
        raise SpecError("the body is no object", allowed='{"state": {...}}')
    return found


def _parts(given: object) -> tuple[str, ...]:
    if given is None:
        return EVERY_MOVE
    if not isinstance(given, list) or not all(part in ALL_PARTS for part in given):
        raise SpecError("parts are not those of a document", allowed=", ".join(ALL_PARTS))
    return tuple(given)


def _told(job: SearchJob) -> Answer:
    found: dict[str, Any] = {"job": job.id, "state": job.state, "share": job.share, "text": job.text}
    if job.document is not None:
        found["document"] = job.document.to_json()
    if job.error is not None:
        found["error"] = error_data(job.error)
    return found


async def _superseded(request: Request, error: Exception) -> Response:
    said = {"message": "a newer request came", "allowed": "", "next": "ask again"}
    return data_answer({"error": said, "is_superseded": True})


async def _too_long(request: Request, error: Exception) -> Response:
    return error_answer(f"it takes longer than {LIMIT_S:g} s", "fewer devices or microbatches")
