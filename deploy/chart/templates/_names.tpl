{{- define "aosp-device-plugin.name" -}}
{{- .Chart.Name }}
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

{{/*
The labels of a pod that is not the plugin's, from its component and the context. It has another name, because the DaemonSet
adopts pods that its selector matches.
*/}}
{{- define "aosp-device-plugin.labelsOf" -}}
{{- $component := index . 0 -}}
{{- with index . 1 -}}
app.kubernetes.io/name: {{ include "aosp-device-plugin.name" . }}-{{ $component }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ $component }}
{{- with include "aosp-device-plugin.commonLabels" . }}
{{ . }}
{{- end }}
{{- end }}
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

{{/* "true" if a resource has found devices, which the plugin links. */}}
{{- define "aosp-device-plugin.found" -}}
{{- range (include "aosp-device-plugin.resources" . | fromJsonArray) }}{{ if not .phones }}true{{ end }}{{ end -}}
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

{{/* "true" if a resource has phones, which a privileged container mounts. */}}
{{- define "aosp-device-plugin.phones" -}}
{{- range (include "aosp-device-plugin.resources" . | fromJsonArray) -}}
{{- if .phones -}}true{{- end -}}
{{- end -}}
{{- end }}

{{/* "true" if the plugin itself is privileged. */}}
{{- define "aosp-device-plugin.privileged" -}}
{{- if eq .Values.provision.mode "plugin" -}}true{{- end -}}
{{- end }}

{{/* "true" if an init container mounts phones, and the plugin must not. */}}
{{- define "aosp-device-plugin.initContainer" -}}
{{- if and (eq .Values.provision.mode "init-container") (include "aosp-device-plugin.phones" .) -}}true{{- end -}}
{{- end }}

{{/* "true" if a privileged container beside the plugin mounts phones, and the plugin must not. */}}
{{- define "aosp-device-plugin.provisioner" -}}
{{- if and (eq .Values.provision.mode "provisioner") (include "aosp-device-plugin.phones" .) -}}true{{- end -}}
{{- end }}

{{/* The environment of the plugin of one kind of nodes. A check of its configuration depends on it, too. */}}
{{- define "aosp-device-plugin.environment" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
# Variables instead of flags, because `kubectl exec POD -- aosp-plugin status` reads them too.
- name: AOSP_PLUGIN_CONFIG
  value: /etc/aosp-plugin/config.yaml
# Probes and metrics. The page and /status are on 127.0.0.1 with the same port.
- name: AOSP_PLUGIN_LISTEN
  value: $(POD_IP):{{ .Values.port }}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- if ne (.Values.kubelet.rootDir | clean) "/var/lib/kubelet" }}
- name: AOSP_PLUGIN_KUBELET_DIR
  value: {{ .Values.kubelet.rootDir | clean }}/device-plugins
{{- end }}
{{- $init := eq "true" (include "aosp-device-plugin.initContainer" .) }}
{{- if or $init (include "aosp-device-plugin.provisioner" .) }}
# The plugin never tries to mount or create anything itself.
- name: AOSP_PLUGIN_PROVISIONED_BY
  value: {{ ternary "command" "provisioner" $init }}
{{- end }}
{{- end }}

{{- /*
The tolerations of pods that end: all taints with the effect NoSchedule, and those that the plugin tolerates by key. On a node
that is not ready they would wait. The admission plugin DefaultTolerationSeconds lets each pod tolerate such nodes, unless
it has a toleration with that key and effect, whatever its value (plugin/pkg/admission/defaulttolerationseconds). The taints
have no value, so one with a value tolerates nothing.
*/}}
{{- define "aosp-device-plugin.readyNodeTolerations" -}}
- operator: Exists
  effect: NoSchedule
{{- range list "not-ready" "unreachable" }}
- key: node.kubernetes.io/{{ . }}
  operator: Equal
  value: not-tolerated
  effect: NoExecute
{{- end }}
{{- range .Values.tolerations }}
{{- if .key }}
- {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The strategy of one kind of nodes. Two drivers of a node would wait for each other, and with hostNetwork the new pod for the
port of the old one; otherwise the old pod stays until the new one is ready.
*/}}
{{- define "aosp-device-plugin.updateStrategy" -}}
{{- $surge := not (or (include "aosp-device-plugin.dra" .) .Values.hostNetwork) -}}
{{- $rolling := dict "maxSurge" (ternary "10%" 0 $surge) "maxUnavailable" (ternary 0 "10%" $surge) -}}
{{- .Values.updateStrategy | default (dict "type" "RollingUpdate" "rollingUpdate" $rolling) | toYaml -}}
{{- end }}

{{/* "true" if the plugin writes Events or removes a taint, for which it needs rights on the Node. */}}
{{- define "aosp-device-plugin.writesNode" -}}
{{- if or .Values.config.node_events .Values.config.startup_taint -}}true{{- end -}}
{{- end }}
