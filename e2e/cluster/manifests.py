# SPDX-License-Identifier: Apache-2.0
"""The configuration files of a node's programs, and what runs in the cluster itself."""

from __future__ import annotations

import json

from e2e.cluster.settings import COREDNS_IMAGE, PAUSE_IMAGE, Settings


def containerd(settings: Settings) -> str:
    """Configuration of containerd. restrict_oom_score_adj: not every machine's root may lower an OOM score."""
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{settings.cni_plugins}"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def cni(settings: Settings, number: int) -> str:
    """Pod network of a node. hairpinMode lets a pod reach itself through its own Service."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": settings.pod_network(number)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": ipam}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "ballast", "plugins": [bridge, ports]}, indent=1)


def kubelet(settings: Settings, number: int) -> str:
    """Configuration of the kubelet. Images are never collected, since nobody could pull them again."""
    name, folder = settings.node_name(number), settings.node_folder(number)
    return f"""\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {settings.node_address(number)}
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true, cacheTTL: 10s}}
  x509: {{clientCAFile: {settings.pki}/ca.crt}}
authorization: {{mode: Webhook}}
readOnlyPort: 0
healthzBindAddress: 127.0.0.1
tlsCertFile: {settings.pki}/{name}.crt
tlsPrivateKeyFile: {settings.pki}/{name}.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /{settings.name}/{name}
failCgroupV1: false
failSwapOn: false
clusterDNS: [{settings.dns_service}]
clusterDomain: cluster.local
resolvConf: {folder}/resolv.conf
evictionHard: {{memory.available: 100Mi, nodefs.available: 100Mi, imagefs.available: 100Mi, nodefs.inodesFree: 1%}}
evictionPressureTransitionPeriod: 10s
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 5s
oomScoreAdj: 0
"""


def proxy(settings: Settings, number: int) -> str:
    """Configuration of kube-proxy. The conntrack sysctls belong to the machine, not to a node's namespace."""
    return f"""\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {settings.proxy_mode}
hostnameOverride: {settings.node_name(number)}
bindAddress: {settings.node_address(number)}
clusterCIDR: {settings.pods}.0.0/16
clientConnection: {{kubeconfig: {settings.conf}/proxy.kubeconfig}}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
iptables: {{localhostNodePorts: false}}
oomScoreAdj: 0
"""


PROXY_BINDING = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: ballast-kube-proxy}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-proxier"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:kube-proxy"}]
"""


def coredns(settings: Settings) -> str:
    """Cluster DNS."""
    return f"""\
apiVersion: v1
kind: ServiceAccount
metadata: {{name: coredns, namespace: kube-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: "system:coredns"}}
rules:
- {{apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}}
- {{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: "system:coredns"}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:coredns"}}
subjects: [{{kind: ServiceAccount, name: coredns, namespace: kube-system}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: coredns, namespace: kube-system}}
data:
  Corefile: |
    .:53 {{
        errors
        health :8080
        ready :8181
        kubernetes cluster.local in-addr.arpa ip6.arpa {{
            pods insecure
            fallthrough in-addr.arpa ip6.arpa
            ttl 5
        }}
        cache 5
    }}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: coredns, namespace: kube-system, labels: {{k8s-app: kube-dns}}}}
spec:
  replicas: 1
  selector: {{matchLabels: {{k8s-app: kube-dns}}}}
  template:
    metadata: {{labels: {{k8s-app: kube-dns}}}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      priorityClassName: system-cluster-critical
      containers:
      - name: coredns
        image: {COREDNS_IMAGE}
        args: [-conf, /etc/coredns/Corefile]
        ports: [{{containerPort: 53, protocol: UDP}}, {{containerPort: 53, protocol: TCP}}]
        readinessProbe: {{httpGet: {{path: /ready, port: 8181}}, periodSeconds: 1}}
        resources: {{requests: {{cpu: 10m, memory: 32Mi}}, limits: {{memory: 128Mi}}}}
        volumeMounts: [{{name: config, mountPath: /etc/coredns, readOnly: true}}]
      volumes: [{{name: config, configMap: {{name: coredns}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: kube-dns, namespace: kube-system, labels: {{k8s-app: kube-dns}}}}
spec:
  clusterIP: {settings.dns_service}
  selector: {{k8s-app: kube-dns}}
  ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53, protocol: TCP}}]
"""
