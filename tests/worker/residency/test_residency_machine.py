# SPDX-License-Identifier: Apache-2.0
"""Any sequence of registrations, requests, executions, failures and compactions keeps the promises of residency."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from helpers.residency_rig import UNIT, Rig
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ballast_worker.bundle.errors import BundleError
from ballast_worker.residency.demand import Readiness
from ballast_worker.residency.protocol import CompactionMode

CAPACITY = 16
NAMES = st.sampled_from("abcdefg")
WISHES = st.sampled_from(["unpinned", "unpinned", "system", "device"])
ERRORS = st.sampled_from([BundleError("SourceChanged", "changed"), BundleError("BundleInvalid", "bad"), OSError("io")])


class ResidencyMachine(RuleBasedStateMachine):
    """The engine, the threads and the clock are played by the rules."""

    beside_scratch: int | None = None

    @initialize()
    def start(self):
        self.folder = Path(tempfile.mkdtemp(prefix="residency"))
        self.rig = Rig(self.folder, CAPACITY, beside_scratch=self.beside_scratch)
        self.registered: dict[str, str] = {}
        self.leases: list[tuple[str, object]] = []
        # Answers owed: how often `want` said LOADING without one since.
        self.owed: set[str] = set()
        self.answers_seen = 0
        self.refusals_seen = 0
        self.evictions_of_pinned = Counter()
        self.forgetting: list[str] = []
        self.compactions = 0
        self.results: list = []

    def teardown(self):
        if not hasattr(self, "rig"):
            return
        self.everything_ends_well()
        self.rig.memory.close()
        shutil.rmtree(self.folder)

    # What the engine does

    @rule(name=NAMES, units=st.integers(0, 9), wish=WISHES, seed=st.integers(0, 1), pieces=st.sampled_from([1, 2, 4]))
    def register(self, name, units, wish, seed, pieces):
        if self.rig.register(name, units, wish, seed=seed, pieces=pieces) is None:
            self.registered[name] = wish
        self.listen()

    @rule(name=NAMES)
    def forget(self, name):
        if name in self.registered:
            del self.registered[name]
            self.forgetting.append(name)
            self.rig.manager.forget(name, lambda: self.forgetting.remove(name))
            self.rig.queues.waiting[name] = 0
        self.listen()

    @rule(name=NAMES)
    def want(self, name):
        answer = self.rig.manager.want(name)
        if name not in self.registered:
            assert not isinstance(answer, Readiness)
            return
        if answer is Readiness.LOADING:
            self.owed.add(name)
            self.rig.queues.waiting[name] += 1
        self.listen()

    @rule(name=NAMES)
    def execute(self, name):
        if name in self.registered and self.rig.manager.want(name) is Readiness.READY:
            self.leases.append((name, self.rig.manager.lease(name)))
            self.rig.queues.running[name] += 1
            self.rig.queues.waiting[name] = max(0, self.rig.queues.waiting[name] - 1)
        elif name in self.registered and self.rig.manager.want(name) is Readiness.LOADING:
            self.owed.add(name)
        self.listen()

    @rule(index=st.integers(0, 100))
    def finish(self, index):
        if self.leases:
            name, lease = self.leases.pop(index % len(self.leases))
            self.rig.queues.running[name] -= 1
            lease.release()
            self.rig.manager.dispatched(name)
        self.listen()

    @rule(name=NAMES)
    def give_up(self, name):
        self.rig.queues.waiting[name] = 0

    @rule(mode=st.sampled_from(["move", "free"]), names=st.lists(NAMES, max_size=4))
    def compact(self, mode, names):
        self.compactions += 1
        self.rig.manager.compact(CompactionMode(mode), names, self.results.append)
        self.listen()

    @rule()
    def fill_free(self):
        self.rig.manager.fill_free()

    # What threads and time do

    @rule(index=st.integers(0, 3), error=st.none() | ERRORS)
    def end_fetch(self, index, error):
        if self.rig.loader.fetches:
            self.rig.loader.end_fetch(index % len(self.rig.loader.fetches), error=error)
        self.listen()

    @rule(error=st.none() | ERRORS, seconds=st.floats(0, 3))
    def end_fill(self, error, seconds):
        if self.rig.loader.fills:
            self.rig.loader.end_fill(error=error, seconds=seconds)
        self.listen()

    @rule()
    def run_posts(self):
        self.rig.run()
        self.listen()

    @rule(seconds=st.sampled_from([0.01, 1.0, 100.0]))
    def pass_time(self, seconds):
        self.rig.pass_time(seconds)
        self.listen()

    # What must be true

    def listen(self):
        queues = self.rig.queues
        for name in queues.loaded_calls[self.answers_seen :]:
            self.owed.discard(name)
        for name, refusal in queues.refused_calls[self.refusals_seen :]:
            final = refusal.retry_after_seconds is None
            assert name in self.owed or final, f"{name} was refused, but nobody waits for it"
            self.owed.discard(name)
        self.answers_seen = len(queues.loaded_calls)
        self.refusals_seen = len(queues.refused_calls)

    @invariant()
    def device_bytes_are_those_of_the_extents(self):
        if not hasattr(self, "rig"):
            return
        statistics, extents = self.rig.memory.statistics(), self.rig.memory.extents()
        assert statistics.in_use == sum(extent.nbytes for extent in extents)
        board = self.rig.manager._board
        assert {extent.key for extent in extents} == set(board.extents)
        assert board.leases == len(self.leases)
        keys = [resident.key for resident in board.residents()]
        assert keys == sorted(keys)
        assert board.pinned == sum(m.nbytes for m in board.models.values() if m.spec.wish == "device")
        assert board.pinned <= CAPACITY * UNIT

    @invariant()
    def the_first_board_never_evicts_pinned_models(self):
        if not hasattr(self, "rig"):
            return
        for decision in self.rig.manager.decisions():
            chosen = {candidate.model for candidate in decision.candidates if candidate.chosen}
            pinned = {candidate.model for candidate in decision.candidates if candidate.excluded == "pinned"}
            assert not chosen & pinned

    @invariant()
    def every_transfer_open_is_one_that_somebody_has(self):
        if not hasattr(self, "rig"):
            return
        manager = self.rig.manager
        held = len(manager._loads._waiting) + len(self.rig.loader.fills)
        posted = len(self.rig.posts)
        assert held <= self.rig.store.open <= held + posted

    def everything_ends_well(self):
        """With executions ended and sources readable, nobody waits for ever and nothing is left over."""
        rig = self.rig
        while self.leases:
            self.finish(0)
        for name in list(rig.queues.waiting):
            rig.queues.waiting[name] = 0
        for _ in range(8):
            rig.settle()
            rig.pass_time(61.0)
            self.listen()
        assert not self.owed, f"nobody answered {self.owed}"
        assert not self.forgetting
        assert len(self.results) == self.compactions
        assert rig.store.open == 0
        refused = [model for model in rig.manager.snapshot().models if model.refusal is not None]
        assert rig.manager.snapshot().largest_waiting_bytes == 0 or rig.queues.refused_calls or refused
        for model in rig.manager.snapshot().models:
            if self.registered[model.name] == "device" and model.refusal is None:
                assert rig.on_device(model.name)
        for name in list(self.registered):
            self.forget(name)
        rig.settle()
        assert rig.memory.statistics().in_use == 0
        assert rig.memory.statistics().pinned == 0
        assert not rig.manager._board.extents
        assert not rig.store.kept


class SharedPoolMachine(ResidencyMachine):
    """Weights beside scratch in one allocator, where nothing moves and fills and executions exclude one another."""

    beside_scratch = 4

    @invariant()
    def nothing_executes_beside_a_fill_and_one_fill_is_under_way_at_most(self):
        if hasattr(self, "rig"):
            assert len(self.rig.loader.fills) <= 1
            assert not (self.leases and self.rig.loader.fills)

    @invariant()
    def the_allocator_did_what_was_foreseen_and_a_block_for_scratch_is_free(self):
        if hasattr(self, "rig"):
            assert self.rig.memory.exact
            assert self.rig.pool.allocator.largest_free >= self.beside_scratch * UNIT


SETTINGS = settings(max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
TestResidencyMachine = ResidencyMachine.TestCase
TestResidencyMachine.settings = SETTINGS
TestSharedPoolMachine = SharedPoolMachine.TestCase
TestSharedPoolMachine.settings = SETTINGS
