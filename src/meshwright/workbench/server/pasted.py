"""Texts that people paste: a model's config.json, a cluster's or a plan's TOML, another program's configuration."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qsl

from meshwright.interop import FORMATS, Given
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model, preset_model
from meshwright.specs.data_text import json_of, toml_of
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.plan.file import plan_text
from meshwright.specs.plan.plan import Plan
from meshwright.workbench.server.session import KeptText, Script, Session
from meshwright.workbench.server.state import DEFAULTS, asked_of, words_of

TITAN = ("training", "parallelism")  # tables of torchtitan's files
MODEL_KEYS = ("architectures", "model_type", "hidden_size", "n_embd")
WHERE = "what was pasted"
CODE_OF_ITS_OWN = SpecError(
    "the text names code of its own", allowed="names of the package, in the workbench"
)


@dataclass(frozen=True)
class PastedState:
    """What a text says: words of the state, and what to tell of it."""

    state: Mapping[str, str]
    notes: tuple[str, ...] = ()


def pasted_model(text: str, session: Session) -> str:
    """The name of a config.json's model. Raises SpecError for what is none."""
    found = _json(text)
    if not isinstance(found, Mapping):
        raise SpecError(
            "the text is no config.json", allowed="an object with hidden_size, num_hidden_layers, ..."
        )
    return session.keep_model(load_model(found), KeptText("model", text))


def pasted_cluster(text: str, session: Session) -> str:
    """The name of a cluster's TOML. Raises SpecError for what is none, or names code of its own."""
    if ".py" in text:
        raise CODE_OF_ITS_OWN
    with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
        file = Path(folder) / "pasted.toml"
        file.write_text(text, encoding="utf-8")
        try:
            return session.keep_cluster(Cluster.load(file), text)
        except SpecError as error:
            raise _said_of_paste(error, file) from None


def pasted_job(text: str, session: Session, given: Mapping[str, str]) -> PastedState:
    """A plan's TOML, another program's configuration, a model or a cluster, by what is in it. `given`: words of the state for
    what the text does not say. Raises as the readers of these do."""
    form = _form_of(text)
    if form == "model":
        return PastedState({"model": pasted_model(text, session)}, ("read as a model",))
    if form == "cluster":
        return PastedState({"cluster": pasted_cluster(text, session)}, ("read as a cluster",))
    if form == "plan":
        return _of_plan(_plan(text), session, given, ("read as a plan",))
    asked = asked_of(given, session)
    model = asked.model if form == "deepspeed" else None
    found = FORMATS[form](text, WHERE, Given(model, asked.cluster))
    unknown = [f"not understood, and left out: {option.name} {option.value}" for option in found.unknown]
    read = _of_plan(found.plan, session, given, (f"read as {form}", *unknown, *found.assumptions))
    like = session.keep_script(Script(form, text, found.plan))
    return replace(read, state={**read.state, "like": like})


def _plan(text: str) -> Plan:
    if ".py" in text:
        raise CODE_OF_ITS_OWN
    with tempfile.TemporaryDirectory(prefix="meshwright-") as folder:
        file = Path(folder) / "pasted.toml"
        file.write_text(text, encoding="utf-8")
        try:
            return Plan.load(file)
        except (SpecError, PlanError) as error:
            raise _said_of_paste(error, file) from None


def _of_plan(plan: Plan, session: Session, given: Mapping[str, str], notes: tuple[str, ...]) -> PastedState:
    """A plan in words; its model is kept where it is no preset, and what words cannot say is told."""
    known = preset_model(plan.model.name)
    said = KeptText("import", plan_text(plan))
    model = plan.model.name if known == plan.model else session.keep_model(plan.model, said)
    cluster = plan.cluster or given.get("cluster", DEFAULTS["cluster"])
    words = dict(parse_qsl(words_of(plan, {"model": model, "cluster": cluster}, session)))
    asked_of(words, session).plan()
    return PastedState(words, notes)


def _form_of(text: str) -> str:
    """What a text is, by its own words."""
    stripped = text.lstrip()
    if stripped.startswith("{"):
        found = _json(text)
        return (
            "model" if isinstance(found, Mapping) and any(key in found for key in MODEL_KEYS) else "deepspeed"
        )
    try:
        table = toml_of(text)
    except ValueError:
        return "megatron"
    if all(isinstance(table.get(each), Mapping) for each in TITAN):
        return "torchtitan"
    if "devices" in table and "model" not in table:
        return "cluster"
    return "plan" if "schema" in table and "model" in table else "megatron"


def _json(text: str) -> object:
    try:
        found: object = json_of(text)
        return found
    except ValueError as error:
        raise SpecError(f"the text is no JSON: {error}", allowed="a config.json") from None


def _said_of_paste(error: SpecError | PlanError, file: Path) -> SpecError:
    """The same without the name of a file that nobody gave."""
    said = [
        part.replace(str(file), WHERE).replace(file.name, WHERE)
        for part in (error.given, error.allowed, error.next)
    ]
    return SpecError(said[0], allowed=said[1], next=said[2])
