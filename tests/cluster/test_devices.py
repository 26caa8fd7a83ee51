# SPDX-License-Identifier: Apache-2.0
"""Made-up GPUs are asked for, handed out and refused as real ones are."""

from __future__ import annotations

import pytest

from e2e.cluster.kube import Kube

pytestmark = pytest.mark.cluster


def _pod(image: str, name: str, gpus: int) -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector: {{kubernetes.io/hostname: ballast-2}}
  containers:
  - name: main
    image: {image}
    command: [sleep, "3600"]
    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"""


def test_pods_get_different_gpus_until_there_are_none(kube: Kube, image: str) -> None:
    for number in (1, 2):
        kube.apply(_pod(image, f"gpu-{number}", 1))
    kube.ready("gpu-1", "gpu-2")
    given = {kube.exec(f"gpu-{number}", "printenv", "NVIDIA_VISIBLE_DEVICES").strip() for number in (1, 2)}
    assert given == {"GPU-ballast-2-0", "GPU-ballast-2-1"}

    kube.apply(_pod(image, "gpu-3", 1))

    def refused() -> bool:
        conditions = kube.get("pod", "gpu-3")["status"].get("conditions", [])
        return any("Insufficient nvidia.com/gpu" in condition.get("message", "") for condition in conditions)

    kube.until("the third pod is refused", refused, seconds=20)
    kube.run("delete", "pod", "gpu-1", "--wait=true")
    kube.ready("gpu-3")
    assert kube.exec("gpu-3", "printenv", "NVIDIA_VISIBLE_DEVICES").strip() in given
