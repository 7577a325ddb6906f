"""Files of requests become requests, and what is none is refused by file, line and column."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from meshwright.serving.request.request_file import read_requests
from meshwright.specs.error import SpecError

AZURE = "arrived_at_s,prompt_tokens,output_tokens\n2.5,4,3\n1.5,7,2\n"


def written(folder: Path, name: str, text: str) -> Path:
    """A file with that text."""
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def test_a_table_is_read_by_arrival_from_zero(tmp_path: Path) -> None:
    """Rows out of order are put in order; a recorded request knows how long its output was."""
    requests = read_requests(written(tmp_path, "a.csv", AZURE))
    assert [(r.arrival_s, r.num_prompt_tokens, r.num_output_tokens, r.id) for r in requests] == [
        (0.0, 7, 2, "2"),
        (1.0, 4, 3, "1"),
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,4,3\n2023-11-16 18:15:47.18,7,2\n"),
        ("apex.csv", "arrival_s,prompt_tokens,output_tokens\n1,4,3\n1.5,7,2\n"),
        ("vidur.csv.gz", "arrived_at,num_prefill_tokens,num_decode_tokens\n1,4,3\n1.5,7,2\n"),
        ("mooncake.jsonl", '{"timestamp": 0, "input_length": 4, "output_length": 3}\n\n'
         '{"timestamp": 500, "input_length": 7, "output_length": 2}\n'),
        ("prompts.jsonl.gz", '{"prompt": [1,2,3,4], "output_tokens": 3}\n'
         '{"prompt": "seven77", "output_tokens": 2, "arrival_s": 0.5}\n'),
    ],
)  # fmt: skip
def test_forms_that_say_the_same_give_the_same(tmp_path: Path, name: str, text: str) -> None:
    """Column names of the public traces, recorded lines and prompts."""
    requests = read_requests(written(tmp_path, name, text), encode=lambda words: [*words.encode()])
    assert [(r.arrival_s, r.num_prompt_tokens, r.max_output_tokens) for r in requests] == [
        (0.0, 4, 3),
        (0.5, 7, 2),
    ]


def test_hashes_become_keys_of_full_blocks(tmp_path: Path) -> None:
    """1,100 tokens are 4 full blocks of 256: two of each 512-token hash; what is shared has the same keys."""
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [5, 9, 2]},
        {"timestamp": 1, "input_length": 1024, "output_length": 1, "hash_ids": [5, 7]},
    ]
    path = written(tmp_path, "m.jsonl", "\n".join(map(json.dumps, rows)))
    first, second = (request.block_keys for request in read_requests(path, block_tokens=256))
    assert len(first) == len(second) == 4 and len({*first, *second}) == 6
    assert first[:2] == second[:2]
    with pytest.raises(SpecError, match="blocks of 48"):
        read_requests(path, block_tokens=48)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", AZURE.replace("4,3", "x,3"), "a.csv, line 2, column 'prompt_tokens': 'x'"),
        ("a.csv", AZURE.replace("7,2", "7"), "a.csv, line 3, column 'output_tokens': nothing"),
        ("a.csv", AZURE.replace("4,3", "4,0"), "a.csv, line 2, column 'output_tokens': '0'"),
        ("a.csv", AZURE.replace("2.5", "nan"), "a.csv, line 2, column 'arrived_at_s': 'nan'"),
        ("a.csv", "arrival_s,output_tokens\n1,2\n", "no column says the prompt's tokens"),
        ("a.csv", "prompt_tokens,output_tokens\n", "has no request"),
        ("a.txt", AZURE, "requests in a.txt"),
        ("a.jsonl", "{}\n{", "line 1, column 'input_length': nothing"),
        ("a.jsonl", '{"prompt": "words"}', "no tokenizer"),
        ("a.jsonl", '{"prompt": [1.5]}', "line 1, column 'prompt'"),
        ("a.jsonl", '{"prompt": [1], "arrival_s": -1}', "line 1, column 'arrival_s': -1"),
        ("a.jsonl", "[1]", "line 1: list"),
        ("a.jsonl.gz", "", "has no request"),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_by_its_place(tmp_path: Path, name: str, text: str, said: str) -> None:
    """File, line and column; never a traceback of somebody else's reader."""
    with pytest.raises(SpecError) as refused:
        read_requests(written(tmp_path, name, text))
    assert said in str(refused.value)


def test_a_broken_archive_and_an_absent_file_are_refused(tmp_path: Path) -> None:
    """As a file that cannot be read."""
    whole = written(tmp_path, "a.csv.gz", AZURE).read_bytes()
    (tmp_path / "half.csv.gz").write_bytes(whole[:-10])
    for name in ("half.csv.gz", "none.csv"):
        with pytest.raises(SpecError, match="cannot be read"):
            read_requests(tmp_path / name)


def test_every_public_trace_is_read(shared_data: Path) -> None:
    """All files of the folder; the first is enough of each, the Azure conversations are whole."""
    folder = shared_data / "workloads" / "serving"
    files = sorted(folder.iterdir())
    assert len(files) >= 12
    for file in files:
        assert len(read_requests(file, first=300)) == 300
    assert len(read_requests(folder / "azure_llm_2023_conv.csv")) == 19366
