"""What a state may say: models and clusters with what bounds their degrees, and the words of all other choices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from meshwright import catalog
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.model.division import degrees
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import RECOMPUTES
from meshwright.specs.sequence.context_parallel import CONTEXTS
from meshwright.workbench.document.plan import PARTS
from meshwright.workbench.server.load.asked_load import LOAD_DEFAULTS
from meshwright.workbench.server.session import Session
from meshwright.workbench.server.state import DEFAULTS, LAYOUTS, OFFLOADS, PRECISIONS, SHARDINGS

CLUSTERS = ("8xH100", "2x8xH100", "8x8xH100", "32x8xH100", "8xA100", "8x8xA100", "8x8xH200", "8x8xB200")
Choice = Mapping[str, Any]


def choices(session: Session) -> Choice:
    """The catalog: lists that a page offers, the state of an empty address, and of one that only says `workload=serve`."""
    return {
        "models": [*_presets(), *(model_choice(name, model) for name, model in session.models.items())],
        "clusters": [*_short_names(), *(cluster_choice(*each) for each in session.clusters.items())],
        "schedules": list(catalog.names("schedules")),
        "recomputes": list(RECOMPUTES),
        "precisions": list(PRECISIONS),
        "zeros": list(SHARDINGS),
        "offloads": list(OFFLOADS),
        "contexts": list(CONTEXTS),
        "token_layouts": list(LAYOUTS),
        "parts": list(PARTS),
        "defaults": dict(DEFAULTS),
        "load_defaults": dict(LOAD_DEFAULTS),
    }


def model_choice(name: str, model: ModelSpec) -> Choice:
    """A model by the name of a state. `tps`: tensor-parallel degrees that give every device whole heads and units;
    `experts`: what expert-parallel degrees divide; 0: the model has none, and `ep` is 1."""
    title = model.name if model.name == name else f"{model.name} (pasted)"
    experts = model.dimensions()["num_experts"]
    return {"name": name, "title": title, "tps": list(degrees(model)), "experts": experts}


def cluster_choice(name: str, cluster: ClusterSpec) -> Choice:
    """A cluster by the name of a state, and how many devices the degrees take."""
    devices = cluster.num_devices
    title = name if name in CLUSTERS else f"{name} ({devices:,} devices)"
    return {"name": name, "title": title, "devices": devices}


@cache
def _presets() -> tuple[Choice, ...]:
    return tuple(model_choice(name, load_model(name)) for name in catalog.names("models"))


@cache
def _short_names() -> tuple[Choice, ...]:
    return tuple(cluster_choice(name, Cluster(name)) for name in CLUSTERS)
