"""Moves of the workbench in a real browser: from the event of a slider to the frame that shows its view.

Claims (the project's own targets), with `meshwright view` in a process of its own and a browser without a window: of 50 moves
over degrees, schedule and microbatches, for 64 devices and 64 microbatches at the level of stages with composed prices, the
95th percentile is under 150 ms; the page's first paint, on loopback, is under 1 s; the inside of a stage is drawn within 1 s
of the click on an instruction of it. A move is one event of one control. It ends with the frame after the one in which the
canvas was drawn for the answer. Between moves the batch is set so that each ends with 64 microbatches; moves that are refused
do not count. Wall-clock time: nothing else may run. Needs playwright and a Chromium on PATH; without them it says so and ends
with 0. Exit status 3 where a claim fails. Half a minute.

Run: OMP_NUM_THREADS=1 python benchmarks/view_moves_browser.py [--moves 50] [--seed 0] [--model llama-3.1-70b]
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headless_browser import NoBrowser, headless_browser

DEVICES, MICROBATCHES = 64, 64
PIPELINES, TENSORS = (2, 4, 8, 16), (1, 2, 4, 8)  # degrees; data parallelism takes the devices that are left
SCHEDULES = ("1f1b", "gpipe", "zb_h1", "zb_h2")
SEQUENCES = (1, 2)  # of a microbatch
MOVES = ("tp", "pp", "schedule", "micro")
SLIDERS = ("tp", "pp", "micro")
CLAIMED_MOVE_S, CLAIMED_PAINT_S, CLAIMED_INSIDE_S = 0.150, 1.0, 1.0
WARM = 8  # moves before any is counted
PATIENCE_S = 10.0
# Counts answers to whole views, so that a drawing is known to be of one.
COUNTING = """
window.answers = 0;
const asked = window.fetch;
window.fetch = async (path, options) => {
  const answer = await asked(path, options);
  const told = answer.json.bind(answer);
  answer.json = async () => {
    const found = await told();
    if (String(path) === "/api/view" && String(options.body).includes('"timeline"')) window.answers++;
    return found;
  };
  return answer;
};
"""
# One control to a value as by its own event; milliseconds until the frame behind the one that shows the answer, or -1.
MOVE = """async ([id, value, patience]) => {
  const control = document.getElementById(id), before = window.answers, begin = performance.now();
  control.value = value;
  control.dispatchEvent(new Event(control.tagName === "SELECT" ? "change" : "input", {bubbles: true}));
  const lanes = document.querySelector("canvas.lanes");
  const isShown = () => window.answers > before && !document.querySelector("nav [role=status]").innerText;
  return await new Promise((done) => {
    const over = (time) => { watching.disconnect(); clearTimeout(late); done(time); };
    const watching = new MutationObserver(() => {
      if (isShown()) requestAnimationFrame(() => over(performance.now() - begin));
    });
    const late = setTimeout(() => over(-1), patience);
    watching.observe(lanes, {attributes: true, attributeFilter: ["data-mode"]});
  });
}"""


@contextmanager
def served() -> Iterator[str]:
    """The address of a workbench in a process of its own."""
    command = [sys.executable, "-u", "-m", "meshwright", "view", "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = ""
        assert process.stdout is not None, "it is a pipe"
        while (found := re.search(r"http://[\d.:]+/", said)) is None:
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"the workbench did not start: {said}")
            said += line
        yield found.group()
    finally:
        process.terminate()
        process.wait()


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def moved(page: Any, word: str, value: int | str) -> float:
    """Seconds of one move; negative where its view never came. Sliders are over powers of two, and at the place of one."""
    place = str(value.bit_length() - 1) if word in SLIDERS and isinstance(value, int) else str(value)
    milliseconds: float = page.evaluate(MOVE, [f"w-{word}", place, 1e3 * PATIENCE_S])
    return milliseconds / 1e3


def moves(page: Any, count: int, seed: int) -> list[float]:
    """Seconds of so many moves that were not refused."""
    chance, seconds = random.Random(seed), list[float]()
    state: dict[str, Any] = {"tp": 8, "pp": 4, "schedule": "1f1b", "micro": 1}
    choices: dict[str, tuple[Any, ...]] = {
        "tp": TENSORS,
        "pp": PIPELINES,
        "schedule": SCHEDULES,
        "micro": SEQUENCES,
    }
    while len(seconds) < WARM + count:
        word = MOVES[len(seconds) % len(MOVES)]
        value = chance.choice([each for each in choices[word] if each != state[word]])
        after = {**state, word: value}
        replicas, rest = divmod(DEVICES, after["tp"] * after["pp"])
        if rest or not replicas:
            continue
        moved(page, "global-batch", MICROBATCHES * replicas * after["micro"])
        taken = moved(page, word, value)
        if taken < 0:
            raise SystemExit(f"{word} = {value} was not shown within {PATIENCE_S:g} s")
        state = after
        if not page.locator("[role=alert]").count():
            seconds.append(taken)
    return seconds[WARM:]


def inside(page: Any) -> float:
    """Seconds from the click on an instruction to the inside of its stage."""
    lanes = page.locator("canvas.lanes").first
    box = lanes.bounding_box()
    begin = time.perf_counter()
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 8)
    while page.locator("canvas.lanes[data-mode]").count() < 2:
        if time.perf_counter() - begin > PATIENCE_S:
            raise SystemExit("the inside of the stage was not shown")
        page.wait_for_timeout(5)
    return time.perf_counter() - begin


def measured(browser: Any, address: str, chosen: argparse.Namespace) -> tuple[float, list[float], float]:
    """Seconds of the first paint, of every move, and of the inside of a stage."""
    state = f"model={chosen.model}&cluster=8x8xH100&global-batch=128&seq=2048&tp=8&pp=4&zero=1"
    page = browser.new_page(viewport={"width": 1440, "height": 1000})
    page.add_init_script(COUNTING)
    page.goto(f"{address}#{state}")
    page.wait_for_selector("canvas.lanes[data-mode]")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1e3
    seconds = moves(page, chosen.moves, chosen.seed)
    page.goto(f"{address}?again#{state}")
    page.wait_for_selector("canvas.lanes[data-mode]")
    page.wait_for_timeout(1000)
    return paint, seconds, inside(page)


def main() -> int:
    """The claims beside their values."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moves", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="llama-3.1-70b")
    chosen = parser.parse_args()
    try:
        with headless_browser() as browser, served() as address:
            paint, seconds, segments = measured(browser, address, chosen)
    except NoBrowser as why:
        print(f"{why}; nothing was measured")
        return 0
    found = {
        "moves, 95th percentile": (p95(seconds), CLAIMED_MOVE_S),
        "first paint": (paint, CLAIMED_PAINT_S),
        "inside of a stage": (segments, CLAIMED_INSIDE_S),
    }
    print(
        f"{len(seconds)} moves: median {1e3 * statistics.median(seconds):.0f} ms, largest {1e3 * max(seconds):.0f} ms"
    )
    for name, (value, claimed) in found.items():
        print(f"{name:<24} {value:>8.3f} s   bound {claimed:g} s   ratio {claimed / value:.2f}")
    return 0 if all(value <= claimed for value, claimed in found.values()) else 3


if __name__ == "__main__":
    sys.exit(main())
