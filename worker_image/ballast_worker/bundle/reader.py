# SPDX-License-Identifier: Apache-2.0
"""Opening a bundle: manifest, function and headers are read and checked against each other, weights are not touched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ballast_contract.validation import nearest
from ballast_worker.bundle import safetensors
from ballast_worker.bundle.digests import bytes_digest
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.files import FileIdentity, open_directory, open_file, read_file
from ballast_worker.bundle.layout import Layout, pack
from ballast_worker.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, FunctionPart, Manifest, read_manifest
from ballast_worker.bundle.safetensors import Entry, SafetensorsHeader
from ballast_worker.bundle.uri import resolve_uri
from ballast_worker.bundle.weights import WeightsFile

__all__ = ["MAX_FUNCTION_BYTES", "Bundle", "open_bundle", "resolve_uri"]

MAX_FUNCTION_BYTES = 64 << 20
"""Bytes of the exported function. Without constants, thousands of layers stay far below it."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle. Holds no file descriptor and no weights; safe to share between threads.

    Attributes:
        path: The directory.
        manifest: Its manifest, checked.
        digest: `sha256:` and the SHA-256 of the bytes of `manifest.yaml`, which holds the digests of the other files.
        layout: Where each tensor lies in a region or extent, in argument order.
        entries: Where each tensor lies in the weights file, in argument order.
        weights_identity: The weights file as it was when the bundle was opened.
    """

    path: Path
    manifest: Manifest
    digest: str
    layout: Layout
    entries: tuple[Entry, ...]
    weights_identity: FileIdentity

    def function_bytes(self) -> bytes:
        """The bytes of the exported function, after their digest was verified.

        Raises:
            BundleError: `SourceNotFound` when the file is gone, `BundleInvalid` when its size or digest is not the
                manifest's.
        """
        with open_directory(str(self.path)) as directory:
            return _read_function(directory, self.manifest.function, shown=str(self.path))

    def open_weights(self) -> WeightsFile:
        """Open the weights for reading, as a context manager that closes the file.

        A file that replaced the one seen by `open_bundle` is accepted when its header is the same; the digest decides
        about the rest while it is read.

        Raises:
            BundleError: `SourceNotFound` when the file is gone, `SourceChanged` when its tensors are not those seen by
                `open_bundle`.
        """
        weights = self.manifest.weights
        with open_directory(str(self.path)) as directory:
            fd = open_file(directory, weights.file, shown=str(self.path))
        shown = f"{self.path}: {weights.file}"
        replaced = FileIdentity.of(fd) != self.weights_identity
        file = WeightsFile(fd, entries=self.entries, digest=weights.digest, shown=shown, replaced=replaced)
        if replaced:
            try:
                self._check_replacement(fd, shown)
            except BaseException:
                file.close()
                raise
        return file

    def _check_replacement(self, fd: int, shown: str) -> None:
        try:
            header = safetensors.read_header(fd, file=shown)
        except BundleError as error:
            raise BundleError("SourceChanged", f"{error} (replaced after the bundle was opened)") from error
        if tuple(header.entries.get(entry.spec.name) for entry in self.entries) != self.entries:
            raise BundleError(
                "SourceChanged", f"{shown} was replaced by one with other tensors after the bundle was opened"
            )


def open_bundle(path: str | os.PathLike[str], *, check_function: bool = False) -> Bundle:
    """Read and check the manifest, the digest of the function and the header of the weights of the bundle at `path`.

    Costs milliseconds whatever the weights' size, and never imports JAX unless `check_function` is asked for.

    Args:
        path: The bundle's directory.
        check_function: Also verify the exported function against manifest and weights
            (`ballast_worker.bundle.function.check_function`).

    Raises:
        BundleError: `SourceNotFound` when directory or a file is missing or may not be read; `BundleInvalid` when
            anything is wrong with what is there.
    """
    path = Path(path)
    with open_directory(str(path)) as directory:
        data = read_file(directory, MANIFEST_FILE, shown=str(path), limit=MAX_MANIFEST_BYTES)
        manifest = read_manifest(data, file=f"{path}: {MANIFEST_FILE}")
        _read_function(directory, manifest.function, shown=str(path))
        fd = open_file(directory, manifest.weights.file, shown=str(path))
    try:
        identity = FileIdentity.of(fd)
        shown = f"{path}: {manifest.weights.file}"
        if identity.size != manifest.weights.bytes:
            raise BundleError(
                "BundleInvalid",
                f"{shown} has {identity.size} bytes, the manifest says {manifest.weights.bytes}; "
                "copy the file again, or pack the bundle again",
            )
        entries = _in_argument_order(safetensors.read_header(fd, file=shown), manifest, shown)
    finally:
        os.close(fd)
    bundle = Bundle(path, manifest, bytes_digest(data), pack([entry.spec for entry in entries]), entries, identity)
    if check_function:
        from ballast_worker.bundle import function  # noqa: PLC0415 - imports JAX, which the serving process avoids here

        function.check_function(bundle)
    return bundle


def _read_function(directory: int, function: FunctionPart, *, shown: str) -> bytes:
    data = read_file(directory, function.file, shown=shown, limit=MAX_FUNCTION_BYTES)
    if len(data) != function.bytes:
        raise BundleError(
            "BundleInvalid",
            f"{shown}: {function.file} has {len(data)} bytes, the manifest says {function.bytes}; pack the bundle again",
        )
    if (digest := bytes_digest(data)) != function.digest:
        raise BundleError(
            "BundleInvalid",
            f"{shown}: {function.file} has digest {digest}, the manifest says {function.digest}; pack the bundle again",
        )
    return data


def _in_argument_order(header: SafetensorsHeader, manifest: Manifest, shown: str) -> tuple[Entry, ...]:
    entries = []
    for name in manifest.weights.tensors:
        if name not in header.entries:
            hint = nearest(name, header.entries)
            raise BundleError(
                "BundleInvalid",
                f"{shown} has no tensor {name!r}, which the manifest's weights.tensors names"
                + (f"; did you mean {hint!r}?" if hint else ""),
            )
        entries.append(header.entries[name])
    if extra := sorted(set(header.entries) - set(manifest.weights.tensors)):
        raise BundleError(
            "BundleInvalid",
            f"{shown} holds {len(extra)} tensors that the manifest's weights.tensors does not name, the first is {extra[0]!r}",
        )
    return tuple(entries)
