"""The search of `plan --requests` for the layouts that serve a state's load."""

from __future__ import annotations

import time
from collections.abc import Callable

from meshwright import api
from meshwright.specs.error import SpecError
from meshwright.workbench.document.document import Document
from meshwright.workbench.document.served.layouts import layouts_document
from meshwright.workbench.server.load.asked_load import MOST_REPLICAS, AskedLoad

LIMIT_S = 300.0  # of one search, most of which is simulating what steps of every layout take
MOST_DEVICES = MOST_REPLICAS  # so that every plan that is found can be opened


def searched_layouts(asked: AskedLoad, progress: Callable[[str, float], None]) -> Document:
    """The best layouts, on all devices of the cluster or fewer. Raises SpecError for what is too much work, else as
    `api.plan_load`."""
    if asked.cluster.num_devices > MOST_DEVICES:
        raise SpecError(
            f"{asked.words['cluster']} has {asked.cluster.num_devices:,} devices",
            allowed=f"a search on at most {MOST_DEVICES:,} in the workbench",
            next="meshwright plan --requests searches more",
        )
    ends_s = time.monotonic() + LIMIT_S

    def told(text: str, share: float) -> None:
        progress(text, share)
        if time.monotonic() > ends_s:
            raise SpecError(
                f"the search takes longer than {LIMIT_S:g} s",
                next="fewer devices, or meshwright plan --requests",
            )

    load, fix = asked.requests(asked.rate_per_s), {"dtype": asked.dtype}
    found = api.plan_load(asked.model, asked.cluster, load, slo=asked.objective, fix=fix, progress=told)
    return layouts_document(found, asked.load, asked.id_of)
