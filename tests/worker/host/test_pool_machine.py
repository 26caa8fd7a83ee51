# SPDX-License-Identifier: Apache-2.0
"""Any sequence of loads, evictions, wishes, changed files, starts and kills in several processes on one real pool."""

from __future__ import annotations

import hashlib
import itertools
import shutil

from helpers.plain_bundles import packed_bytes
from helpers.pool_pages import faults, used_bytes
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ballast_worker.host.survey import survey

MIB = 1 << 20
BUDGET = 12 * MIB
SIZES = {"a": 1, "b": 2, "c": 3, "d": 5, "e": 7}

workers = st.integers(0, 2)
models = st.sampled_from(sorted(SIZES))


class PoolMachine(RuleBasedStateMachine):
    """Three workers; one command at a time, but a fill may stand still while others go on."""

    numbers = itertools.count()

    def __init__(self, nursery, folder, bundles):
        super().__init__()
        self.nursery = nursery
        self.bundles = bundles
        self.sums = {name: hashlib.sha256(packed_bytes(bundle)).hexdigest() for name, bundle in bundles.items()}
        self.directory = folder / f"pool-{next(self.numbers)}"
        self.workers = {}
        self.held = {}
        self.kept = {}
        self.filling = {}
        self.spoilt = {}
        self.used = 0
        self.keeping = False

    def path(self, model):
        return self.bundles[model].path

    def idle(self, at):
        return at not in self.filling

    def there(self):
        return {region.name for region in survey(self.directory).regions if region.ready}

    @initialize()
    def begin(self):
        for at in range(3):
            self.start(at)

    def start(self, at):
        worker = self.workers[at] = self.nursery.worker(self.directory, BUDGET)
        self.held[at], self.kept[at] = set(), set()
        assert worker.answer() == "ready"

    @rule(at=workers, kill=st.booleans())
    def start_anew(self, at, kill):
        if kill or self.idle(at):
            self.filling.pop(at, None)
            self.workers[at].kill() if kill else self.workers[at].close()
            self.start(at)

    @rule(at=workers, model=models, keep=st.booleans(), hold=st.booleans())
    def load(self, at, model, keep, hold):
        if not self.idle(at) or model in self.filling.values():
            return
        there = model in self.there()
        self.keeping = keep
        found = self.workers[at].ask("acquire", self.path(model), "keep" if keep else "")
        self.held[at].discard(model)
        if "failed" in found:
            assert model in self.spoilt
            assert model not in self.there()
            return
        assert found["sha256"] == self.sums[model], "wrong bytes"
        assert found["kept"] or not (there or keep), "a copy that was there, or is to be kept, was not used"
        if found["kept"]:
            self.held[at].add(model)
            if keep:
                self.kept[at].add(model)
        if not hold:
            self.release(at, model)

    @rule(at=workers, model=models)
    def release(self, at, model):
        if self.idle(at):
            self.workers[at].ask("close", self.path(model))
            self.held[at].discard(model)

    @rule(at=workers, model=models)
    def let_go(self, at, model):
        if self.idle(at):
            self.workers[at].ask("unkeep", self.path(model))
            self.kept[at].discard(model)

    @rule(at=workers, model=models)
    def evict(self, at, model):
        if self.idle(at):
            wanted = any(model in some for some in (*self.held.values(), *self.kept.values()))
            there = model in self.there()
            assert self.workers[at].ask("evict", self.path(model)) == (there and not wanted)

    @rule(at=workers, model=models)
    def stop_in_a_fill(self, at, model):
        if self.idle(at) and model not in self.filling.values() and model not in self.spoilt:
            self.workers[at].tell("stop_in_fill", self.path(model), 1)
            if self.workers[at].answer() == "filling":
                self.filling[at] = model

    @precondition(lambda self: self.filling)
    @rule()
    def finish_a_fill(self):
        at = min(self.filling)
        model = self.filling.pop(at)
        self.workers[at].tell()
        assert self.workers[at].answer() in ("filled", {"failed": "SourceChanged"}, {"failed": "BundleInvalid"})
        assert (model in self.there()) == (model not in self.spoilt)

    @rule(model=models)
    def write_into_the_file(self, model):
        if model not in self.spoilt:
            file = self.path(model) / "weights.safetensors"
            self.spoilt[model] = file.read_bytes()
            with file.open("r+b") as opened:
                opened.seek(-1, 2)
                opened.write(bytes([self.spoilt[model][-1] ^ 1]))

    @precondition(lambda self: self.spoilt)
    @rule()
    def put_the_file_right(self):
        model, data = self.spoilt.popitem()
        if model in self.filling.values():
            self.spoilt[model] = data
            return
        (self.path(model) / "new").write_bytes(data)
        (self.path(model) / "new").rename(self.path(model) / "weights.safetensors")

    @invariant()
    def whole(self):
        assert faults(self.directory) == []
        used = used_bytes(self.directory)
        # Above the budget only copies that are to be kept take more.
        assert used <= BUDGET or used <= self.used or self.keeping
        self.used, self.keeping = used, False
        regions = {region.name: region for region in survey(self.directory).regions}
        for model in set().union(*self.held.values()):
            assert regions[model].in_transfer
        for model in set().union(*self.kept.values()):
            assert regions[model].kept

    def teardown(self):
        for worker in self.workers.values():
            worker.kill()
        for model, data in self.spoilt.items():
            (self.path(model) / "weights.safetensors").write_bytes(data)
        shutil.rmtree(self.directory, ignore_errors=True)


def test_no_sequence_exceeds_the_budget_loses_a_page_or_brings_wrong_bytes(nursery, bundle, tmp_path):
    bundles = {name: bundle(name, mib) for name, mib in SIZES.items()}
    run_state_machine_as_test(
        lambda: PoolMachine(nursery, tmp_path, bundles), settings=settings(max_examples=20, stateful_step_count=30)
    )
