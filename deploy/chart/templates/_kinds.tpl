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

{{/* Reject kinds that do not exclude each other, and what all kinds have in common. */}}
{{- define "aosp-device-plugin.checkKinds" -}}
{{- $others := list -}}
{{- range $kind := include "aosp-device-plugin.kinds" . | fromJsonArray -}}
{{- range $other := $others -}}
{{- if eq $kind.Kind $other.Kind -}}
{{- fail (printf "nodes has two entries with the name %s" $kind.Kind) -}}
{{- end -}}
{{- $apart := false -}}
{{- range $label, $value := $kind.Values.nodeSelector -}}
{{- $selector := $other.Values.nodeSelector -}}
{{- if and (hasKey $selector $label) (ne $value (get $selector $label)) -}}{{- $apart = true -}}{{- end -}}
{{- end -}}
{{- if not $apart -}}
{{- fail (printf "nodes: %s and %s may select the same node, where their plugins would compete; give one label different values in their nodeSelector" $other.Kind $kind.Kind) -}}
{{- end -}}
{{- end -}}
{{- $others = append $others $kind -}}
{{- end -}}
{{- range $entry := .Values.nodes -}}
{{- range $key := list "node_events" "startup_taint" -}}
{{- if hasKey (default dict $entry.config) $key -}}
{{- fail (printf "entry %s of nodes: the rights for %s are those of all kinds of nodes; set config.%s instead" $entry.name $key $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
