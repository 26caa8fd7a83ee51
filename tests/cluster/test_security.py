# SPDX-License-Identifier: Apache-2.0
"""Admission and authorization are those of a real cluster, and the product's images keep to the strictest rules."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import pytest

from e2e.cluster.kube import Kube

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def restricted(kube: Kube) -> Iterator[Kube]:
    found = replace(kube, namespace=f"{kube.namespace}-restricted")
    found.run("create", "namespace", found.namespace)
    found.run("label", "namespace", found.namespace, "pod-security.kubernetes.io/enforce=restricted")
    found.until("default ServiceAccount", lambda: found.get("serviceaccount", "default"), seconds=20)
    yield found
    found.run("delete", "namespace", found.namespace, "--wait=false")


def test_pod_security_refuses_a_plain_pod(restricted: Kube, image: str) -> None:
    refused = restricted.run("run", "plain", f"--image={image}", check=False)
    assert 'violates PodSecurity "restricted' in refused.stderr


def test_the_worker_image_runs_under_restricted_with_a_read_only_root(restricted: Kube, image: str) -> None:
    restricted.apply(f"""
apiVersion: v1
kind: Pod
metadata: {{name: strict}}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  securityContext: {{runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: main
    image: {image}
    command: [python, -c, "import os, tempfile, jax, ballast_worker; print(os.getuid(), tempfile.gettempdir())"]
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {{drop: [ALL]}}
    volumeMounts: [{{name: tmp, mountPath: /tmp}}]
  volumes: [{{name: tmp, emptyDir: {{}}}}]
""")
    restricted.until(
        "it has ended", lambda: restricted.get("pod", "strict")["status"]["phase"] in {"Succeeded", "Failed"}
    )
    assert restricted.logs("strict") == "64000 /tmp\n"


def test_a_node_may_change_no_other_node_and_no_restricted_label(kube: Kube) -> None:
    one, two = kube.settings.node_name(1), kube.settings.node_name(2)
    own = kube.settings.conf / f"{one}.kubeconfig"
    other = kube.run("label", "node", two, "test=1", f"--kubeconfig={own}", check=False)
    assert "only its own Node object" in other.stderr
    label = "node-restriction.kubernetes.io/test=1"
    itself = kube.run("label", "node", one, label, f"--kubeconfig={own}", check=False)
    assert "is not allowed to modify labels" in itself.stderr
    secrets = kube.run("get", "secrets", f"--kubeconfig={own}", check=False)
    assert "Forbidden" in secrets.stderr


def test_nobody_is_admitted_without_a_certificate_or_token(kube: Kube) -> None:
    trusts = ssl.create_default_context(cafile=str(kube.settings.pki / "ca.crt"))
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=trusts))
    assert opener.open(f"{kube.settings.api_url}/readyz", timeout=5).read() == b"ok"
    with pytest.raises(HTTPError, match="401"):
        opener.open(f"{kube.settings.api_url}/api", timeout=5)
