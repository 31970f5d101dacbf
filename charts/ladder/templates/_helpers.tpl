{{/* Named templates of all parts. A part is called with (dict "root" $ "name" "ladder-scheduler"). */}}

{{- define "ladder.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "ladder.labels" -}}
{{ include "ladder.selector" . }}
app.kubernetes.io/part-of: ladder
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_") }}
{{- end }}

{{/* An image: (dict "root" $ "image" .Values.image) */}}
{{- define "ladder.image" -}}
{{- $global := .root.Values.global.image -}}
{{- $name := printf "%s:%s" .image.repository ($global.tag | default .root.Chart.AppVersion) -}}
{{- $registry := $global.registry -}}
{{- if $registry }}{{ printf "%s/%s" (trimSuffix "/" $registry) $name }}{{ else }}{{ $name }}{{ end -}}
{{- end }}

{{/* What every Pod of an unprivileged part has beside its containers: (dict "root" $ "name" NAME "values" .Values) */}}
{{- define "ladder.podSpec" -}}
serviceAccountName: {{ .name }}
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* For containers that touch nothing of the host. */}}
{{- define "ladder.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* User names of the parts. */}}
{{- define "ladder.account" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ .name }}
{{- end }}

{{/* What a scheduler with Ladder in it may do beyond kube-scheduler: it reads policies and quotas, and keeps the records. */}}
{{- define "ladder.schedulerRules" -}}
- {apiGroups: [gpuladder.dev], resources: [acceleratorpolicies, policyrevisions, tenantquotas], verbs: [get, list, watch]}
- {apiGroups: [gpuladder.dev], resources: [allocationdecisions], verbs: [get, list, watch, create, update, patch]}
{{- end }}

{{/* A list of strings as the admission policies hold it: CEL in YAML's single quotes. */}}
{{- define "ladder.celList" -}}
'{{ . | toJson | replace "'" "''" }}'
{{- end }}

{{/*
A file of the catalog with this installation's names in it: (dict "root" $ "file" PATH).
The catalog's files are valid as they are and hold the names of an installation
in ladder-system; those are replaced.
*/}}
{{- define "ladder.catalogFile" -}}
{{- $labels := include "ladder.labels" (dict "root" .root "name" .component) | fromYaml | toJson -}}
{{- $text := .root.Files.Get .file | required (printf "%s is missing in the chart" .file) -}}
{{- range $account := list "ladder-scheduler" "ladder-controller" "ladder-driver" -}}
{{- $text = $text | replace (printf "system:serviceaccount:ladder-system:%s" $account) (include "ladder.account" (dict "root" $.root "name" $account)) -}}
{{- end -}}
{{- $text | replace "labels: {app.kubernetes.io/managed-by: ladder}" (printf "labels: %s" $labels) -}}
{{- end }}

{{/* The image of the driver that is installed, which has the programs of `helm test` too. */}}
{{- define "ladder.driverImage" -}}
{{ eq .Values.driver.kind "nvml" | ternary .Values.driver.nvml.image .Values.driver.image | toYaml }}
{{- end }}
