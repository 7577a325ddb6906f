"""ServedAdapters: LoRA adapters by name, which come and go while an engine runs, and come back with an engine that is
started again.

Every loading has a key of its own, "name#number": blocks that one adapter computed are never another's, not even where both
had the same name. An adapter that is unloaded is there until nobody who asked for it is served any more.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from meshwright.specs.error import MeshwrightError, SpecError, UnknownNameError

LOG = logging.getLogger(__name__)
MARK = "#"  # between an adapter's name and the number of its loading


@runtime_checkable
class AdapterRunner(Protocol):
    """What a `Runner` that takes adapters has beside it."""

    def load_adapter(self, folder: Path) -> int:
        """The number by which sequences ask for it."""
        ...

    def drop_adapter(self, number: int) -> None:
        """No sequence has it any more."""
        ...


@dataclass(slots=True)
class _Adapter:
    """One that is loaded: how many requests hold it, how many sequences compute with it, and may new ones ask for it?"""

    name: str
    folder: Path
    number: int
    num_holding: int = 0
    num_computing: int = 0
    is_leaving: bool = False


class ServedAdapters:
    """Of one engine at a time. All methods may be called from any thread. `most`: that may be loaded at the same time; 0: the
    engine takes none."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._runner: AdapterRunner | None = None
        self._there: dict[str, _Adapter] = {}  # by key
        self._num_ever = 0
        self._lock, self._loading = threading.Lock(), threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """Those that may be asked for."""
        with self._lock:
            return tuple(each.name for each in self._there.values() if not each.is_leaving)

    def attach(self, runner: AdapterRunner) -> None:
        """An engine begins: it gets all that are there. One whose folder is broken by now is left out, and said."""
        with self._loading:
            self._runner = runner
            for key, each in list(self._there.items()):
                try:
                    number = runner.load_adapter(each.folder)
                except MeshwrightError as why:
                    LOG.error("adapter %s is gone: %s", each.name, why)
                    with self._lock:
                        del self._there[key]
                    continue
                with self._lock:
                    each.number, each.num_computing = number, 0

    def load(self, name: str, folder: Path) -> None:
        """It may be asked for from now on.

        Raises:
            SpecError: there is one of this name, or as many as may be.
            ExecutionError: the folder is no adapter of this model.
        """
        with self._loading:
            if name in self.names:
                raise SpecError(f"adapter {name!r} is loaded already", next="unload it first")
            if len(self._there) >= self.most:
                raise SpecError(
                    f"{len(self._there)} adapters are loaded", allowed=str(self.most), next="unload one first"
                )
            assert self._runner is not None, "an engine is there before anybody loads"
            number = self._runner.load_adapter(folder)
            with self._lock:
                self._num_ever += 1
                self._there[f"{name}{MARK}{self._num_ever}"] = _Adapter(name, folder, number)

    def unload(self, name: str) -> None:
        """Nobody gets it any more; who has it already keeps it to the end. Raises UnknownNameError."""
        with self._lock:
            key = self._key(name)
            self._there[key].is_leaving = True
        self._let_go(key)

    def key_of(self, name: str) -> str:
        """By which requests ask for it. Raises UnknownNameError."""
        with self._lock:
            return self._key(name)

    def hold(self, key: str) -> None:
        """A request asks for it: it stays until the request lets it go. Raises UnknownNameError."""
        with self._lock:
            found = self._there.get(key)
            if found is None or found.is_leaving:
                raise UnknownNameError("adapter", name_of_key(key), self._names())
            found.num_holding += 1

    def release(self, key: str) -> None:
        """The request has ended."""
        with self._lock:
            if (found := self._there.get(key)) is not None:
                found.num_holding -= 1
        self._let_go(key)

    # -- the engine

    def begin(self, key: str) -> int:
        """A sequence computes with it: its number. Raises UnknownNameError."""
        with self._lock:
            if key not in self._there:
                raise UnknownNameError("adapter", name_of_key(key), self._names())
            self._there[key].num_computing += 1
            return self._there[key].number

    def end(self, key: str) -> None:
        """The sequence computes no more."""
        with self._lock:
            if (found := self._there.get(key)) is not None:
                found.num_computing -= 1
        self._let_go(key)

    def _let_go(self, key: str) -> None:
        """Drop it where it is leaving, and nobody has it."""
        with self._lock:
            found = self._there.get(key)
            if found is None or not found.is_leaving or found.num_holding > 0 or found.num_computing > 0:
                return
            del self._there[key]
            runner = self._runner
        try:
            if runner is not None:
                runner.drop_adapter(found.number)
        except MeshwrightError as why:  # a runner that is closed has forgotten it
            LOG.info("adapter %s: %s", found.name, why)

    def _key(self, name: str) -> str:
        found = [key for key, each in self._there.items() if each.name == name and not each.is_leaving]
        if not found:
            raise UnknownNameError("adapter", name, self._names())
        return found[0]

    def _names(self) -> list[str]:
        return [each.name for each in self._there.values() if not each.is_leaving]


def name_of_key(key: str) -> str:
    """The name that clients know."""
    return key.rpartition(MARK)[0]
