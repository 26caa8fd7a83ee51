# SPDX-License-Identifier: Apache-2.0
"""Where a source's uri points to: `file:///abs/path` or `pvc://claim/sub/path`, never outside its store."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from ballast_contract.uri import UriError, parse
from ballast_contract.validation import short
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.faults import did_you_mean


def resolve_uri(uri: str, stores: Mapping[str, Path]) -> Path:
    """The directory that a source's uri names, all links resolved.

    Args:
        uri: `file:///abs/path`, or `pvc://claim/sub/path` for a path inside the store `claim`. Taken literally: there is
            no percent-decoding.
        stores: Where each model store is mounted, by claim name.

    Raises:
        BundleError: `SourceNotFound` when nothing is there or no such store is mounted; `BundleInvalid` when the uri is
            not of these forms, has empty parts, `.`, `..`, backslashes or characters that cannot be printed, or leads out
            of its store through a link.
    """
    try:
        parsed = parse(uri)
    except UriError as error:
        raise BundleError("BundleInvalid", str(error)) from error
    if parsed.scheme == "file":
        return _real(uri, Path("/", *parsed.parts))
    store = parsed.store
    if store not in stores:
        known = f"; {did_you_mean(store, stores)}" if stores else "; no model store is mounted"
        raise BundleError(
            "SourceNotFound",
            f"source.uri {short(uri)}: no model store {store!r} (spec.modelStores of the WeightBudget){known}",
        )
    root = _real(uri, stores[store])
    target = _real(uri, root.joinpath(*parsed.parts))
    if not target.is_relative_to(root):
        raise BundleError(
            "BundleInvalid",
            f"source.uri {short(uri)}: a uri stays inside its store, but a link in its path leads out of it",
        )
    return target


def _real(uri: str, path: Path) -> Path:
    try:
        return Path(os.path.realpath(path, strict=True))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise BundleError("BundleInvalid", f"source.uri {short(uri)}: {error.strerror}") from error
        raise BundleError("SourceNotFound", f"source.uri {short(uri)}: {path}: {error.strerror}") from error
