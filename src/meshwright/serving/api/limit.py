"""The most that one request may bring, and the longest that a client may take: what keeps one client from harming all."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.option import option

PANEL = "Limits"


@dataclass(frozen=True)
class ServerLimits:
    """Of a server. What is beyond one is refused with its value; how many tokens a prompt may have is up to the model."""

    body_bytes: int = option(
        8 << 20, "Bytes of a request's body.", "--max-body-bytes", panel=PANEL, least=1024
    )
    header_bytes: int = option(
        16 << 10, "Bytes of a request's headers.", "--max-header-bytes", panel=PANEL, least=1024
    )
    prompts: int = option(64, "Prompts of one request.", "--max-prompts", panel=PANEL, least=1)
    outputs: int = option(
        128, "Outputs of one request, over all its prompts.", "--max-outputs", panel=PANEL, least=1
    )
    stop_characters: int = option(
        256, "Characters of one stop text.", "--max-stop-characters", panel=PANEL, least=1
    )
    grammar_bytes: int = option(
        64 << 10, "Bytes of a JSON schema or grammar.", "--max-grammar-bytes", panel=PANEL, least=16
    )
    tools_bytes: int = option(
        256 << 10, "Bytes of all tools of a chat.", "--max-tools-bytes", panel=PANEL, least=16
    )
    timeout_s: float = option(
        3600.0,
        "Seconds after which a request is ended; one may ask for fewer.",
        "--timeout",
        panel=PANEL,
        above=0,
    )
    read_s: float = option(
        30.0,
        "Seconds that a client may take to send its headers, and then its body.",
        "--read-timeout",
        panel=PANEL,
        above=0,
    )
    write_s: float = option(
        60.0, "Seconds that a client may take to read a chunk.", "--write-timeout", panel=PANEL, above=0
    )
    drain_s: float = option(
        30.0,
        "Seconds in which running requests may end after SIGTERM.",
        "--drain-timeout",
        panel=PANEL,
        above=0,
    )


DEFAULT_LIMITS = ServerLimits()
