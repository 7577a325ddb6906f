"""`meshwright generate`: answers of a model without a server: prompts, or a batch file of OpenAI's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from meshwright import api
from meshwright.api.servings.batch_file import run_batch, write_batch
from meshwright.api.servings.engine_choice import EngineChoice
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result
from meshwright.cli.frame.progress import live_line
from meshwright.cli.serve.serving import Served, loads_data, loads_view
from meshwright.serving.weight.expert_loads import ExpertLoads
from meshwright.specs.error import SpecError
from meshwright.specs.option import option


@dataclass(frozen=True)
class Asking:
    """What is asked for."""

    prompts: tuple[str, ...] = option(
        (), "A text to continue; may be repeated.", "--prompt -p", repeats=True, parse=tuple
    )
    batch: Path | None = option(
        None, "A batch file of OpenAI's (a request a line); -o FILE.jsonl writes its answers."
    )
    is_chat: bool = option(False, "The text is a user's message, not a text to continue.", "--chat")
    max_tokens: int = option(64, "Tokens of the longest output", least=1)
    temperature: float = option(
        0.0, "0 takes the most probable token each time; 1 draws as the model says.", least=0
    )
    top_p: float = option(
        1.0, "Draw among the most probable tokens that have so much of the probability.", above=0
    )
    name: str = option(
        "", "What the lines of a batch call the model; else its folder's name.", "--served-name"
    )

    def __post_init__(self) -> None:
        if bool(self.prompts) == (self.batch is not None):
            raise SpecError("neither prompts nor a batch, or both", allowed="--prompt TEXT, or --batch FILE")


@writes(".jsonl")
def generate(out: Output, model: Served, asking: Asking, choice: EngineChoice) -> Result:
    """Answer prompts, or every line of a batch file, without a server."""
    if asking.batch is not None:
        return _batch(out, model, asking, choice)
    sampling = {"temperature": asking.temperature, "top_p": asking.top_p, "seed": out.seed}
    with live_line(out) as line:
        line.stage(f"loading {model}")
        with api.LLM(model, **asdict(choice)) as opened:
            if asking.is_chat:
                chats = [[{"role": "user", "content": prompt}] for prompt in asking.prompts]
                found = [opened.chat(chat, max_tokens=asking.max_tokens, **sampling) for chat in chats]
            else:
                found = opened.generate(list(asking.prompts), max_tokens=asking.max_tokens, **sampling)
            loads = opened.expert_loads()
    rows = [{"prompt": prompt, **asdict(each)} for prompt, each in zip(asking.prompts, found, strict=True)]
    data = {"outputs": rows, **loads_data(loads)}
    view: list[Text | str] = [*map(_shown, rows), *loads_view(loads)]
    return Result(data, view, {".jsonl": partial(write_batch, rows)})


def _batch(out: Output, model: str, asking: Asking, choice: EngineChoice) -> Result:
    assert asking.batch is not None
    loads: list[ExpertLoads | None] = []
    with live_line(out) as line:
        line.stage(f"loading {model}")
        lines = run_batch(
            model,
            asking.batch,
            choice=choice,
            name=asking.name,
            said=lambda done, of: line.share("answered", done / of),
            told=loads.append,
        )
    num_good = sum(each["response"]["status_code"] == 200 for each in lines)
    words = f"{num_good} of {len(lines)} lines answered"
    (found,) = loads
    data = {"num_lines": len(lines), "num_answered": num_good, "lines": lines, **loads_data(found)}
    return Result(data, [words, *loads_view(found)], {".jsonl": partial(write_batch, lines)})


def _shown(row: dict[str, Any]) -> Text:
    return Text.assemble((row["prompt"], "dim"), row["text"], overflow="fold")
