# SPDX-License-Identifier: Apache-2.0
"""The worker's certificate and the authorities that it trusts, as files that may be replaced at any time."""

from __future__ import annotations

import hashlib
import logging
import ssl
import threading
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

_FILES: Final = ("ca.crt", "tls.crt", "tls.key")


class Certificates:
    """Reads `ca.crt`, `tls.crt` and `tls.key` of a directory, again whenever they are asked for. Any thread may ask.

    What cannot be read or used is logged, and what was held before stays in force.

    Raises:
        OSError: they cannot be read or used at the start; the message names the directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._contents: tuple[bytes, ...] = ()
        self._complaint = ""
        try:
            self._load()
        except OSError as error:  # an unusable certificate is an ssl.SSLError, which is one
            raise OSError(
                f"control.tlsDirectory '{directory}': no usable ca.crt, tls.crt and tls.key: {error}"
            ) from error

    def context(self) -> ssl.SSLContext:
        """For the next connection: TLS 1.3 with a client certificate that one of the authorities has signed."""
        self._refresh()
        return self._context

    def authorities(self) -> str:
        """SHA-256 of the `ca.crt` in force, in hexadecimal digits."""
        self._refresh()
        return hashlib.sha256(self._contents[0]).hexdigest()

    def _refresh(self) -> None:
        try:
            self._load()
            self._complaint = ""
        except OSError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                _log.warning(
                    "the certificates in %s cannot be used, the ones before stay in force: %s",
                    self._directory,
                    error,
                    extra={"event": "control.certificates"},
                )

    def _load(self) -> None:
        # The kubelet swaps a link to a directory: the three files are read from one such directory, never from two.
        folder = (self._directory / _FILES[0]).resolve(strict=True).parent
        paths = [folder / name for name in _FILES]
        contents = tuple(path.read_bytes() for path in paths)
        with self._lock:
            if contents == self._contents:
                return
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.set_alpn_protocols(["h2"])
            context.load_cert_chain(paths[1], paths[2])
            context.load_verify_locations(cadata=contents[0].decode("ascii", errors="replace"))
            self._contents, self._context = contents, context
