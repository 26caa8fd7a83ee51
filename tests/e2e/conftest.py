# SPDX-License-Identifier: Apache-2.0
"""The demo's world, brought up once for the end-to-end tests: real cluster, chart, workers and models."""

from __future__ import annotations

import pytest

from e2e.demo import installing, looking
from e2e.demo.kube import Kube, local_environment

NAMESPACE = "ballast-e2e"


@pytest.fixture(scope="session")
def images():
    return installing.images()


@pytest.fixture(scope="session")
def kube(images):
    """The local cluster with the sample bundles and the product's images."""
    installing.build_models(print)
    installing.start_cluster(print)
    return Kube(local_environment())


@pytest.fixture(scope="session")
def world(kube, images):
    """The chart installed, and the samples Ready in a namespace of their own."""
    installing.install(kube, images)
    installing.prepare_namespace(kube, images, namespace=NAMESPACE)
    installing.apply_samples(kube, namespace=NAMESPACE)
    looking.wait_ready(kube, print, namespace=NAMESPACE)
    yield kube
    installing.remove_namespace(kube, namespace=NAMESPACE)


@pytest.fixture
def namespace():
    return NAMESPACE
