{{/* "true" if the plugin writes Events or removes a taint, for which it needs rights on the Node. */}}
{{- define "aosp-device-plugin.writesNode" -}}
{{- if or .Values.config.node_events .Values.config.startup_taint -}}true{{- end -}}
{{- end }}

{{/* Reject a cluster without the policies that limit the plugin's token to its own Node. */}}
{{- define "aosp-device-plugin.checkNode" -}}
{{- if and (include "aosp-device-plugin.writesNode" .) (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "config.node_events and config.startup_taint require Kubernetes 1.30, whose ValidatingAdmissionPolicy limits the plugin to its own Node; this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end }}
