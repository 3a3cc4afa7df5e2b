{{/* The resources with `api: dra`: name, and driver (phone.aosp.io of aosp.io/phone). */}}
{{- define "aosp-device-plugin.drivers" -}}
{{- $drivers := list -}}
{{- range (include "aosp-device-plugin.resources" . | fromJsonArray) -}}
{{- if eq (toString .api) "dra" -}}
{{- $parts := splitn "/" 2 .resource_name -}}
{{- $drivers = append $drivers (dict "resource" .resource_name "driver" (printf "%s.%s" $parts._1 $parts._0)) -}}
{{- end -}}
{{- end -}}
{{- uniq $drivers | toJson -}}
{{- end }}

{{/* "true" if a resource has `api: dra`. */}}
{{- define "aosp-device-plugin.dra" -}}
{{- if include "aosp-device-plugin.drivers" . | fromJsonArray -}}true{{- end -}}
{{- end }}

{{/* The names of the other resources, which the device plugin serves. */}}
{{- define "aosp-device-plugin.plainResources" -}}
{{- $names := list -}}
{{- range (include "aosp-device-plugin.resources" . | fromJsonArray) -}}
{{- if ne (toString .api) "dra" -}}{{- $names = append $names .resource_name -}}{{- end -}}
{{- end -}}
{{- uniq $names | toJson -}}
{{- end }}

{{/* Reject what DRA cannot work with. */}}
{{- define "aosp-device-plugin.checkDra" -}}
{{- $drivers := include "aosp-device-plugin.drivers" . | fromJsonArray -}}
{{- if and $drivers (not (.Capabilities.APIVersions.Has "resource.k8s.io/v1")) -}}
{{- fail (printf "config.api=dra requires the API resource.k8s.io/v1, which Kubernetes has from 1.34 on; this is %s. Without a cluster: helm template --api-versions resource.k8s.io/v1" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- $surge := dig "rollingUpdate" "maxSurge" 0 .Values.updateStrategy | toString -}}
{{- if and $drivers (not (has $surge (list "0" "0%"))) -}}
{{- fail (printf "updateStrategy.rollingUpdate.maxSurge=%s: two DRA drivers of a node would wait for each other; choose 0" $surge) -}}
{{- end -}}
{{- $names := list -}}
{{- range $drivers -}}{{- $names = append $names .resource -}}{{- end -}}
{{- if and .Values.hostNetwork (not (has $surge (list "0" "0%"))) -}}
{{- fail (printf "updateStrategy.rollingUpdate.maxSurge=%s: with hostNetwork the new pod waits for the port of the old one; choose 0" $surge) -}}
{{- end -}}
{{- range $name, $class := .Values.dra.classes -}}
{{- if not (has $name $names) -}}
{{- fail (printf "dra.classes has %s, but no resource of that name has api: dra in config" $name) -}}
{{- end -}}
{{- end -}}
{{- end }}
