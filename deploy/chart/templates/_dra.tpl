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
