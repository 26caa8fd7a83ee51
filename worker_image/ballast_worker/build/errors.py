# SPDX-License-Identifier: Apache-2.0
"""What the builder process refuses by itself; imports no JAX, so that it can be named before the environment is set."""

from __future__ import annotations

import errno
from pathlib import Path


class ProgramTooLargeError(Exception):
    """A compiled program needs more device memory than the builder may take; the message is complete."""


class StoreError(OSError):
    """The executable store cannot be written, whatever the bundle; the message is complete."""

    @classmethod
    def of(cls, root: Path, error: OSError) -> StoreError:
        """What kept the store in `root` from being written, and what to do."""
        what, remedy = error.strerror, "make room, or set executableStore to another place"
        if error.errno in (errno.EISDIR, errno.EEXIST, errno.ENOTDIR):
            what = f"{what}: {error.filename2 or error.filename}"
            remedy = "something else is in that place: remove it, or set executableStore to another place"
        return cls(f"the executable store '{root}' cannot be written: {what}; {remedy}")
