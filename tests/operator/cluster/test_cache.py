# SPDX-License-Identifier: Apache-2.0
"""Caches: what may be believed to exist."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ballast_operator.cluster.cache import Cache
from ballast_operator.cluster.client import Listing


def obj(name: str, version: int, *, uid: str = "u", namespace: str = "ns", group: str = "") -> dict:
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata | {"labels": {"g": group} if group else {}, "managedFields": [1]}}


def listing(version: int, *objects: dict) -> Listing:
    return Listing(objects, str(version))


def test_what_a_list_does_not_show_is_gone_although_no_event_said_so():
    cache = Cache()
    cache.sweep(listing(1, obj("a", 1), obj("b", 1, uid="v")))
    [change] = cache.sweep(listing(9, obj("b", 1, uid="v")))
    assert change.before["metadata"]["name"] == "a"
    assert change.after is None
    assert cache.get("ns", "a") is None


def test_what_the_watch_told_after_the_list_was_made_stays():
    cache = Cache()
    cache.sweep(listing(1))
    cache.observe("ADDED", obj("new", 12))
    assert cache.sweep(listing(10)) == []
    assert cache.get("ns", "new") is not None


def test_an_older_version_never_overwrites_a_newer_one():
    cache = Cache()
    cache.observe(None, obj("a", 5))
    assert cache.observe("MODIFIED", obj("a", 4)) is None
    assert cache.get("ns", "a")["metadata"]["resourceVersion"] == "5"


def test_a_late_event_does_not_bring_a_deleted_object_back():
    cache = Cache()
    cache.observe(None, obj("a", 5))
    cache.observe("DELETED", obj("a", 6))
    assert cache.observe("MODIFIED", obj("a", 4)) is None
    assert cache.get("ns", "a") is None


def test_an_object_that_a_selector_finds_again_is_back_and_its_earlier_versions_are_not():
    """A watch with a selector calls an object DELETED that has lost a label, at the version at which it lost it."""
    cache = Cache()
    cache.observe(None, obj("a", 5))
    cache.observe("DELETED", obj("a", 6))
    assert cache.observe("MODIFIED", obj("a", 6)) is None
    assert cache.observe("ADDED", obj("a", 7)) is not None
    assert cache.observe("DELETED", obj("a", 6)) is None
    assert cache.get("ns", "a")["metadata"]["resourceVersion"] == "7"


def test_a_list_brings_back_what_an_earlier_list_did_not_show():
    cache = Cache()
    cache.observe(None, obj("a", 5))
    cache.sweep(listing(9))
    assert cache.observe("MODIFIED", obj("a", 8)) is None
    [change] = cache.sweep(listing(12, obj("a", 11)))
    assert change.after["metadata"]["resourceVersion"] == "11"


def test_what_we_deleted_ourselves_stays_gone_whatever_is_told_late():
    cache = Cache()
    cache.observe(None, obj("a", 5))
    cache.observe("DELETED", cache.get("ns", "a"))
    assert cache.observe("MODIFIED", obj("a", 6)) is None
    assert cache.observe("DELETED", obj("a", 7)) is None
    assert cache.observe("MODIFIED", obj("a", 8)) is None


def test_versions_that_cannot_be_compared_never_bring_an_object_back():
    cache = Cache()
    first, end, later = (obj("a", 0) for _ in range(3))
    for found, version in ((first, "x5"), (end, "x6"), (later, "x7")):
        found["metadata"]["resourceVersion"] = version
    cache.observe(None, first)
    assert cache.observe("DELETED", end) is not None
    assert cache.observe("ADDED", later) is None
    assert cache.observe("ADDED", obj("a", 8)) is None


def test_a_new_object_of_the_same_name_replaces_the_old_one_and_the_old_one_s_end_does_not_touch_it():
    cache = Cache()
    cache.observe(None, obj("a", 5, uid="old"))
    change = cache.observe("ADDED", obj("a", 9, uid="new"))
    assert (change.before["metadata"]["uid"], change.after["metadata"]["uid"]) == ("old", "new")
    assert cache.observe("DELETED", obj("a", 8, uid="old")) is None
    assert cache.get("ns", "a")["metadata"]["uid"] == "new"


def test_managed_fields_are_not_kept():
    cache = Cache()
    cache.observe(None, obj("a", 1))
    assert "managedFields" not in cache.get("ns", "a")["metadata"]


def test_groups_follow_their_objects():
    cache = Cache({"g": lambda o: o["metadata"]["labels"].get("g")})
    cache.observe(None, obj("a", 1, group="x"))
    cache.observe(None, obj("b", 1, uid="v", group="x"))
    assert [o["metadata"]["name"] for o in cache.group("g", "ns", "x")] == ["a", "b"]
    cache.observe("MODIFIED", obj("a", 2, group="y"))
    assert [o["metadata"]["name"] for o in cache.group("g", "ns", "x")] == ["b"]
    cache.observe("DELETED", obj("b", 3, uid="v", group="x"))
    assert cache.group("g", "ns", "x") == []
    assert cache.group("g", "other", "y") == []


def test_a_list_of_one_namespace_says_nothing_about_others():
    cache = Cache()
    cache.observe(None, obj("a", 1, namespace="one"))
    cache.observe(None, obj("a", 1, namespace="two", uid="v"))
    cache.sweep(listing(5), namespace="one")
    assert cache.get("one", "a") is None
    assert cache.get("two", "a") is not None


@pytest.mark.parametrize("type_", ["ADDED", "MODIFIED", None])
def test_the_same_version_again_is_no_change(type_):
    cache = Cache()
    cache.observe(None, obj("a", 1))
    assert cache.observe(type_, obj("a", 1)) is None


class WatchAndSweep(RuleBasedStateMachine):
    """A store, a watch that loses and delays events, and lists: after a list with nothing delayed, cache equals store."""

    names = st.sampled_from(["a", "b", "c"])

    @initialize()
    def begin(self):
        self.cache = Cache({"g": lambda o: o["metadata"]["labels"].get("g")})
        self.version = 0
        self.uids = 0
        self.store: dict[str, dict] = {}
        self.hidden: dict[str, dict] = {}
        """Those that have lost the label by which they are watched."""
        self.pending: list[tuple[str, dict]] = []
        self.ends: dict[str, int] = {}

    def _next(self) -> int:
        self.version += 1
        return self.version

    @rule(name=names, group=st.sampled_from(["x", "y"]), lose=st.booleans())
    def write(self, name, group, lose):
        if name in self.hidden:
            return
        held = self.store.get(name)
        if held is None:
            self.uids += 1
        uid = held["metadata"]["uid"] if held else f"u{self.uids}"
        self.store[name] = obj(name, self._next(), uid=uid, group=group)
        if not lose:
            self.pending.append(("MODIFIED" if held else "ADDED", self.store[name]))

    @rule(name=names, lose=st.booleans())
    def delete(self, name, lose):
        held = self.store.pop(name, None)
        if held is None:
            return
        end = obj(name, self._next(), uid=held["metadata"]["uid"], group=held["metadata"]["labels"]["g"])
        self.ends[held["metadata"]["uid"]] = self.version
        if not lose:
            self.pending.append(("DELETED", end))

    @rule(name=names, lose=st.booleans())
    def lose_or_regain_the_label(self, name, lose):
        there, elsewhere = (self.store, self.hidden) if name in self.store else (self.hidden, self.store)
        held = there.pop(name, None)
        if held is None:
            return
        uid, group = held["metadata"]["uid"], held["metadata"]["labels"]["g"]
        elsewhere[name] = obj(name, self._next(), uid=uid, group=group)
        if not lose:
            self.pending.append(("DELETED" if there is self.store else "ADDED", elsewhere[name]))

    @rule(data=st.data())
    def deliver(self, data):
        if self.pending:
            index = data.draw(st.integers(0, len(self.pending) - 1))
            self.cache.observe(*self.pending.pop(index))

    @rule()
    def sweep(self):
        self.cache.sweep(listing(self.version, *self.store.values()))
        held = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in self.cache}
        assert held == {n: o["metadata"]["resourceVersion"] for n, o in self.store.items()}

    @invariant()
    def groups_hold_what_exists(self):
        if not hasattr(self, "cache"):
            return
        grouped = [o["metadata"]["name"] for g in ("x", "y") for o in self.cache.group("g", "ns", g)]
        assert sorted(grouped) == sorted(o["metadata"]["name"] for o in self.cache)


TestWatchAndSweep = WatchAndSweep.TestCase
