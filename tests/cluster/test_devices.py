# SPDX-License-Identifier: Apache-2.0
"""Made-up GPUs are asked for, handed out and refused as real ones are."""

from __future__ import annotations

import pytest

from e2e.cluster.kube import Kube

pytestmark = pytest.mark.cluster


def _pod(image: str, name: str, gpus: int, *, node: str) -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  containers:
  - name: main
    image: {image}
    command: [sleep, "3600"]
    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"""


def test_pods_get_different_gpus_until_there_are_none(kube: Kube, image: str) -> None:
    node = kube.settings.node_name(2)
    for number in (1, 2):
        kube.apply(_pod(image, f"gpu-{number}", 1, node=node))
    kube.ready("gpu-1", "gpu-2")
    given = {kube.exec(f"gpu-{number}", "printenv", "NVIDIA_VISIBLE_DEVICES").strip() for number in (1, 2)}
    assert given == {f"GPU-{node}-0", f"GPU-{node}-1"}

    kube.apply(_pod(image, "gpu-3", 1, node=node))

    def refused() -> bool:
        conditions = kube.get("pod", "gpu-3")["status"].get("conditions", [])
        return any("Insufficient nvidia.com/gpu" in condition.get("message", "") for condition in conditions)

    kube.until("the third pod is refused", refused, seconds=20)
    kube.run("delete", "pod", "gpu-1", "--wait=true")
    kube.ready("gpu-3")
    assert kube.exec("gpu-3", "printenv", "NVIDIA_VISIBLE_DEVICES").strip() in given
