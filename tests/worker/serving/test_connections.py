# SPDX-License-Identifier: Apache-2.0
"""When the clients of connections that nobody lists have gone."""

from __future__ import annotations

import pytest

from ballast_worker.serving.connections import CONNECTION_SECONDS, JITTER, Calls

OLD = CONNECTION_SECONDS * (1 + JITTER) + 2


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def calls(clock):
    return Calls(clock=lambda: clock[0])


def test_nobody_is_there_before_the_first_call(calls):
    assert calls.deserted


def test_a_client_that_has_called_is_there_until_its_connection_is_too_old(calls, clock):
    with calls.call("a"):
        pass
    assert not calls.deserted
    clock[0] += OLD
    assert calls.deserted


def test_a_call_under_way_is_somebody_however_long_it_takes(calls, clock):
    with calls.call("a"):
        clock[0] += 10 * OLD
        assert not calls.deserted
    assert calls.deserted


def test_what_counts_is_when_a_connection_began_and_not_its_last_call(calls, clock):
    for _ in range(4):
        with calls.call("a"):
            clock[0] += OLD / 4
    assert calls.deserted


def test_a_new_connection_is_somebody_again(calls, clock):
    with calls.call("a"):
        clock[0] += OLD
    with calls.call("b"):
        pass
    assert not calls.deserted


def test_connections_that_are_gone_are_forgotten(calls, clock):
    for n in range(1000):
        with calls.call(str(n)):
            clock[0] += OLD
    assert len(calls._began) == 1
