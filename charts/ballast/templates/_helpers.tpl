{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- define "ballast.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels by which the operator's pods are selected: they never change. */ -}}
{{- define "ballast.selectorLabels" -}}
app.kubernetes.io/name: ballast
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- /* Every label of an object; takes a dict of root and, where wanted, component and extra. Ours win over the user's. */ -}}
{{- define "ballast.labels" -}}
{{- $ours := dict
  "app.kubernetes.io/name" "ballast"
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/component" (default "operator" .component)
  "app.kubernetes.io/part-of" "ballast"
  "app.kubernetes.io/managed-by" .root.Release.Service
  "app.kubernetes.io/version" .root.Chart.AppVersion
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_")
-}}
{{- toYaml (mergeOverwrite (dict) .root.Values.commonLabels (default (dict) .extra) $ours) -}}
{{- end -}}

{{- define "ballast.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "ballast.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.create is false: serviceAccount.name must name the ServiceAccount to use" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* An image reference; takes a dict of image and root. */ -}}
{{- define "ballast.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* Security contexts of the restricted Pod Security level. */ -}}
{{- define "ballast.podSecurityContext" -}}
runAsNonRoot: true
{{- with .Values.runAsUser }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "ballast.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* Fails where the Prometheus operator is not served; takes a dict of root and value. */ -}}
{{- define "ballast.requireMonitoring" -}}
{{- if not (.root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") -}}
{{- fail (printf "%s is true, but the cluster does not serve monitoring.coreos.com/v1: install the Prometheus operator first (helm template needs --api-versions monitoring.coreos.com/v1)" .value) -}}
{{- end -}}
{{- end -}}
