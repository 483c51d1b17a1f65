{{/* Name of the gateway's objects: the release's, with "cacheway" in it. A release `cacheway` has the overlays' names. */}}
{{- define "cacheway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "cacheway" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-cacheway" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Name of an object beside the gateway (list . NAME): NAME, or FULLNAME-NAME, so that two releases fit in one namespace. */}}
{{- define "cacheway.beside" -}}
{{- $fullname := include "cacheway.fullname" (index . 0) -}}
{{- if eq $fullname "cacheway" }}{{ index . 1 }}{{ else }}{{ printf "%s-%s" $fullname (index . 1) }}{{ end -}}
{{- end }}

{{/* Labels of every object; what selectors need stands beside them in each template. */}}
{{- define "cacheway.labels" -}}
app.kubernetes.io/part-of: cacheway
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "cacheway.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "cacheway.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (include "cacheway.fullname" .) }}
{{- end }}

{{/* Name of a Secret (list . KIND), KIND being admin, data, valkey or redis. */}}
{{- define "cacheway.secret" -}}
{{- $name := index (index . 0).Values.secrets.names (index . 1) -}}
{{- $name | default (printf "%s-%s" (include "cacheway.fullname" (index . 0)) (index . 1)) -}}
{{- end }}

{{/* "true" if there may be several replicas. */}}
{{- define "cacheway.replicated" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicas) 1) }}true{{ end -}}
{{- end }}

{{/* Settings as environment variables; what was set by hand goes before what an option brings. */}}
{{- define "cacheway.settings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- if .Values.kvEvents.enabled -}}
{{- $settings = merge $settings (dict "CACHEWAY_KV_EVENTS" "auto" "CACHEWAY_BLOCK_TOKENS" "64" "CACHEWAY_MODELS" "{'*': {tokenizer: engine}}") -}}
{{- end -}}
{{- with .Values.remotePrefill.workers -}}
{{- $settings = merge $settings (dict "CACHEWAY_PREFILL" (join " " .)) -}}
{{- end -}}
{{- range $name, $value := $settings }}
{{ $name }}: {{ toString $value | quote }}
{{- end -}}
{{- end }}

{{/* How a probe asks (list . NAME): a picker over gRPC, any other gateway by a path of the data port. */}}
{{- define "cacheway.probe" -}}
{{- $values := (index . 0).Values -}}
{{- if $values.picker.enabled -}}
grpc: {port: 9003, service: {{ index . 1 }}}
{{- else -}}
httpGet: {path: /{{ index . 1 }}, port: http{{ if $values.tls.secret }}, scheme: HTTPS{{ end }}}
{{- end -}}
{{- end }}

{{/* Time that Kubernetes gives a replica to end: the drain, the longest answer, and 10 s. */}}
{{- define "cacheway.graceSeconds" -}}
{{- add (int .Values.settings.CACHEWAY_SHUTDOWN_DELAY_SECS) (int .Values.settings.CACHEWAY_SHUTDOWN_GRACE_PERIOD_SECS) 10 -}}
{{- end }}

{{/* Names of the three Valkeys (list . SEPARATOR SUFFIX). */}}
{{- define "cacheway.valkeyPeers" -}}
{{- $name := include "cacheway.beside" (list (index . 0) "valkey") -}}
{{- $suffix := index . 2 -}}
{{- $peers := list -}}
{{- range $i := until 3 }}{{ $peers = append $peers (printf "%s-%d.%s%s" $name $i $name $suffix) }}{{ end -}}
{{- join (index . 1) $peers -}}
{{- end }}
