{{- define "aosp-device-plugin.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "aosp-device-plugin.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := include "aosp-device-plugin.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "aosp-device-plugin.selectorLabels" -}}
app.kubernetes.io/name: {{ include "aosp-device-plugin.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- with .Kind }}
aosp.io/nodes: {{ . }}
{{- end }}
{{- end }}

{{/* `commonLabels`, in one line each; empty if there are none. */}}
{{- define "aosp-device-plugin.commonLabels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- define "aosp-device-plugin.labels" -}}
{{- with include "aosp-device-plugin.commonLabels" . }}
{{- . }}
{{ end -}}
{{ include "aosp-device-plugin.selectorLabels" . }}
app.kubernetes.io/component: device-plugin
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "aosp-device-plugin.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "aosp-device-plugin.fullname" .) }}
{{- else -}}
{{- if and (not .Values.serviceAccount.name) (include "aosp-device-plugin.usesApiServer" .) -}}
{{- fail "serviceAccount.create=false requires serviceAccount.name: api=dra, node_events and startup_taint bind rights to the account, and without a name that would be `default`, which other pods of the namespace have" -}}
{{- end -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{/* "true" if a feature uses the API server, so that the plugin's pods need a token. */}}
{{- define "aosp-device-plugin.usesApiServer" -}}
{{- if or (include "aosp-device-plugin.dra" .) (include "aosp-device-plugin.writesNode" .) -}}true{{- end -}}
{{- end }}

{{- define "aosp-device-plugin.image" -}}
{{- if not .Values.image.repository -}}
{{- fail (include "aosp-device-plugin.noImage" .) -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "aosp-device-plugin.noImage" -}}
image.repository is not set: this chart is that of a source checkout, which names no published image.
Either use the chart of a release, or build the image with `make image`, and then
- push it to a registry, and set image.repository=REGISTRY/aosp-device-plugin
- or import the archive from build/ on each node (`ctr --namespace k8s.io images import FILE`, `k3s ctr images import FILE`,
  `minikube image load FILE`), and set image.repository=localhost/aosp-device-plugin
See docs/deploy.md.
{{- end }}

{{/*
The name of each resource, and its settings that require rights; an entry of resources overrides the top level. In the
context of one kind of nodes its resources, otherwise those of all kinds.
*/}}
{{- define "aosp-device-plugin.resources" -}}
{{- $settings := list -}}
{{- range (include "aosp-device-plugin.kinds" . | fromJsonArray) -}}
{{- $config := .Values.config -}}
{{- range $entry := default (list (dict)) $config.resources -}}
{{- $setting := dict -}}
{{- range $key := list "resource_name" "api" "phones" "recreate" "verify" "device_list" -}}
{{- $_ := set $setting $key (get (ternary $entry $config (hasKey $entry $key)) $key) -}}
{{- end -}}
{{- /* The plugin's default. */ -}}
{{- $name := ternary "aosp.io/binder" "aosp.io/phone" (empty $setting.phones) -}}
{{- $settings = append $settings (set $setting "resource_name" ($setting.resource_name | default $name)) -}}
{{- end -}}
{{- end -}}
{{- toJson $settings -}}
{{- end }}

{{/* The names of the resources that pods request. */}}
{{- define "aosp-device-plugin.resourceNames" -}}
{{- $names := list -}}
{{- range (include "aosp-device-plugin.resources" . | fromJsonArray) -}}
{{- $names = append $names .resource_name -}}
{{- end -}}
{{- uniq $names | toJson -}}
{{- end }}

{{/* "true" if a resource uses CDI names, whose spec files require a mount. */}}
{{- define "aosp-device-plugin.cdi" -}}
{{- range (include "aosp-device-plugin.resources" . | fromJsonArray) -}}
{{- range (default list .device_list) -}}
{{- if hasPrefix "cdi-" . -}}true{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* "true" if the plugin itself is privileged. */}}
{{- define "aosp-device-plugin.privileged" -}}
{{- if and .Values.provision.enabled (eq .Values.provision.mode "plugin") -}}true{{- end -}}
{{- end }}

{{/* "true" if an init container mounts phones, and the plugin must not. */}}
{{- define "aosp-device-plugin.initContainer" -}}
{{- if and .Values.provision.enabled (eq .Values.provision.mode "init-container") -}}true{{- end -}}
{{- end }}

{{/* "true" if a privileged container beside the plugin mounts phones, and the plugin must not. */}}
{{- define "aosp-device-plugin.provisioner" -}}
{{- if and .Values.provision.enabled (eq .Values.provision.mode "provisioner") -}}true{{- end -}}
{{- end }}

{{/* Reject a configuration that requires rights or a mount that the pod would not have. */}}
{{- define "aosp-device-plugin.check" -}}
{{- $config := .Values.config -}}
{{- $of := "" -}}
{{- with .Kind -}}{{- $of = printf "entry %s of nodes: " . -}}{{- end -}}
{{- $ours := dict "kubelet_dir" "kubelet.rootDir and kubelet.devicePluginsDir" "pod_resources_socket" "kubelet.rootDir" -}}
{{- range $key, $value := merge $ours (dict "provisioned_by" "provision.mode") -}}
{{- if hasKey $config $key -}}
{{- fail (printf "%sconfig.%s depends on the rights and mounts of the pod: set %s instead" $of $key $value) -}}
{{- end -}}
{{- end -}}
{{- $privileged := eq "true" (include "aosp-device-plugin.privileged" .) -}}
{{- $enabled := "requires provision.enabled=true (docs/deploy.md)" -}}
{{- $plugin := "requires a privileged plugin: provision.enabled=true and provision.mode=plugin (docs/deploy.md)" -}}
{{- $made := false -}}
{{- range (include "aosp-device-plugin.resources" . | fromJsonArray) -}}
{{- if .phones -}}{{- $made = true -}}{{- end -}}
{{- end -}}
{{- if and .Values.provision.enabled (ne .Values.provision.mode "plugin") (not $made) -}}
{{- fail (printf "%sprovision.enabled=true has nothing to provision: set config.phones.count, or provision.enabled=false to allocate devices that the host has" $of) -}}
{{- end -}}
{{- range (include "aosp-device-plugin.resources" . | fromJsonArray) -}}
{{- if and .phones (not $.Values.provision.enabled) -}}
{{- fail (printf "%sconfig.phones mounts file systems on the host and %s" $of $enabled) -}}
{{- end -}}
{{- if and .phones (eq (toString .api) "dra") (not $privileged) -}}
{{- fail (printf "%sconfig.phones with api=dra mounts a file system for each claim and %s" $of $plugin) -}}
{{- end -}}
{{- $mounts := and .phones (include "aosp-device-plugin.provisioner" $) -}}
{{- if and (eq (toString .recreate) "on-start") (not (or $privileged $mounts)) -}}
{{- fail (printf "%sconfig.recreate=on-start creates binder devices on the host and %s" $of $plugin) -}}
{{- end -}}
{{- if and (eq (toString .verify) "probe") (not $privileged) -}}
{{- fail (printf "%sconfig.verify=probe opens binder devices of the host and %s" $of $plugin) -}}
{{- end -}}
{{- $directory := dig "directory" "/run/aosp-binderfs/phones" (default dict .phones) -}}
{{- if not (hasPrefix "/run/aosp-binderfs/" $directory) -}}
{{- fail (printf "%sconfig.phones.directory %s is not in a volume of the pod; choose a directory below /run/aosp-binderfs" $of $directory) -}}
{{- end -}}
{{- end -}}
{{- end }}
