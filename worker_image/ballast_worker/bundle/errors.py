# SPDX-License-Identifier: Apache-2.0
"""The one exception that everything about bundles raises, with a reason from the closed list that users see."""

from __future__ import annotations

from typing import Literal

Reason = Literal["BundleInvalid", "SourceNotFound", "SourceChanged"]


class BundleError(Exception):
    """A bundle cannot be used, and why.

    The message is complete: it names the file, the field, the value, the limit and what to do, and can be shown to a
    user as it is.

    Attributes:
        reason: `BundleInvalid` (its bytes will never work: retrying is useless), `SourceNotFound` (there is nothing
            at that place: it may appear later) or `SourceChanged` (a file was changed while it was read: reading it
            again may work).
    """

    reason: Reason

    def __init__(self, reason: Reason, message: str) -> None:
        # Names of files need not be UTF-8; what is told over the wire has to be.
        super().__init__(message.encode(errors="backslashreplace").decode())
        self.reason = reason

    def __reduce__(self) -> tuple[type[BundleError], tuple[Reason, str]]:
        # Crosses process boundaries (builder to worker) with its reason.
        return type(self), (self.reason, str(self))


class MissingError(BundleError):
    """`SourceNotFound` where nothing is there, and not merely nothing that could be read."""
