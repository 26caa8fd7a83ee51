# SPDX-License-Identifier: Apache-2.0
"""What an arena needs of a device: one block of memory, copies into it and inside it, and its place in JAX.

Addresses are known here and in `views.py` only. Offsets count from the start of the block.
"""

from __future__ import annotations

from typing import Any, Protocol


class DeviceError(Exception):
    """A call of the device's driver failed; the message names the call and its error."""


class DeviceLostError(DeviceError):
    """A sticky error: the device's context is lost and every later call fails. Only a new process helps."""


class DeviceUnavailableError(DeviceError):
    """The device cannot be used at all: no driver, no such device, or a library is not installed."""


class Upload(Protocol):
    """A run of copies from host to device, in order. One thread uses it."""

    def send(self, offset: int, data: memoryview, *, locked: bool) -> int:
        """Enqueue a copy of at most `Backend.piece_bytes` to `offset`; wait first while too many are in flight.

        Between two copies the device takes up copies of others, so that the inputs of a request do not wait for the run.

        Args:
            offset: in the block, in bytes.
            data: host bytes. If `locked` they must stay as they are until they have been seen to arrive; otherwise the
                caller may change them as soon as this returns.
            locked: the memory is page-locked.

        Returns:
            How many bytes, of all sent so far and in that order, the host has seen arrive.

        Raises:
            DeviceError: the copy cannot be enqueued, or an earlier one failed.
        """
        ...

    def wait(self) -> int:
        """Wait until the oldest piece in flight has arrived; returns what `send` returns.

        Raises:
            DeviceError: a copy failed.
        """
        ...

    def finish(self) -> None:
        """Wait until the host has seen everything arrive.

        Raises:
            DeviceError: a copy failed. Nothing is in flight afterwards.
        """
        ...


class Backend(Protocol):
    """One device and one block of its memory."""

    @property
    def kind(self) -> str:
        """`cpu` or `cuda`."""
        ...

    @property
    def piece_bytes(self) -> int:
        """Most bytes of one copy from the host, between which the device takes up copies of others."""
        ...

    @property
    def overhead_bytes(self) -> int:
        """Device memory that `allocate` takes beyond the block itself; part of the plan's line `context`."""
        ...

    @property
    def address(self) -> int:
        """Where the block starts: a multiple of 256."""
        ...

    @property
    def device(self) -> Any:
        """The jax.Device. Asking for it starts the JAX client, which must have been configured by then."""
        ...

    def allocate(self, nbytes: int) -> None:
        """Take the block, once, every page of it present.

        Raises:
            DeviceError: the device does not have so many bytes.
        """
        ...

    def upload(self) -> Upload:
        """Begin a run of copies into the block. One at a time; from any thread, which then owns it."""
        ...

    def move(self, source: int, target: int, nbytes: int) -> None:
        """Enqueue a copy inside the block, in order; one thread. They overlap only when the target lies below."""
        ...

    def finish_moves(self) -> None:
        """Wait until the host has seen the end of every move.

        Raises:
            DeviceError: a move failed.
        """
        ...

    def read(self, offset: int, nbytes: int) -> bytes:
        """Copy bytes of the block to the host and wait for them: for self-checks and tests."""
        ...

    def close(self) -> None:
        """Give the block back. Nothing may be in flight and no view may be used afterwards."""
        ...
