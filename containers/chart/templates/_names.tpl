{{- define "clip.selector" -}}
app.kubernetes.io/name: clip-triton
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "clip.metadata" -}}
name: {{ .Release.Name }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "clip.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "clip.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "clip.claim" -}}
{{- if .Values.model.download -}}
{{ .Release.Name }}-models
{{- else -}}
{{ .Values.model.existingClaim }}
{{- end -}}
{{- end -}}
