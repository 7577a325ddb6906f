"""Prints the longest functions and files. Sizes are a spirit, not a limit: nothing here fails on them."""

from __future__ import annotations

import statistics

import pytest

from tests.design.source import functions, package_files

NUM_SHOWN = 5


def size_report() -> list[str]:
    """Lines of the report: medians, then the longest functions and the longest files, longest first."""
    files = package_files()
    spans = [
        (node.end_lineno - node.lineno + 1, f"{file.path}:{node.lineno} {node.name}")
        for file in files
        for node in functions(file)
        if node.end_lineno
    ]
    lengths = [(len(file.text.splitlines()), file.path) for file in files]
    short = sum(length < 35 for length, _ in spans) / max(1, len(spans))
    head = (
        f"{len(files)} files, {sum(length for length, _ in lengths)} lines; {len(spans)} functions, "
        f"median {statistics.median([length for length, _ in spans] or [0]):g} lines, {short:.0%} under 35"
    )
    longest = [
        f"  {length:5d}  {name}"
        for rows in (spans, lengths)
        for length, name in sorted(rows)[: -NUM_SHOWN - 1 : -1]
    ]
    return [head, *longest]


def test_sizes_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    report = size_report()
    with capsys.disabled():
        print("", *report, sep="\n")
    assert len(report) == 1 + min(NUM_SHOWN, len(package_files())) + min(
        NUM_SHOWN, sum(1 for file in package_files() for _ in functions(file))
    )
