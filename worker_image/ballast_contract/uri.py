# SPDX-License-Identifier: Apache-2.0
"""The spelling of a source's uri: `file:///abs/path` or `pvc://claim/sub/path`. What is there is not looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ballast_contract.validation import short

MAX_URI: Final = 2048
"""Characters of a uri."""

SCHEMES: Final = ("file", "pvc")


class UriError(ValueError):
    """A uri of another form; the message names it and the rule."""


@dataclass(frozen=True, slots=True)
class Uri:
    """A uri in its parts.

    Attributes:
        scheme: one of `SCHEMES`.
        store: the claim of a pvc uri; empty for a file.
        parts: of the path, from the root or from the store; none is empty, '.' or '..'.
    """

    scheme: str
    store: str
    parts: tuple[str, ...]


def parse(uri: str) -> Uri:
    """Read a uri. It is taken literally: there is no percent-decoding.

    Raises:
        UriError: it is longer than `MAX_URI`, not of these forms, or has empty parts, `.`, `..`, backslashes or characters
            that cannot be printed.
    """
    if len(uri) > MAX_URI:
        raise UriError(f"source.uri has {len(uri)} characters; at most {MAX_URI} are read")
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme not in SCHEMES:
        raise _invalid(uri, "starts with file:/// or pvc://<claim>/")
    if "\\" in uri or not uri.isprintable() or any(character in uri for character in "?#"):
        raise _invalid(uri, "has no backslashes, '?', '#' or characters that cannot be printed")
    store, slash, path = rest.partition("/")
    parts = tuple(path.split("/"))
    if not slash or any(part in {"", ".", ".."} for part in parts):
        raise _invalid(uri, "has a path whose parts are neither empty nor '.' nor '..', without a slash at its end")
    if scheme == "file" and store:
        raise _invalid(uri, f"has three slashes after file:, as in file:///{store}/{path}; other hosts are not reached")
    return Uri(scheme, store, parts)


def _invalid(uri: str, rule: str) -> UriError:
    return UriError(f"source.uri {short(uri)}: a uri {rule}")
