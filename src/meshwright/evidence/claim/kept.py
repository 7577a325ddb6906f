"""Values of claims that a run found before it was cut short, kept in the user's cache for the next run to go on from."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

import meshwright
from meshwright.evidence.claim.claim import Claim, ClaimResult
from meshwright.specs.cluster.profile import cache_path
from meshwright.specs.data_text import json_of
from meshwright.specs.whole_file import whole_file

log = logging.getLogger(__name__)
SCHEMA = 1
SOURCES = (".py", ".json", ".toml", ".csv")


@functools.cache
def sources_digest() -> str:
    """Of all that the package computes with: a value that other code has found is none of ours."""
    root = Path(meshwright.__file__).parent
    whole = hashlib.sha256()
    for path in sorted(each for each in root.rglob("*") if each.suffix in SOURCES):
        whole.update(str(path.relative_to(root)).encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()


@dataclass
class KeptValues:
    """Values by claim, of one system and one folder of data, that this very code has found. Claims that failed or were not
    run are tried again.

    ``path``: where they are; None: nowhere, nothing is kept.
    """

    path: Path | None
    data: str = ""
    values: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(name: str, data: Path | None) -> KeptValues:
        """Those of a system in the user's cache; none where there are none, or not of this code and these data."""
        path = cache_path(f"claims-{name}")
        folder = "" if data is None else str(data.resolve())
        return KeptValues(path, folder, _read(path, folder))

    def value(self, claim: Claim) -> float | None:
        """What is kept of a claim."""
        return self.values.get(key_of(claim))

    def add(self, result: ClaimResult) -> None:
        """Keep what was found; where the cache cannot be written, that is no error."""
        if self.path is None or result.our_value is None:
            return
        self.values[key_of(result.claim)] = result.our_value
        told = {"schema": SCHEMA, "digest": sources_digest(), "data": self.data, "values": self.values}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.path) as file:
                file.write_text(json.dumps(told), encoding="utf-8")
        except OSError as error:
            log.debug("values of claims are not kept: %s", error)
            self.path = None

    def forget(self) -> None:
        """All claims were run: the next run begins anew."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def key_of(claim: Claim) -> str:
    """What tells claims of a system apart."""
    return json.dumps([claim.claim, claim.by, dict(claim.arguments)], default=str)


def _read(path: Path, data: str) -> dict[str, float]:
    try:
        told = json_of(path.read_text(encoding="utf-8"))
        is_ours = (told["schema"], told["digest"], told["data"]) == (SCHEMA, sources_digest(), data)
        return {str(key): float(value) for key, value in told["values"].items()} if is_ours else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # none, or one that is damaged
