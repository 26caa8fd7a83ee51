# SPDX-License-Identifier: Apache-2.0
"""Leader election: who leads, with which epoch, and when it is over."""

from __future__ import annotations

import datetime as dt
import itertools

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ballast_operator.cluster.lease import DURATION_SECONDS, MAX_STEP, RENEW_SECONDS, Elector, Write, micro_time


class Store:
    """The Lease as an API server keeps it: replaced at its version only."""

    def __init__(self) -> None:
        self.lease: dict | None = None
        self.versions = itertools.count(1)

    def write(self, write: Write) -> dict | None:
        if write.create != (self.lease is None):
            return None
        if not write.create and write.body["metadata"].get("resourceVersion") != self.version:
            return None
        metadata = {**write.body["metadata"], "resourceVersion": str(next(self.versions))}
        self.lease = {**write.body, "metadata": metadata}
        return self.lease

    @property
    def version(self) -> str:
        return self.lease["metadata"]["resourceVersion"] if self.lease else ""


class Candidate:
    def __init__(self, name: str, store: Store, clock) -> None:
        self.clock = clock
        self.store = store
        self.wall = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        self.elector = Elector(
            identity=name,
            namespace="ns",
            name="lease",
            clock=clock,
            now=lambda: self.wall,
        )

    def step(self) -> None:
        if not self.elector.leading:
            self.elector.observe(self.store.lease)
        write = self.elector.intent()
        if write is None:
            return
        started = self.clock()
        lease = self.store.write(write)
        if lease is None:
            self.elector.observe(self.store.lease)
        else:
            self.elector.written(write, lease, started=started)


@pytest.fixture
def world():
    now = [1000.0]
    store = Store()
    return now, store, lambda name: Candidate(name, store, lambda: now[0])


def test_the_first_candidate_makes_the_lease_and_leads_with_epoch_one(world):
    _, store, candidate = world
    one = candidate("one")
    one.step()
    assert one.elector.leading
    assert one.elector.epoch == 1
    assert store.lease["spec"] == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 10,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 1,
    }


def test_a_follower_waits_the_whole_duration_since_it_last_saw_a_renewal(world):
    now, _, candidate = world
    one, two = candidate("one"), candidate("two")
    one.step()
    two.step()
    now[0] += DURATION_SECONDS - 1
    one.step()  # renewed: the time begins anew
    two.step()
    now[0] += DURATION_SECONDS - 0.1
    two.step()
    assert not two.elector.leading
    now[0] += 0.2
    two.step()
    assert two.elector.leading
    assert two.elector.epoch == 2


def test_a_lease_that_was_given_up_is_taken_at_once(world):
    _, store, candidate = world
    one, two = candidate("one"), candidate("two")
    one.step()
    two.step()
    assert not two.elector.leading
    store.write(one.elector.release())
    two.step()
    assert two.elector.leading
    assert two.elector.epoch == 2


def test_a_leader_that_could_not_renew_knows_that_it_lost_before_others_may_lead(world):
    now, _, candidate = world
    one = candidate("one")
    one.step()
    now[0] += RENEW_SECONDS - 0.1
    assert not one.elector.lost()
    now[0] += 0.1
    assert one.elector.lost()
    assert RENEW_SECONDS < DURATION_SECONDS


@pytest.mark.parametrize("step", [dt.timedelta(days=-400), dt.timedelta(hours=-1), dt.timedelta(days=400)])
@pytest.mark.parametrize("stepped", ["leader", "follower", "both"])
def test_a_time_of_day_that_is_stepped_neither_takes_nor_gives_the_lease(world, step, stepped):
    now, store, candidate = world
    one, two = candidate("one"), candidate("two")
    one.step()
    two.step()
    for each in {"leader": [one], "follower": [two], "both": [one, two]}[stepped]:
        each.wall += step
    for _ in range(20):
        now[0] += 2
        one.step()
        two.step()
        assert (one.elector.leading, one.elector.lost(), two.elector.leading) == (True, False, False)
    now[0] += DURATION_SECONDS  # a leader that is dead is followed in the same time
    two.step()
    assert (two.elector.leading, store.lease["spec"]["leaseTransitions"]) == (True, 2)


def test_a_leader_that_sees_another_holder_leads_no_more(world):
    now, store, candidate = world
    one, two = candidate("one"), candidate("two")
    one.step()
    two.step()
    now[0] += DURATION_SECONDS
    two.step()
    one.step()  # its write is refused, and it looks
    assert not one.elector.leading
    assert one.elector.epoch == 0
    assert store.lease["spec"]["holderIdentity"] == "two"


def test_a_renewal_keeps_epoch_and_acquire_time(world):
    now, store, candidate = world
    one = candidate("one")
    one.step()
    now[0] += 2
    one.step()
    assert one.elector.epoch == 1
    assert store.lease["spec"]["leaseTransitions"] == 1


def test_an_epoch_that_a_worker_has_seen_is_overtaken(world):
    _, store, candidate = world
    one = candidate("one")
    one.step()
    one.elector.raise_above(40)
    assert one.elector.behind
    one.step()
    assert one.elector.epoch == 41
    assert not one.elector.behind
    assert store.lease["spec"]["leaseTransitions"] == 41


def test_an_epoch_below_ours_changes_nothing(world):
    _, _, candidate = world
    one = candidate("one")
    one.step()
    one.elector.raise_above(0)
    assert not one.elector.behind


def test_a_lease_that_was_deleted_begins_anew_above_what_workers_have_seen(world):
    _, store, candidate = world
    candidate("one").step()
    store.lease = None
    two = candidate("two")
    two.step()
    assert two.elector.epoch == 1
    two.elector.raise_above(40)
    two.step()
    assert (two.elector.epoch, store.lease["spec"]["leaseTransitions"]) == (41, 41)


@pytest.mark.parametrize("absurd", [MAX_STEP + 1, 2**31 - 1, 2**64 - 1])
def test_an_absurd_epoch_of_a_worker_is_not_followed(world, absurd):
    _, store, candidate = world
    one = candidate("one")
    one.step()
    assert not one.elector.follows(absurd)
    one.elector.raise_above(absurd)
    assert not one.elector.behind
    one.step()
    assert store.lease["spec"]["leaseTransitions"] == 1


def test_workers_cannot_raise_the_epoch_step_by_step_beyond_the_limit_of_one_acquisition(world):
    now, _, candidate = world
    one = candidate("one")
    one.step()
    for _ in range(3):
        one.elector.raise_above(one.elector.epoch + MAX_STEP - 1)
        one.step()
    assert one.elector.epoch == MAX_STEP + 1
    now[0] += DURATION_SECONDS
    two = candidate("two")
    two.step()
    now[0] += DURATION_SECONDS
    two.step()
    assert two.elector.epoch == MAX_STEP + 2
    assert two.elector.follows(MAX_STEP + 40)


def test_every_process_of_a_pod_is_another_candidate(world):
    now, _, candidate = world
    candidate("pod_uid_1").step()
    again = candidate("pod_uid_2")
    again.step()
    assert not again.elector.leading
    now[0] += DURATION_SECONDS
    again.step()
    assert again.elector.epoch == 2


def test_a_micro_time_always_has_six_digits():
    assert micro_time(dt.datetime(2026, 1, 1, tzinfo=dt.UTC)) == "2026-01-01T00:00:00.000000Z"
    assert micro_time(dt.datetime(2026, 1, 1, 1, 0, 0, 5, tzinfo=dt.timezone(dt.timedelta(hours=1)))) == (
        "2026-01-01T00:00:00.000005Z"
    )


class Election(RuleBasedStateMachine):
    """Three candidates with clocks that run alike: epochs never repeat, and at most one believes to lead in time."""

    @initialize()
    def begin(self):
        self.now = [0.0]
        self.store = Store()
        self.candidates = [Candidate(f"c{n}", self.store, lambda: self.now[0]) for n in range(3)]
        self.dead: set[int] = set()
        self.epochs: dict[int, str] = {}

    @rule(which=st.integers(0, 2))
    def step(self, which):
        if which not in self.dead:
            candidate = self.candidates[which]
            candidate.step()
            if candidate.elector.lost():
                self.dead.add(which)
            elif candidate.elector.leading:
                holder = self.epochs.setdefault(candidate.elector.epoch, f"c{which}")
                assert holder == f"c{which}"

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.9, 11.0]))
    def wait(self, seconds):
        self.now[0] += seconds

    @invariant()
    def one_leader(self):
        if not hasattr(self, "candidates"):
            return
        leaders = [
            n
            for n, c in enumerate(self.candidates)
            if n not in self.dead and c.elector.leading and not c.elector.lost()
        ]
        assert len(leaders) <= 1


TestElection = Election.TestCase
