{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* Generated from ballast_operator.cluster.permissions by `make generate`. */ -}}
{{- define "ballast.watchedRules" -}}
- apiGroups: ["ballast.dev"]
  resources: [inferencemodels, weightbudgets]
  verbs: [get, list, watch, patch]
- apiGroups: ["ballast.dev"]
  resources: [inferencemodels/status, weightbudgets/status]
  verbs: [patch]
- apiGroups: ["ballast.dev"]
  resources: [inferencemodels/finalizers, weightbudgets/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods, services, configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: ["discovery.k8s.io"]
  resources: [endpointslices]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: ["discovery.k8s.io"]
  resources: [endpointslices/restricted]
  verbs: [create]
- apiGroups: ["policy"]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: ["events.k8s.io"]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
{{- end -}}

{{- define "ballast.ownRules" -}}
- apiGroups: ["coordination.k8s.io"]
  resources: [leases]
  verbs: [get, create, update]
{{- end -}}
