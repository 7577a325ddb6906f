"""Keys without which nobody is served: from a file, or from the environment."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path

from meshwright.specs.error import SpecError

VARIABLE = "MESHWRIGHT_API_KEYS"  # keys with commas between them
SCHEME = b"bearer "


class ApiKeys:
    """Those that are served. None at all: everybody is."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def user_of(self, authorization: bytes) -> str | None:
        """A name for whoever sends this header ("" where no key is asked for); None: nobody who is served.

        It takes as long for a wrong key as for a right one: digests are compared whole, with all keys.
        """
        if not self._digests:
            return ""
        has_scheme = authorization[: len(SCHEME)].lower() == SCHEME
        given = _digest(authorization[len(SCHEME) :].strip() if has_scheme else b"")
        equal = [hmac.compare_digest(given, digest) for digest in self._digests]
        return f"key-{equal.index(True)}" if has_scheme and any(equal) else None


def keys_of(file: Path | None, environment: Mapping[str, str]) -> ApiKeys:
    """Keys of a file, one a line (# begins a remark), and of the environment. Raises SpecError where a file has none."""
    words = environment.get(VARIABLE, "").split(",")
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{file} cannot be read as a file of keys", allowed="one key a line") from error
        found = [line.partition("#")[0].strip() for line in lines]
        if not any(found):
            raise SpecError(f"{file} has no key", allowed="one key a line")
        words += found
    return ApiKeys(word.strip() for word in words if word.strip())


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
