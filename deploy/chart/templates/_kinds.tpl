{{/*
The kinds of nodes: a list of contexts with the name (Kind) and the values of each entry of `nodes`, or with the values
alone if there is no entry. In the context of one kind the list has that kind only.
*/}}
{{- define "aosp-device-plugin.kinds" -}}
{{- $kinds := list -}}
{{- range .Values.nodes -}}
{{- $values := mergeOverwrite (omit $.Values "nodes" | deepCopy) (omit . "name") -}}
{{- $kinds = append $kinds (dict "Kind" .name "Values" $values) -}}
{{- else -}}
{{- $kinds = list (dict "Kind" (.Kind | default "") "Values" .Values) -}}
{{- end -}}
{{- toJson $kinds -}}
{{- end }}

{{/* The name of the objects of one kind of nodes. */}}
{{- define "aosp-device-plugin.kindName" -}}
{{ include "aosp-device-plugin.fullname" . }}{{ with .Kind }}-{{ . }}{{ end }}
{{- end }}
