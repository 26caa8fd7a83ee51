# SPDX-License-Identifier: Apache-2.0
"""Route tables: versions and deltas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.fleet.routes import Hop, RouteBook, Routes


def hop(name: str) -> Hop:
    return Hop(name, f"10.0.0.{name}", 8000, 8001)


def apply(table: dict[str, tuple[str, ...]], version: int, message: pb.RouteTable) -> tuple[dict, int]:
    """What a worker does with a message."""
    if message.base_version not in (0, version):
        return table, version
    table = dict(table) if message.base_version else {}
    for route in message.routes:
        if route.workers:
            table[route.model] = tuple(w.worker for w in route.workers)
        else:
            table.pop(route.model, None)
    return table, message.version


def test_the_same_table_keeps_its_version_and_object():
    book = RouteBook()
    first = book.update({"a": (hop("1"),)}, epoch=3)
    assert book.update({"a": (hop("1"),)}, epoch=3) is first
    second = book.update({"a": (hop("2"),)}, epoch=3)
    assert second.version == first.version + 1


def test_a_later_epoch_is_above_every_version_of_an_earlier_one():
    book, later = RouteBook(), RouteBook()
    for number in range(5):
        last = book.update({"a": (hop(str(number)),)}, epoch=3)
    assert later.update({}, epoch=4).version > last.version
    assert book.update(last.table, epoch=4).version > last.version


def test_a_whole_table_has_no_base():
    message = Routes(7, {"a": (hop("1"),)}).since(None)
    assert (message.version, message.base_version) == (7, 0)
    [route] = message.routes
    assert (route.model, route.workers[0].worker, route.workers[0].http_port) == ("a", "1", 8000)


tables = st.dictionaries(st.sampled_from("abcd"), st.lists(st.sampled_from("123"), min_size=1, max_size=2, unique=True))


@given(st.lists(tables, min_size=1, max_size=8), st.data())
def test_deltas_from_any_acknowledged_version_lead_to_the_same_table(history, data):
    book = RouteBook()
    versions = [book.update({m: tuple(map(hop, ws)) for m, ws in table.items()}, epoch=1) for table in history]
    base = data.draw(st.sampled_from(versions))
    held, version = apply({}, 0, base.since(None))
    held, version = apply(held, version, versions[-1].since(base))
    assert version == versions[-1].version
    assert held == {m: tuple(h.worker for h in hops) for m, hops in versions[-1].table.items()}
