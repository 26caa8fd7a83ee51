# SPDX-License-Identifier: Apache-2.0
"""What the API server was last known to hold, one cache for each kind.

Filled by a list, followed by watch events, and swept by real lists: a watch that starts over never tells what vanished
meanwhile, so only a list may say that something is gone, or that it still exists.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ballast_operator.cluster.client import Listing, Object

Name = tuple[str, str]
"""Namespace and name."""

Grouping = Callable[[Object], str | None]
"""The group of an object within its namespace, or None."""

_TOMBSTONES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Change:
    """An object before and after; None where there was, or is, none."""

    before: Object | None
    after: Object | None

    @property
    def either(self) -> Object:
        """The object as it is, or as it last was."""
        found = self.after if self.after is not None else self.before
        assert found is not None  # noqa: S101 - a change has at least one side
        return found


class Cache:
    """Objects of one kind, by name and by named groups.

    Invariants: an object never goes back to an older resourceVersion of the same uid; one that was deleted returns only at
    a newer version than that of its end, since a selector calls deleted what has lost a label; `filled` turns true with
    the first complete list. Not thread-safe: one loop owns it. Objects must not be changed by those who read them.
    """

    def __init__(self, groups: Mapping[str, Grouping] | None = None) -> None:
        self._objects: dict[Name, Object] = {}
        self._groupings = dict(groups or {})
        self._groups: dict[tuple[str, str, str], dict[Name, None]] = defaultdict(dict)
        self._dead: OrderedDict[str, float] = OrderedDict()
        """The version of its end by uid; infinite where that is not known."""
        self.filled = False

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    def get(self, namespace: str, name: str) -> Object | None:
        """The object of that name, or None."""
        return self._objects.get((namespace, name))

    def group(self, grouping: str, namespace: str, key: str) -> list[Object]:
        """The objects of a group, in no particular order."""
        return [self._objects[name] for name in self._groups.get((grouping, namespace, key), ())]

    def observe(self, type_: str | None, obj: Object) -> Change | None:
        """Take one watch event, or an answer to a write of our own. None: nothing new."""
        return self._remove(obj, _version(_version_of(obj))) if type_ == "DELETED" else self._put(obj)

    def sweep(self, listing: Listing, *, namespace: str | None = None) -> list[Change]:
        """Take a complete list of one namespace (None: all) and return what it corrected.

        What is newer than the list stays: it was told by the watch while the list was read.
        """
        seen = {name_of(obj) for obj in listing.items}
        changes = [change for obj in listing.items if (change := self._put(obj)) is not None]
        horizon = _version(listing.resource_version)
        for name, obj in list(self._objects.items()):
            if name in seen or (namespace is not None and name[0] != namespace):
                continue
            if _version(_version_of(obj)) <= horizon:
                change = self._remove(obj, horizon)
                if change is not None:
                    changes.append(change)
        self.filled = True
        return changes

    def _put(self, obj: Object) -> Change | None:
        metadata = obj["metadata"]
        uid = metadata.get("uid", "")
        theirs = _version_of(obj)
        if uid in self._dead and _version(theirs) <= self._dead[uid]:
            return None
        name = name_of(obj)
        before = self._objects.get(name)
        if before is not None:
            same = before["metadata"].get("uid") == uid
            ours = _version_of(before)
            if ours == theirs or (same and _version(theirs) < _version(ours)):
                return None
            if not same:
                if _version(theirs) < _version(ours):  # an older holder of the name, told late
                    return None
                self._bury(before, math.inf)
            self._leave_groups(name, before)
        self._dead.pop(uid, None)
        kept = {**obj, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}
        self._objects[name] = kept
        for group in self._groups_of(name, kept):
            self._groups[group][name] = None
        return Change(before, kept)

    def _remove(self, obj: Object, end: int) -> Change | None:
        name = name_of(obj)
        held = self._objects.get(name)
        if held is None or held["metadata"].get("uid") != obj["metadata"].get("uid"):
            self._bury(obj, end or math.inf)
            return None
        ours = _version(_version_of(held))
        if end < ours:  # it was found again meanwhile
            return None
        # An end that is not newer than what we hold is one that we know of from our own deletion, without its version.
        self._bury(obj, end if end > ours else math.inf)
        del self._objects[name]
        self._leave_groups(name, held)
        return Change(held, None)

    def _groups_of(self, name: Name, obj: Object) -> Iterator[tuple[str, str, str]]:
        for grouping, key_of in self._groupings.items():
            key = key_of(obj)
            if key is not None:
                yield grouping, name[0], key

    def _leave_groups(self, name: Name, obj: Object) -> None:
        for group in self._groups_of(name, obj):
            members = self._groups[group]
            members.pop(name, None)
            if not members:
                del self._groups[group]

    def _bury(self, obj: Object, end: float) -> None:
        uid = obj["metadata"].get("uid", "")
        self._dead[uid] = max(end, self._dead.get(uid, 0.0))
        while len(self._dead) > _TOMBSTONES:
            self._dead.popitem(last=False)


def name_of(obj: Mapping[str, Any]) -> Name:
    """Namespace and name of an object."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version_of(obj: Object) -> str | None:
    found: str | None = obj["metadata"].get("resourceVersion")
    return found


def _version(text: str | None) -> int:
    """Versions of one store grow; the API has said so since Kubernetes 1.35 and done so since it exists."""
    return int(text) if text and text.isdigit() else 0
