"""Units at the edges: text such as "400Gb/s", "80GB" or "1.2ms" to and from SI numbers.

Inside the package every number is SI: bytes, seconds, bytes per second, operations per second. A capital B
is a byte and a small b a bit; k, M, G, T, P, E are powers of 1000 and Ki, Mi, ... of 1024.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import NoReturn

from meshwright.specs.error import SpecError

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIX = {**_DECIMAL, **_BINARY}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
_PREFIXES = "|".join(sorted((re.escape(p) for p in _PREFIX if p), key=len, reverse=True))
_BYTES_PATTERN = re.compile(_NUMBER + rf"({_PREFIXES})?(B|b)?\s*$")
_RATE_PATTERN = re.compile(_NUMBER + rf"({_PREFIXES})?(B|b|bit)(?:/s|ps)\s*$")
_FLOPS_PATTERN = re.compile(_NUMBER + rf"({_PREFIXES})?(?:FLOP/s|FLOPS|flop/s|flops|FLOPs/s)?\s*$")
_SECONDS_PATTERN = re.compile(_NUMBER + r"(ns|us|µs|ms|min|s|h|d)?\s*$")
_COUNTS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_COUNT_PATTERN = re.compile(_NUMBER + r"(k|K|M|B|G|T)?\s*$")
_SEQUENCE_PATTERN = re.compile(r"\s*(\d{1,6})[kK]\s*$")
TOKENS_OF_K = 1024
MOST_WHOLE = 1e18
_WATTS_PATTERN = re.compile(_NUMBER + r"(m|k|M)?W?\s*$")
_WATTS = {"": Fraction(1), "m": Fraction(1, 10**3), "k": Fraction(10**3), "M": Fraction(10**6)}
BITS_PER_BYTE = 8
SIGNIFICANT_DIGITS = 3
MOST_SECONDS = 100  # from where on whole seconds, beside minutes, are as exact as three digits


def parse_bytes(text: str | float) -> int:
    """Bytes of "80GB", "1.5GiB", "512" or a number (already bytes). Raises SpecError."""
    if isinstance(text, (int, float)):
        return int(_finite(float(text), str(text)))
    found = _BYTES_PATTERN.match(text)
    if found is None or found[3] == "b":
        _refuse(text, "a size in bytes such as 80GB, 1.5GiB or 4096")
    return round(_finite(_scaled(found[1], Fraction(_PREFIX[found[2] or ""])), text))


def parse_bandwidth(text: str | float) -> float:
    """Bytes per second of "400Gb/s", "50GB/s", "200Gbps" or a number (already bytes/s). Raises SpecError."""
    if isinstance(text, (int, float)):
        return _finite(float(text), str(text))
    found = _RATE_PATTERN.match(text)
    if found is None:
        _refuse(text, "a bandwidth such as 400Gb/s (bits) or 50GB/s (bytes)")
    scale = Fraction(1, 1 if found[3] == "B" else BITS_PER_BYTE)
    return _finite(_scaled(found[1], _PREFIX[found[2] or ""] * scale), text)


def parse_seconds(text: str | float) -> float:
    """Seconds of "1.2ms", "5us", "2min" or a number (already seconds). Raises SpecError."""
    if isinstance(text, (int, float)):
        return _finite(float(text), str(text))
    found = _SECONDS_PATTERN.match(text)
    if found is None:
        _refuse(text, "a time such as 1.2ms, 5us, 3s or 2min")
    return _finite(_scaled(found[1], Fraction(str(_SECONDS[found[2] or "s"]))), text)


def parse_flops_per_s(text: str | float) -> float:
    """Floating-point operations per second of "989TFLOP/s", "312T" or a number. Raises SpecError."""
    if isinstance(text, (int, float)):
        return _finite(float(text), str(text))
    found = _FLOPS_PATTERN.match(text)
    if found is None:
        _refuse(text, "a rate of work such as 989TFLOP/s")
    return _finite(_scaled(found[1], Fraction(_PREFIX[found[2] or ""])), text)


def parse_count(text: str | float) -> int:
    """How many: "2T", "500B" (billions, as tokens are counted), "1.5e9" or a number. Raises SpecError."""
    if isinstance(text, (int, float)):
        return round(_finite(float(text), str(text)))
    found = _COUNT_PATTERN.match(text)
    if found is None:
        _refuse(text, "a count such as 2T, 500B (billions), 40M or 1000")
    return round(_finite(_scaled(found[1], Fraction(_COUNTS[found[2] or ""])), text))


def parse_whole(text: str | int) -> int:
    """A whole number from 1: "512", "1e3", "4M". Raises SpecError."""
    if isinstance(text, int):
        return text
    found = _COUNT_PATTERN.match(text)
    is_size = found is not None and float(found[1]) < MOST_WHOLE
    exact = _exact(found[1]) * _COUNTS[found[2] or ""] if found and is_size else Fraction(0)
    if exact < 1 or exact.denominator != 1:
        _refuse(text, "a whole number from 1, such as 512, 1e3 or 4M")
    return int(exact)


def parse_sequence(text: str | int) -> int:
    """Tokens of a sequence: "8192", or "8k", which are 8 times 1024, as the names of models say it. Raises SpecError."""
    found = _SEQUENCE_PATTERN.match(text) if isinstance(text, str) else None
    return parse_whole(int(found[1]) * TOKENS_OF_K if found else text)


def parse_watts(text: str | float) -> float:
    """Watts of "700W", "0.7kW", "700" or a number (already watts). Raises SpecError."""
    if isinstance(text, (int, float)):
        return _finite(float(text), str(text))
    found = _WATTS_PATTERN.match(text)
    if found is None:
        _refuse(text, "a power such as 700W or 0.7kW")
    return _finite(_scaled(found[1], _WATTS[found[2] or ""]), text)


def format_bytes(num_bytes: float) -> str:
    """Bytes for people, powers of 1000: 80e9 -> "80 GB"."""
    return _with_prefix(num_bytes, "B")


def format_bandwidth(bytes_per_s: float) -> str:
    """Bytes per second for people: 50e9 -> "50 GB/s"."""
    return _with_prefix(bytes_per_s, "B/s")


def format_flops(flops: float) -> str:
    """Work for people: 6e12 -> "6 TFLOP"."""
    return _with_prefix(flops, "FLOP")


def format_flops_per_s(flops_per_s: float) -> str:
    """Rate of work for people: 989e12 -> "989 TFLOP/s"."""
    return _with_prefix(flops_per_s, "FLOP/s")


def format_count(count: float) -> str:
    """A large count for people: 8030261248 -> "8.03 G"; below 10000 as it is."""
    if abs(count) < 10_000 and float(count).is_integer():
        return str(int(count))
    return _with_prefix(count, "").rstrip()


def format_chance(chance: float) -> str:
    """A probability for people; what may be otherwise is neither 0 nor 100 %: 0.9996 -> "99.9 %", 0.16 -> "16 %"."""
    tenths = 1000 * chance
    if 10 <= tenths <= 990 or chance in (0, 1):
        return f"{tenths / 10:.0f} %"
    return f"{(math.floor(tenths) if chance > 0.5 else math.ceil(tenths)) / 10:g} %"


def counted(number: int, what: str) -> str:
    """So many of something whose plural has an s: "1 plan", "1,234 plans"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def format_seconds(seconds: float) -> str:
    """Seconds for people: 0.0012 -> "1.2 ms", 90 -> "90 s", 150 -> "2 min 30 s", 5400 -> "1 h 30 min"."""
    size = abs(seconds)
    if not math.isfinite(seconds) or size == 0:
        return f"{seconds:g} s"
    if float(_digits(size)) >= MOST_SECONDS:
        return _long_time(seconds)
    for unit in ("s", "ms", "us"):
        if size >= _SECONDS[unit]:
            return f"{_digits(seconds / _SECONDS[unit])} {unit}"
    return f"{_digits(seconds / _SECONDS['ns'])} ns"


def _long_time(seconds: float) -> str:
    """A minute or more in its two largest units, rounded to the smaller one."""
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    large, small = "d", "h"
    for candidate, below, limit_s in (("min", "s", 3600.0), ("h", "min", 86400.0)):
        if round(size / _SECONDS[below]) * _SECONDS[below] < limit_s:
            large, small = candidate, below
            break
    first, rest = divmod(round(size / _SECONDS[small]) * _SECONDS[small], _SECONDS[large])
    tail = f" {round(rest / _SECONDS[small])} {small}" if rest else ""
    return f"{sign}{int(first)} {large}{tail}"


def _with_prefix(value: float, unit: str) -> str:
    """Value with the power of 1000 that leaves one to three digits before the point."""
    if not math.isfinite(value):
        return f"{value:g} {unit}"
    for prefix in ("E", "P", "T", "G", "M", "k"):
        if float(_digits(abs(value) / _DECIMAL[prefix])) >= 1:
            return f"{_digits(value / _DECIMAL[prefix])} {prefix}{unit}"
    return f"{_digits(value)} {unit}"


def _digits(value: float) -> str:
    """Three significant digits without an exponent and without trailing zeros."""
    if value == 0:
        return "0"
    places = max(0, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(number: str, scale: Fraction) -> float:
    """The float nearest to number * scale: "5us" is exactly the float 5e-06."""
    if not math.isfinite(float(number)):
        return math.inf
    try:
        return float(_exact(number) * scale)
    except OverflowError:
        return math.inf


def _exact(number: str) -> Fraction:
    """A number that a float can hold, exactly; an exponent of a billion digits is never worked out."""
    return Fraction(number) if float(number) else Fraction(0)


def _finite(value: float, text: str) -> float:
    if not math.isfinite(value) or value < 0:
        _refuse(text, "a finite number that is not negative")
    return value


def _refuse(text: str, allowed: str) -> NoReturn:
    raise SpecError(f"{text!r} cannot be read", allowed=allowed)


def interval_text(low: str, high: str) -> str:
    """Two quantities as one range; a unit that both have is written once, of two parts (2 min 30 s) each keeps its own."""
    (number, _, unit), (other, _, its) = low.partition(" "), high.partition(" ")
    return f"{number} - {other} {unit}" if unit == its else f"{low} - {high}"
