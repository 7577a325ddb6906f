"""Text with units to SI numbers and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs import units
from meshwright.specs.error import SpecError


@pytest.mark.parametrize(
    ("text", "value"),
    [("80GB", 80 * 10**9), ("1.5GiB", 1610612736), ("512", 512), ("4 kB", 4000), ("2K", 2000), (7, 7)],
)
def test_parse_bytes(text, value):
    assert units.parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("400Gb/s", 50e9), ("50GB/s", 50e9), ("200Gbps", 25e9), ("8bit/s", 1.0), (3e9, 3e9)],
)
def test_parse_bandwidth_tells_bits_from_bytes(text, value):
    assert units.parse_bandwidth(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("1.2ms", 1.2e-3), ("5us", 5e-6), ("2min", 120.0), ("3", 3.0), (0.5, 0.5)]
)
def test_parse_seconds(text, value):
    assert units.parse_seconds(text) == value


@pytest.mark.parametrize(("text", "value"), [("989TFLOP/s", 989e12), ("312T", 312e12), ("1e12", 1e12)])
def test_parse_flops(text, value):
    assert units.parse_flops_per_s(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("2T", 2 * 10**12), ("500B", 500 * 10**9), ("1.5e9", 1_500_000_000), ("40M", 40_000_000), (7.0, 7)],
)
def test_parse_count_reads_billions_as_tokens_are_counted(text, value):
    assert units.parse_count(text) == value


@pytest.mark.parametrize(("text", "value"), [("700W", 700.0), ("0.7kW", 700.0), ("350", 350.0), (1, 1.0)])
def test_parse_watts(text, value):
    assert units.parse_watts(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_count, "2TB"),
        (units.parse_count, "-1B"),
        (units.parse_watts, "700V"),
        (units.parse_watts, "-1"),
        (units.parse_bytes, "80Gb"),
        (units.parse_bytes, "many"),
        (units.parse_bytes, "-1GB"),
        (units.parse_bytes, float("nan")),
        (units.parse_bandwidth, "400Gb"),
        (units.parse_bandwidth, "400"),
        (units.parse_seconds, "1.2 fortnights"),
        (units.parse_seconds, "1e999s"),
        (units.parse_flops_per_s, "fast"),
    ],
)
def test_nonsense_is_refused_with_what_is_allowed(parse, text):
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert caught.value.allowed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0012, "1.2 ms"),
        (5e-6, "5 us"),
        (3.2e-9, "3.2 ns"),
        (0, "0 s"),
        (59.9, "59.9 s"),
        (60.4, "60.4 s"),
        (90, "90 s"),
        (99.96, "1 min 40 s"),
        (150, "2 min 30 s"),
        (3599.9, "1 h"),
        (5400, "1 h 30 min"),
        (200_000, "2 d 8 h"),
        (-150, "-2 min 30 s"),
    ],
)
def test_format_seconds(seconds, text):
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("chance", "text"),
    [
        (0, "0 %"),
        (1e-9, "0.1 %"),
        (0.004, "0.4 %"),
        (0.16, "16 %"),
        (0.989, "99 %"),
        (0.9996, "99.9 %"),
        (1 - 1e-9, "99.9 %"),
        (1, "100 %"),
    ],
)
def test_what_may_be_otherwise_is_never_said_to_be_certain(chance, text):
    assert units.format_chance(chance) == text


def test_one_of_a_thing_is_not_several():
    assert units.counted(1, "candidate") == "1 candidate"
    assert units.counted(0, "plan") == "0 plans" and units.counted(1234, "plan") == "1,234 plans"


def test_format_with_prefixes():
    assert units.format_bytes(80e9) == "80 GB"
    assert units.format_bytes(999_999) == "1 MB"
    assert units.format_bandwidth(1.25e9) == "1.25 GB/s"
    assert units.format_flops_per_s(989.4e12) == "989 TFLOP/s"
    assert units.format_count(8030261248) == "8.03 G" and units.format_count(42) == "42"


@given(st.floats(min_value=1e-3, max_value=1e17))
def test_formatted_bytes_parse_back_within_three_digits(value):
    parsed = units.parse_flops_per_s(units.format_flops_per_s(value).replace(" ", ""))
    assert parsed == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(("text", "number"), [("512", 512), ("1e3", 1000), ("4M", 4_000_000), ("1.5k", 1500)])
def test_whole_numbers(text, number):
    assert units.parse_whole(text) == number


@pytest.mark.parametrize("text", ["0", "1.5", "-3", "8kB", "1e999999999", "", "k"])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises(SpecError):
        units.parse_whole(text)


@pytest.mark.parametrize(
    "parse", [units.parse_bytes, units.parse_bandwidth, units.parse_seconds, units.parse_count]
)
def test_exponents_are_not_worked_out(parse):
    unit = {units.parse_bytes: "GB", units.parse_bandwidth: "GB/s", units.parse_seconds: "s"}.get(parse, "")
    with pytest.raises(SpecError):
        parse("1e999999999" + unit)
    assert parse("1e-999999999" + unit) == 0


def test_a_sequence_of_8k_has_8192_tokens():
    assert units.parse_sequence("8k") == units.parse_sequence("8192") == 8192
    assert units.parse_sequence("128K") == 131072 and units.parse_sequence(77) == 77


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        ("15.6 s", "19.5 s", "15.6 - 19.5 s"),
        ("69.2 s", "2 min 30 s", "69.2 s - 2 min 30 s"),
        ("2 min 17 s", "5 min 8 s", "2 min 17 s - 5 min 8 s"),
        ("900 ms", "1.1 s", "900 ms - 1.1 s"),
    ],
)
def test_a_range_says_a_unit_once_where_both_ends_have_that_one_alone(low, high, text):
    assert units.interval_text(low, high) == text
