# SPDX-License-Identifier: Apache-2.0
"""Paths of the protocol."""

from __future__ import annotations

import pytest

from ballast_worker.serving.routes import Operation, Route, parse


@pytest.mark.parametrize(
    ("target", "route"),
    [
        (b"/v2", Route(Operation.SERVER_METADATA)),
        (b"/v2/", Route(Operation.SERVER_METADATA)),
        (b"/v2/health/live?x=1", Route(Operation.LIVE)),
        (b"/v2/health/ready", Route(Operation.READY)),
        (b"http://host:8000/v2/health/ready", Route(Operation.READY)),
        (b"/v2/models/a", Route(Operation.MODEL_METADATA, "a")),
        (b"/v2/models/all-MiniLM-L6.v2/infer", Route(Operation.INFER, "all-MiniLM-L6.v2")),
        (b"/v2/models/a/b/infer", Route(Operation.INFER, "a/b")),
        (b"/v2/models/a%2Fb/infer", Route(Operation.INFER, "a/b")),
        (b"/v2/models/a/versions/1/infer?q", Route(Operation.INFER, "a", "1")),
        (b"/v2/models/a/b/versions/1", Route(Operation.MODEL_METADATA, "a/b", "1")),
        (b"/v2/models/a/versions/1/ready", Route(Operation.MODEL_READY, "a", "1")),
        (b"/v2/models/a/ready", Route(Operation.MODEL_READY, "a")),
        (b"/v2/models/a%2Fready", Route(Operation.MODEL_METADATA, "a/ready")),
        (b"/v2/models/a%2Fready/ready", Route(Operation.MODEL_READY, "a/ready")),
        (b"/v2/models/infer", Route(Operation.MODEL_METADATA, "infer")),
        (b"/v2/models/versions/1", Route(Operation.MODEL_METADATA, "versions/1")),
        (b"/v2/models/m%C3%BCnchen", Route(Operation.MODEL_METADATA, "münchen")),
        (b"/v2/models/", None),
        (b"/v2/models//infer", None),
        (b"/v2/models/%FF/infer", None),
        (b"/v2/model/a", None),
        (b"/", None),
        (b"", None),
    ],
)
def test_a_path_says_what_is_asked_of_which_model(target, route):
    assert parse(target) == route
