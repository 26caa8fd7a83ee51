# SPDX-License-Identifier: Apache-2.0
"""What JAX says that it does in this process: every trace, lowering and compilation among it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np


@contextmanager
def heard() -> Iterator[list[str]]:
    """The names of JAX's events from now on, of any thread. Compilations are certain to be heard: one is tried first."""
    events: list[str] = []

    def listen(name: str, *_args, **_kwargs) -> None:
        events.append(name)

    jax.monitoring.register_event_listener(listen)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.jit(lambda x: x + 2.5)(np.float32(1)).block_until_ready()
        assert any("compile" in name for name in events), "the listener hears compilations"
        events.clear()
        yield events
    finally:
        jax.monitoring.unregister_event_listener(listen)
        jax.monitoring.unregister_event_duration_listener(listen)
