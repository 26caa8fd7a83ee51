# SPDX-License-Identifier: Apache-2.0
"""The demo's world, brought up once for the end-to-end tests: real cluster, chart, workers and models."""

from __future__ import annotations

import pytest

from e2e.demo import steps
from e2e.demo.kube import Kube, local_environment

NAMESPACE = "ballast-e2e"


@pytest.fixture(scope="session")
def images():
    return steps.images()


@pytest.fixture(scope="session")
def kube(images):
    """The local cluster with the sample bundles and the product's images."""
    steps.build_models(print)
    steps.start_cluster(print)
    return Kube(local_environment())


@pytest.fixture(scope="session")
def world(kube, images):
    """The chart installed, and the samples Ready in a namespace of their own."""
    steps.install(kube, images)
    steps.prepare_namespace(kube, images, namespace=NAMESPACE)
    steps.apply_samples(kube, namespace=NAMESPACE)
    steps.wait_ready(kube, print, namespace=NAMESPACE)
    yield kube
    steps.remove_namespace(kube, namespace=NAMESPACE)


@pytest.fixture
def namespace():
    return NAMESPACE
