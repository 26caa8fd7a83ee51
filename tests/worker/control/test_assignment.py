# SPDX-License-Identifier: Apache-2.0
"""Assignments are checked as a whole, survive a restart, and carry routes as deltas."""

from __future__ import annotations

import pytest

from ballast_contract.config import ResidencyWish
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.assignment import AssignedModel, Assignment, AssignmentError, AssignmentFile, Routes


def message(name="m", **fields):
    return pb.AssignedModel(**{"name": name, "uri": f"file:///{name}", "residency": pb.RESIDENCY_UNPINNED, **fields})


def request(*models, **fields):
    return pb.ApplyAssignmentRequest(**{"epoch": 1, "generation": 1, "models": models, **fields})


def route(model, *workers):
    return pb.Route(model=model, workers=[pb.Endpoint(worker=w, host=w, http_port=1, grpc_port=2) for w in workers])


def test_what_was_saved_is_loaded_whole(tmp_path):
    assignment = Assignment().accept(
        request(
            message(
                object="ns/m",
                digest="sha256:" + "a" * 64,
                residency=pb.RESIDENCY_DEVICE,
                batching=pb.Batching(max_size=4, max_delay_milliseconds=7),
            ),
            epoch=3,
            generation=9,
            node_workers=4,
            routes=pb.RouteTable(version=5, routes=[route("far", "w2", "w3")]),
        )
    )
    AssignmentFile(tmp_path).save(assignment)
    loaded = AssignmentFile(tmp_path).load()
    assert loaded == assignment
    assert (loaded.epoch, loaded.node_workers) == (3, 4)
    assert loaded.models[0].residency is ResidencyWish.DEVICE


def test_an_empty_assignment_is_one(tmp_path):
    assignment = Assignment().accept(request(generation=1))
    AssignmentFile(tmp_path).save(assignment)
    assert AssignmentFile(tmp_path).load().generation == 1
    assert AssignmentFile(tmp_path / "nowhere").load().generation is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 99}', '{"format": 1}'])
def test_a_damaged_file_is_no_assignment(tmp_path, damage):
    (tmp_path / "assignment.json").write_text(damage)
    assert AssignmentFile(tmp_path).load() == Assignment()


def test_two_models_of_one_name_are_refused_with_both():
    with pytest.raises(AssignmentError, match=r"'m'.*ns/a.*ns/b"):
        Assignment().accept(request(message(object="ns/a"), message(object="ns/b")))


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (message(name=""), "1 to 253 characters"),
        (message(name="x" * 254), "not 254"),
        (message(uri=""), "no uri"),
        (message(digest="md5:abc"), "md5:abc"),
        (message(residency=pb.RESIDENCY_UNSPECIFIED), "residency"),
    ],
)
def test_a_model_that_cannot_be_read_refuses_the_assignment(model, match):
    with pytest.raises(AssignmentError, match=match):
        Assignment().accept(request(model))


def test_routes_come_whole_or_as_deltas():
    routes = Routes().apply(pb.RouteTable(version=1, routes=[route("a", "w1"), route("b", "w2")]))
    assert set(routes.table) == {"a", "b"}
    routes = routes.apply(pb.RouteTable(version=2, base_version=1, routes=[route("a"), route("c", "w3")]))
    assert (routes.version, set(routes.table)) == (2, {"b", "c"})
    routes = routes.apply(pb.RouteTable(version=7, routes=[route("d", "w4")]))
    assert (routes.version, set(routes.table)) == (7, {"d"})


def test_a_delta_on_another_version_changes_nothing():
    routes = Routes().apply(pb.RouteTable(version=1, routes=[route("a", "w1")]))
    assert routes.apply(pb.RouteTable(version=9, base_version=8, routes=[route("b", "w2")])) is routes


def test_an_assignment_without_routes_keeps_them():
    first = Assignment().accept(request(routes=pb.RouteTable(version=1, routes=[route("a", "w1")])))
    assert first.accept(request(message())).routes == first.routes


def test_only_what_a_user_can_change_lifts_a_quarantine():
    model = AssignedModel(name="m", uri="file:///m", object="ns/a")
    assert model.fingerprint == AssignedModel(name="m", uri="file:///m", object="ns/b").fingerprint
    assert model.fingerprint != AssignedModel(name="m", uri="file:///n").fingerprint
    assert model.fingerprint != AssignedModel(name="m", uri="file:///m", max_batch=3).fingerprint
