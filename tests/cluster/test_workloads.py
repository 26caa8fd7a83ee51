# SPDX-License-Identifier: Apache-2.0
"""Pods run, can be looked into, are killed and restarted as on any other cluster."""

from __future__ import annotations

import re
import subprocess
import urllib.request

import pytest

from e2e.cluster.kube import Kube
from e2e.cluster.settings import Settings

pytestmark = pytest.mark.cluster

_SERVER = """
import http.server, socket
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = socket.gethostname().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
print("listening", flush=True)
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
_ASK_API = """
import json, ssl, urllib.error, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=folder + "ca.crt")
def ask(kind):
    url = "https://kubernetes.default/api/v1/namespaces/" + open(folder + "namespace").read() + "/" + kind
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + open(folder + "token").read()})
    try:
        return len(json.load(urllib.request.urlopen(request, context=context, timeout=10))["items"])
    except urllib.error.HTTPError as error:
        return error.code
print("pods", ask("pods"), "secrets", ask("secrets"))
"""


@pytest.fixture(scope="module")
def web(kube: Kube, image: str) -> Kube:
    """Two pods behind a Service with an address, one behind which there is none, and a StatefulSet."""
    kube.run("create", "configmap", "server", f"--from-literal=server.py={_SERVER}")
    pod = f"""
      terminationGracePeriodSeconds: 0
      containers:
      - name: web
        image: {image}
        command: [python, /server/server.py]
        ports: [{{containerPort: 8080, name: http}}]
        readinessProbe: {{httpGet: {{path: /, port: http}}, periodSeconds: 1}}
        resources: {{requests: {{cpu: 10m, memory: 32Mi}}, limits: {{memory: 256Mi}}}}
        volumeMounts: [{{name: server, mountPath: /server}}]
      volumes: [{{name: server, configMap: {{name: server}}}}]
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {{matchLabels: {{app: APP}}}}
"""
    kube.apply(f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {pod.replace("APP", "web")}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: http}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: web-headless}}
spec: {{clusterIP: None, selector: {{app: web}}, ports: [{{port: 8080, targetPort: http}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: db}}
spec: {{clusterIP: None, selector: {{app: db}}, ports: [{{port: 8080}}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  serviceName: db
  replicas: 2
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec: {pod.replace("APP", "db")}
""")
    kube.rolled_out("deployment", "web")
    kube.rolled_out("statefulset", "db")
    return kube


@pytest.fixture(scope="module")
def pods(web: Kube) -> list[str]:
    return [pod["metadata"]["name"] for pod in web.items("pods", "app=web")]


def _fetch(kube: Kube, pod: str, url: str) -> str:
    """Ask from inside a pod; rules of a Service that is a second old may not be written yet."""
    script = f"import urllib.request as u; print(u.urlopen('{url}', timeout=3).read().decode())"
    answers: list[str] = []

    def answered() -> bool:
        done = kube.run("exec", pod, "--", "python", "-c", script, check=False)
        answers.append(done.stdout.strip() or done.stderr)
        return done.returncode == 0

    kube.until(f"{url} from {pod}", answered, seconds=20)
    return answers[-1]


def _open(url: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
        return str(answer.read().decode())


def test_pods_of_a_deployment_spread_over_both_nodes(web: Kube) -> None:
    assert {pod["spec"]["nodeName"] for pod in web.items("pods", "app=web")} == {
        web.settings.node_name(1),
        web.settings.node_name(2),
    }


def test_the_logs_of_a_pod_are_read_and_commands_run_in_it(web: Kube, pods: list[str]) -> None:
    assert "listening" in web.logs(pods[0])
    assert web.exec(pods[0], "python", "-c", "import jax; print(jax.__name__)").strip() == "jax"


def test_a_forwarded_port_reaches_a_pod_of_the_service(web: Kube) -> None:
    argv = [str(web.settings.bin / "kubectl"), f"--kubeconfig={web.settings.admin}", "-n", web.namespace]
    with subprocess.Popen(
        [*argv, "port-forward", "service/web", ":80"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as forward:
        assert forward.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
        try:
            assert found
            assert _open(f"http://127.0.0.1:{found[1]}/").startswith("web-")
        finally:
            forward.kill()


def test_a_service_answers_in_pods_and_on_this_machine(web: Kube, pods: list[str]) -> None:
    address = web.get("service", "web")["spec"]["clusterIP"]
    assert _fetch(web, pods[0], f"http://{address}/") in pods
    assert _fetch(web, pods[0], f"http://web.{web.namespace}.svc.cluster.local/") in pods
    seen = {_open(f"http://{address}/") for _ in range(30)}
    assert seen == set(pods)


def test_a_pod_reaches_itself_through_its_service(web: Kube, pods: list[str]) -> None:
    seen = {_fetch(web, pods[0], "http://web/") for _ in range(8)}
    assert pods[0] in seen


def test_a_headless_service_names_every_pod(web: Kube, pods: list[str]) -> None:
    script = "import socket; print(len({i[4][0] for i in socket.getaddrinfo('web-headless', 8080)}))"
    web.until("2 addresses", lambda: web.exec(pods[0], "python", "-c", script).strip() == "2", seconds=15)
    (found,) = web.items("endpointslices", "kubernetes.io/service-name=web-headless")
    assert [endpoint["conditions"]["ready"] for endpoint in found["endpoints"]] == [True, True]


def test_a_stateful_pod_has_a_name_of_its_own(web: Kube, pods: list[str]) -> None:
    assert _fetch(web, pods[0], "http://db-1.db:8080/") == "db-1"


def test_this_machine_reaches_pods_of_every_node(web: Kube, pods: list[str]) -> None:
    for pod in web.items("pods", "app=web"):
        assert _open(f"http://{pod['status']['podIP']}:8080/") == pod["metadata"]["name"]


def test_a_pod_uses_the_api_with_the_rights_of_its_account(web: Kube, image: str) -> None:
    web.run("create", "serviceaccount", "reader")
    web.run("create", "rolebinding", "reader", "--clusterrole=view", f"--serviceaccount={web.namespace}:reader")
    web.run(
        *("run", "reader", f"--image={image}", "--restart=Never", "--command"),
        *("--overrides", '{"spec": {"serviceAccountName": "reader"}}', "--", "python", "-c", _ASK_API),
    )
    web.until("the pod has ended", lambda: web.get("pod", "reader")["status"]["phase"] == "Succeeded")
    assert re.fullmatch(r"pods [1-9]\d* secrets 403\n", web.logs("reader"))


def test_too_much_memory_is_an_oom_kill(kube: Kube, image: str) -> None:
    kube.apply(f"""
apiVersion: v1
kind: Pod
metadata: {{name: hog}}
spec:
  restartPolicy: Never
  containers:
  - name: hog
    image: {image}
    command: [python, -c, "x = b'1' * (512 << 20)"]
    resources: {{limits: {{memory: 64Mi}}}}
""")

    def killed() -> bool:
        (status,) = kube.get("pod", "hog")["status"].get("containerStatuses") or [{}]
        return bool(status.get("state", {}).get("terminated", {}).get("reason") == "OOMKilled")

    kube.until("OOMKilled", killed, seconds=30)


def test_a_failing_liveness_probe_restarts_the_container(kube: Kube, image: str) -> None:
    kube.apply(f"""
apiVersion: v1
kind: Pod
metadata: {{name: sick}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: sick
    image: {image}
    command: [sleep, "3600"]
    livenessProbe: {{exec: {{command: [test, -e, /nothing]}}, periodSeconds: 1, failureThreshold: 2}}
""")

    def restarts() -> int:
        return sum(each["restartCount"] for each in kube.get("pod", "sick")["status"].get("containerStatuses", []))

    kube.until("a restart", restarts, seconds=40)


def test_every_process_of_the_cluster_runs(cluster: Settings) -> None:
    gone = [path.stem for path in cluster.run.glob("*.pid") if not path.read_text().strip()]
    assert not gone
