# SPDX-License-Identifier: Apache-2.0
"""CREPE on tones of known pitch."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from e2e.samples.models import crepe

PITCHES = np.array([82.41, 110.0, 146.83, 220.0, 261.63, 329.63, 440.0, 523.25, 659.26, 880.0], np.float32)


@pytest.fixture(scope="module", params=crepe.SIZES)
def track(request):
    parameters = crepe.load(request.param)
    function = jax.jit(crepe.track)
    return lambda frames: {key: np.asarray(value) for key, value in function(parameters, frames).items()}


def tones(pitches=PITCHES, *, loudness: float = 1.0, overtones: int = 1) -> np.ndarray:
    time = np.arange(crepe.FRAME) / crepe.SAMPLE_RATE
    waves = sum(np.sin(2 * np.pi * n * pitches[:, None] * time) / n for n in range(1, overtones + 1))
    return (loudness * waves).astype(np.float32)


def cents(got, expected=PITCHES) -> np.ndarray:
    return 1200 * np.log2(got / expected)


@pytest.mark.parametrize("overtones", [1, 4])
def test_pitches_are_within_ten_cents(track, overtones):
    result = track(tones(overtones=overtones))
    np.testing.assert_allclose(cents(result["pitch_hertz"]), 0, atol=10)
    assert (result["confidence"] > 0.5).all()


def test_loudness_and_offset_do_not_matter(track):
    quiet, loud = track(tones(loudness=1e-3)), track(tones(loudness=100.0) + 5)
    np.testing.assert_allclose(quiet["pitch_hertz"], loud["pitch_hertz"], rtol=1e-3)


def test_silence_is_a_number_without_confidence(track):
    result = track(np.zeros((len(PITCHES), crepe.FRAME), np.float32))
    assert all(np.isfinite(value).all() for value in result.values())
    assert (result["confidence"] < 0.5).all()


def test_confidence_is_the_highest_probability(track):
    result = track(tones())
    assert result["probabilities"].shape == (len(PITCHES), crepe.PITCHES)
    np.testing.assert_array_equal(result["confidence"], result["probabilities"].max(1))


def test_unknown_sizes_are_refused():
    with pytest.raises(ValueError, match="sizes are tiny, full"):
        crepe.load("huge")
