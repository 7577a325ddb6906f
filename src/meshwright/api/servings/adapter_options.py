"""Which LoRA adapters a server has, and from where it may load others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.api.servings.engine_choice import EngineChoice
from meshwright.serving.engine.served_adapters import ServedAdapters
from meshwright.specs.error import SpecError
from meshwright.specs.option import option

PANEL = "Adapters"


def adapters_of(texts: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """Names and folders, of "NAME=FOLDER" each. Raises SpecError."""
    found: dict[str, Path] = {}
    for text in texts:
        name, _, folder = text.partition("=")
        if not name or not folder or name in found:
            raise SpecError(f"--adapter {text!r}", allowed="NAME=FOLDER, each name once")
        if not Path(folder).is_dir():
            raise SpecError(f"--adapter {name}: {folder} is no folder", allowed="a folder of PEFT")
        found[name] = Path(folder)
    return tuple(found.items())


@dataclass(frozen=True)
class AdapterOptions:
    """Of one server."""

    adapters: tuple[tuple[str, Path], ...] = option(
        (), "A LoRA adapter of PEFT, by which name requests choose it as `model`; may be repeated.", "--adapter",
        panel=PANEL, parse=adapters_of, repeats=True, metavar="NAME=FOLDER",
    )  # fmt: skip
    folder: Path | None = option(
        None, "From below this folder adapters may be loaded while the server runs.", "--adapters-folder", panel=PANEL
    )  # fmt: skip
    most: int = option(
        8, "Adapters that may be loaded at the same time", "--max-adapters", panel=PANEL, least=1
    )

    def __post_init__(self) -> None:
        if self.folder is not None and not self.folder.is_dir():
            raise SpecError(f"--adapters-folder {self.folder} is no folder", allowed="a folder")
        if len(self.adapters) > self.most:
            raise SpecError(f"{len(self.adapters)} adapters", allowed=f"{self.most}, --max-adapters")

    @property
    def are_served(self) -> bool:
        """Are there any, or may there be?"""
        return bool(self.adapters) or self.folder is not None

    def made(self) -> ServedAdapters:
        """None is loaded yet."""
        return ServedAdapters(self.most if self.are_served else 0)

    def engine(self, choice: EngineChoice) -> EngineChoice:
        """auto is the engine that takes adapters, where some are served."""
        return replace(choice, engine="torch") if self.are_served and choice.engine == "auto" else choice

    def load(self, adapters: ServedAdapters, model: str) -> None:
        """Those that are there from the start. Raises SpecError, ExecutionError."""
        for name, folder in self.adapters:
            if name == model:
                raise SpecError(f"--adapter {name} is the model's own name", allowed="another name")
            adapters.load(name, folder)


NO_ADAPTERS = AdapterOptions()
