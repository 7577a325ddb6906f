"""`serve`, `bench serve`, `generate` and `LLM` on one model: they say the same, and a server ends as it is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import numpy as np
import openai
import pytest
from tests.cli.running import SOURCE, Runner
from tests.executor.serving.paged_case import FAMILIES, their_model
from tests.serving.told_engine import ToldEngine

import meshwright as mw
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.loop.clock import VirtualClock
from meshwright.serving.loop.run_record import RunRecord, replay
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.specs.routing.expert_placement import ExpertPlacement
from meshwright.specs.routing.routing_file import save_routing
from meshwright.specs.routing.routing_trace import RoutingTrace

SMALL = ("--engine", "torch", "--dtype", "float32", "--blocks", "64", "--threads", "1", "--device", "cpu")
BENCH = ("bench", "serve", "--url", "http://a", "--requests", "a.csv")
PROMPTS = ["Once upon", "In the beginning"]


@pytest.fixture(scope="module")
def server(
    bytes_model: Path, adapters: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    config = tmp_path_factory.mktemp("config") / "serve.toml"
    config.write_text(
        'port = 1\nserved-name = "tiny"\nmax_queue = 40\n'
        f'adapter = ["first={adapters[0]}/tuned"]\nadapters-folder = "{adapters[0]}"\n'
        f'record = "{bytes_model.parent}/record.jsonl"\n'
    )
    command = [sys.executable, "-m", "meshwright", "serve", str(bytes_model), *SMALL, "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, "--config", str(config)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    url = next((line.split()[2] for line in lines if line.startswith("serving on ")), "")
    assert url, "the server ended before it served"
    yield process, url.removesuffix("/v1")
    if process.poll() is None:
        process.kill()
    process.wait(30)


def assert_record_is_decided_again(file: Path, num_blocks: int) -> None:
    """What the server wrote down, by its usual policy, on an engine that only counts."""
    recorded = RunRecord.read(file)
    assert len(recorded.requests) == 2 + 8 + 3 * 2
    pool = BlockPool(num_blocks, 16)
    scheduler = Scheduler(ContinuousBatching(), pool, Limits(max_model_tokens=64))
    again = replay(recorded, scheduler, ToldEngine(scheduler, repeats=False, depth=2), VirtualClock())
    assert [step.decision for step in again.steps] == [step.decision for step in recorded.steps]


def test_adapters_say_what_the_model_says_with_them_in_its_matrices(
    server: tuple[subprocess.Popen[str], str], adapters: tuple[Path, Path]
) -> None:
    url = server[1]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    client.post("/load_lora_adapter", cast_to=str, body={"lora_name": "second", "lora_path": "tuned"})
    assert [model.id for model in client.models.list()] == ["tiny", "first", "second"]
    done = {
        name: [
            choice.text
            for choice in client.completions.create(
                model=name, prompt=PROMPTS, max_tokens=12, temperature=0
            ).choices
        ]
        for name in ("tiny", "first", "second")
    }
    client.post("/unload_lora_adapter", cast_to=str, body={"lora_name": "second"})
    with mw.LLM(
        adapters[1], engine="torch", dtype="float32", num_blocks=64, num_threads=1, device="cpu"
    ) as model:
        here = [each.text for each in model.generate(PROMPTS, max_tokens=12, temperature=0.0)]
    assert done["first"] == done["second"] == here and done["tiny"] != here


def test_a_server_says_what_the_model_says_here_and_ends_when_told(
    server: tuple[subprocess.Popen[str], str], bytes_model: Path, run: Runner, tmp_path: Path
) -> None:
    process, url = server
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    done = client.completions.create(
        model="tiny", prompt=PROMPTS, max_tokens=12, temperature=0, extra_body={"return_token_ids": True}
    )
    assert [model.id for model in client.models.list()] == ["tiny", "first"]
    with mw.LLM(
        bytes_model, engine="torch", dtype="float32", num_blocks=64, num_threads=1, device="cpu"
    ) as model:
        here = model.generate(PROMPTS, max_tokens=12, temperature=0.0)
        again = model.generate([1, 2, 3], max_tokens=2, temperature=0.0)
    assert [choice.text for choice in done.choices] == [each.text for each in here]
    assert [(choice.model_extra or {})["token_ids"] for choice in done.choices] == [
        list(each.token_ids) for each in here
    ]
    assert len(again) == 1 and again[0].num_prompt_tokens == 3

    requests = tmp_path / "requests.csv"
    requests.write_text(
        "arrived_at_s,prompt_tokens,output_tokens\n"
        + "".join(f"{n / 50},{5 + n},{n + 2}\n" for n in range(8))
    )
    ran = run(
        "bench",
        "serve",
        "--url",
        url,
        "--requests",
        requests,
        "--vocabulary",
        250,
        "--slo",
        "ttft=60s",
        "--json",
        "-q",
    )
    assert ran.code == 0, ran.stderr
    assert (ran.data["num_requests"], ran.data["num_finished"]) == (8, 8) and ran.data["errors"] == {}
    assert ran.data["output_tokens_per_s"] > 0 and ran.data["goodput_per_s"] > 0
    assert {"p50", "p90", "p99"} <= set(ran.data["ttft_s"]) and ran.data["tpot_s"]["p50"] > 0

    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0 and process.stdout is not None
    told = json.loads(process.stdout.read())
    assert told["num_requests"] == 2 + 8 + 3 * 2 and told["num_open"] == 0
    assert_record_is_decided_again(bytes_model.parent / "record.jsonl", 64)


@pytest.mark.slow
def test_replicas_of_a_model_answer_behind_one_address(
    bytes_model: Path, run: Runner, tmp_path: Path
) -> None:
    """A load goes through, one replica is killed in it, and the end is that of one server: all figures, no process left."""
    command = [sys.executable, "-m", "meshwright", "serve", str(bytes_model), *SMALL, "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, "--replicas", "2", "--router", "prefix_aware"], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert process.stderr is not None and process.stdout is not None
    lines = iter(process.stderr.readline, "")
    url = next((line.split()[2] for line in lines if line.startswith("serving on ")), "").removesuffix("/v1")
    assert url, "the server ended before it served"
    try:
        children = [
            int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ]
        requests = tmp_path / "requests.csv"
        rows = "".join(f"{n / 20},{5 + n % 20},{n % 9 + 2}\n" for n in range(60))
        requests.write_text("arrived_at_s,prompt_tokens,output_tokens\n" + rows)
        killing = threading.Timer(1.0, lambda: os.kill(children[0], signal.SIGKILL))
        killing.start()
        ran = run("bench", "serve", "--url", url, "--requests", requests, "--vocabulary", 250, "--json", "-q")
        killing.join()
        lost = sum(ran.data["errors"].values())
        assert ran.code == 0 and ran.data["num_finished"] + lost == 60 and lost <= 3, ran.data["errors"]
        assert all("replica that computed" in reason for reason in ran.data["errors"])
        wait_until = time.monotonic() + 60
        while sum(each["status"] == "ready" for each in httpx.get(f"{url}/ready").json()["replicas"]) < 2:
            assert time.monotonic() < wait_until
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        told = json.loads(process.stdout.read())
        assert told["num_requests"] > 0 and told["num_open"] == 0
    finally:
        process.kill()
        process.wait(10)
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_generate_answers_prompts_and_batches(run: Runner, bytes_model: Path, tmp_path: Path) -> None:
    ran = run(
        "generate", bytes_model, *SMALL, "-p", PROMPTS[0], "-p", PROMPTS[1], "--max-tokens", 5, "--json", "-q"
    )
    assert ran.code == 0, ran.stderr
    assert [row["prompt"] for row in ran.data["outputs"]] == PROMPTS
    assert all(1 <= len(row["token_ids"]) <= 5 for row in ran.data["outputs"])
    batch, answers = tmp_path / "batch.jsonl", tmp_path / "answers.jsonl"
    body = {"model": "bytes", "prompt": PROMPTS[0], "max_tokens": 5, "temperature": 0}
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body},
        {"custom_id": "b", "url": "/v1/completions", "body": {**body, "max_tokens": -1}},
        {"custom_id": "c", "url": "/v1/nothing", "body": body},
        {"custom_id": "d", "url": "/v1/completions", "body": {**body, "model": "other"}},
    ]
    batch.write_text("\n".join(map(json.dumps, lines)))
    ran = run("generate", bytes_model, *SMALL, "--batch", batch, "-o", answers)
    assert ran.code == 0 and "1 of 4 lines answered" in ran.stdout, ran.stderr
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [line["custom_id"] for line in found] == ["a", "b", "c", "d"]
    assert [line["response"]["status_code"] for line in found] == [200, 400, 404, 404]
    assert found[0]["response"]["body"]["choices"][0]["text"] is not None
    assert "max_tokens" in found[1]["response"]["body"]["error"]["message"]


@pytest.fixture(scope="module")
def experts_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six experts in each of two layers, of which a token goes to two."""
    folder = tmp_path_factory.mktemp("models") / "experts"
    their_model({**FAMILIES["qwen3_moe"], "vocab_size": 256}, folder)
    return folder


def test_experts_stand_where_a_file_says(run: Runner, experts_model: Path, tmp_path: Path) -> None:
    """By `place`, with copies, on two processes: the answers of one, and a report of every expert's rows and device's."""
    placed, chosen = tmp_path / "own.experts.json", np.array([[[5, 0], [0, 1]], [[5, 2], [0, 2]]] * 30)
    save_routing(RoutingTrace(chosen, 6, (0, 1)), tmp_path / "routes.npz")
    by = "eplb(copies=2)"
    ran = run("place", tmp_path / "routes.npz", "--devices", 2, "--by", by, "-o", placed, "-q")
    assert ran.code == 0 and ExpertPlacement.load(placed).has_copies, ran.stderr
    asked = ("generate", experts_model, *SMALL, "-p", PROMPTS[0], "-p", PROMPTS[1], "--max-tokens", 6, "-q")
    divided = ("--tp", 2, "--ep", 2, "--expert-placement", placed)
    one, many = run(*asked, "--json"), run(*asked, "--json", *divided)
    assert one.code == many.code == 0, many.stderr
    assert many.data["outputs"] == one.data["outputs"]
    ours, theirs = many.data["experts"], one.data["experts"]
    assert ours["rows_by_expert"] == theirs["rows_by_expert"] and ours["layers"] == [0, 1]
    rows = ours["rows_by_device"]
    assert [len(each) for each in rows] == [2, 2] and [len(each) for each in theirs["rows_by_device"]] == [
        1,
        1,
    ]
    assert [sum(each) for each in rows] == [sum(each) for each in theirs["rows_by_expert"]]
    tokens = sum(map(len, PROMPTS)) + sum(len(each["token_ids"]) for each in one.data["outputs"])
    assert all(2 * (tokens - 2) <= sum(each) <= 2 * tokens for each in rows), (
        "the last token is computed by nobody"
    )
    mean = sum(max(each) * 2 / sum(each) for each in rows) / 2
    assert ours["busiest_device"] == pytest.approx(mean) and ours["busiest_expert"] > 1


@pytest.mark.parametrize("decoder", ["ngram(tokens=3)", "draft(model={model!r}, tokens=3)"])
def test_a_decoder_changes_no_answer(run: Runner, bytes_model: Path, decoder: str) -> None:
    """Greedy ones; the model is its own draft."""
    asked = (
        "generate",
        bytes_model,
        *SMALL,
        "-p",
        PROMPTS[0],
        "-p",
        PROMPTS[1],
        "--max-tokens",
        12,
        "--json",
        "-q",
    )
    plain, proposed = run(*asked), run(*asked, "--decoder", decoder.format(model=str(bytes_model)))
    assert plain.code == proposed.code == 0, proposed.stderr
    assert proposed.data["outputs"] == plain.data["outputs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "nothing", "-p", "a", "--decoder", "medusa"), "medusa"),
        (("serve", "nothing", "--engine", "simulated", "--cluster", "8xH100", "--decoder", "ngram"), "--decoder ngram"),
        (("serve", "nothing"), "no folder of a model"),
        (("serve", "a/model.gguf"), "convert_hf_to_gguf.py"),
        (("serve", "nothing", "--engine", "torc"), "torch"),
        (("serve", "nothing", "--engine", "simulated"), "both or none"),
        (("serve", "nothing", "--engine", "torch", "--cluster", "8xH100"), "both or none"),
        (("generate", "llama-3.1-8b", "-p", "a", "--engine", "simulated", "--cluster", "1xH100"), "tokens are drawn"),
        (("serve", "nothing", "--port", "70000"), "70000"),
        (("serve", "nothing", "--tp", "2", "--ep", "4"), "--ep 4 with --tp 2"),
        (("generate", "nothing", "-p", "a", "--expert-placement", "a.json"), "--ep 1"),
        (
            (
                "serve", "mixtral-8x7b", "--engine", "simulated", "--cluster", "1x8xH100", "--tp", "8", "--ep", "8",
                "--expert-placement", "a.json",
            ),
            "--expert-placement with --engine simulated",
        ),
        (("serve", "nothing", "--ssl-certfile", "a.pem"), "without its key"),
        (("serve", "nothing", "--adapter", "mine"), "NAME=FOLDER"),
        (("serve", "nothing", "--adapter", "mine=none"), "none is no folder"),
        (("serve", "nothing", "--adapters-folder", "none"), "none is no folder"),
        (("serve", "nothing", "--router", "round_robin"), "with one replica"),
        (("serve", "nothing", "--replicas", "2", "--router", "robin"), "round_robin"),
        (("serve", "nothing", "--replicas", "2"), "no folder of a model"),
        (("serve", "nothing", "--config", "none.toml"), "none.toml cannot be read"),
        (("generate", "nothing"), "neither prompts nor a batch"),
        (("generate", "nothing", "--prompt", "a"), "no folder of a model"),
        (("bench", "serve", "--url", "here", "--requests", "none.csv"), "URL"),
        (("bench", "serve", "--url", "http://127.0.0.1:9", "--requests", "none.csv"), "cannot be read"),
        (("bench", "serve", "--url", "http://127.0.0.1:9"), "--requests"),
        ((*BENCH, "--slo", "tft=1s"), "ttft"),
        ((*BENCH, "--fix", "tp=2"), "--against CLUSTER"),
        ((*BENCH, "--rate-factor", "2", "--clients", "2"), "clients, or times"),
        (("bench", "serv"), "serve"),
    ],
)  # fmt: skip
def test_mistakes_are_told(
    run: Runner, arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*arguments)
    assert ran.code == 2 and words in ran.stderr.replace("\n", " "), ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_config_file_with_a_name_that_is_none_is_refused(run: Runner, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("prt = 8001\n")
    ran = run("serve", "nothing", f"--config={config}")
    assert ran.code == 2 and "port" in ran.stderr


@pytest.mark.slow
def test_a_checkpoint_of_a_training_is_served_as_it_is(run: Runner, tmp_path: Path) -> None:
    """Trained here on bytes, without a config.json or a tokenizer's file."""
    plan = mw.Plan.of(
        mw.ModelSpec.decoder(2, 32, 2, vocabulary_size=256, max_sequence_length=64), mw.Cluster.detect(1),
        mw.Workload(4, 32),
    )  # fmt: skip
    mw.train(plan, iterations=2, checkpoints=mw.Checkpoints(str(tmp_path / "runs")))
    with mw.LLM(tmp_path / "runs", num_blocks=32, device="cpu") as model:
        said = model.generate("Once", max_tokens=6, temperature=0.0, ignore_eos=True)
    assert len(said[0].token_ids) == 6 and said[0].finish_reason == "length"


@pytest.mark.slow
def test_a_simulated_engine_serves_clients_at_the_pace_of_a_cluster(run: Runner, tmp_path: Path) -> None:
    """A load on it takes as long as the plan for the same cluster says, in so far as this host keeps up."""
    ran = run("serve", "llama-3.1-70b", "--engine", "simulated", "--cluster", "1xH100")
    assert ran.code == 3 and "before the first block" in ran.stderr.replace("\n", " ")
    requests = tmp_path / "requests.csv"
    requests.write_text(
        "arrived_at_s,prompt_tokens,output_tokens\n"
        + "".join(f"{n / 20},{100 + n},{20 + n}\n" for n in range(20))
    )
    command = ["serve", "llama-3.1-70b", "--engine", "simulated", "--cluster", "1x2xH100", "--tp", "2"]
    command += [
        "--port",
        "0",
        "--json",
        "--max-model-tokens",
        "1024",
        "--max-batch-tokens",
        "256",
        "--max-sequences",
        "32",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "meshwright", *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        url = next((line.split()[2] for line in lines if line.startswith("serving on ")), "")
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        chat = client.chat.completions.create(
            model="llama-3.1-70b",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=7,
            extra_body={"ignore_eos": True},
        )
        assert chat.usage is not None and chat.usage.completion_tokens == 7
        with pytest.raises(openai.BadRequestError, match="grammar"):
            client.completions.create(
                model="llama-3.1-70b", prompt="a", extra_body={"response_format": {"type": "json_object"}}
            )
        url = url.removesuffix("/v1")
        fixed = "tp=2,replicas=1,max_batch_tokens=256,max_sequences=32"
        beside = (
            "--against",
            "1x2xH100",
            "--fix",
            fixed,
            "--report",
            tmp_path / "page.html",
        )  # the server names its model
        sent = ("bench", "serve", "--url", url, "--requests", requests, "-o", tmp_path / "measured.json")
        measured = run(*sent, *beside, "--json", "-q").data
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    planned = run(
        "plan", "llama-3.1-70b", "1x2xH100", "--requests", requests, "--fix", fixed, "--json", "-q",
        "-o", tmp_path / "plan.json",
    )  # fmt: skip
    layout = planned.data["layouts"][0]
    assert measured["num_finished"] == layout["num_finished"] == 20
    assert layout["tpot_s"]["p50"] * 0.9 < measured["tpot_s"]["p50"] < layout["tpot_s"]["p50"] * 1.5
    assert measured["e2e_s"]["p50"] > layout["e2e_s"]["p50"] * 0.9
    page = (tmp_path / "page.html").read_text()
    assert (
        "How long requests took" in page
        and "Simulated and measured" in page
        and "&quot;p50&quot;" not in page
    )
    found = measured["comparison"]
    assert measured["simulated"]["tpot_s"] == layout["tpot_s"] and found["has_kept_up"]
    assert found["step_factor"] == pytest.approx(measured["tpot_s"]["p50"] / layout["tpot_s"]["p50"])
    compared = run("compare", tmp_path / "plan.json", tmp_path / "measured.json", "--json", "-q")
    assert compared.code == 0 and compared.data["figures"] == found["figures"], compared.stderr
    swapped = run("compare", tmp_path / "measured.json", tmp_path / "plan.json")
    assert swapped.code == 2 and "has no layouts" in swapped.stderr
