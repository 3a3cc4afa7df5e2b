{{/* Reject values that cannot work, with the reason. Called once, from configmap.yaml. */}}
{{- define "aosp-device-plugin.check" -}}
{{- include "aosp-device-plugin.checkKinds" . -}}
{{- include "aosp-device-plugin.checkCluster" . -}}
{{- range (include "aosp-device-plugin.kinds" . | fromJsonArray) -}}
{{- include "aosp-device-plugin.checkKind" (merge . (omit $ "Values")) -}}
{{- end -}}
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
{{- $count := (default dict .Values.config.phones).count -}}
{{- $used := not .Values.nodes -}}
{{- range .Values.nodes -}}
{{- if not (hasKey (default dict (default dict .config).phones) "count") -}}{{- $used = true -}}{{- end -}}
{{- end -}}
{{- if and $count (not $used) -}}
{{- fail (printf "config.phones.count=%v has no effect, because each entry of nodes has a count of its own: set it there, and leave it out of config" $count) -}}
{{- end -}}
{{- range $entry := .Values.nodes -}}
{{- range $key := list "node_events" "startup_taint" -}}
{{- if hasKey (default dict $entry.config) $key -}}
{{- fail (printf "entry %s of nodes: the rights for %s are those of all kinds of nodes; set config.%s instead" $entry.name $key $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Reject what the cluster or the resources of all kinds of nodes do not have. */}}
{{- define "aosp-device-plugin.checkCluster" -}}
{{- $drivers := include "aosp-device-plugin.drivers" . | fromJsonArray -}}
{{- if and $drivers (not (.Capabilities.APIVersions.Has "resource.k8s.io/v1")) -}}
{{- fail (printf "config.api=dra requires the API resource.k8s.io/v1, which Kubernetes has from 1.34 on; this is %s. Without a cluster: helm template --api-versions resource.k8s.io/v1" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- $names := list -}}
{{- range $drivers -}}{{- $names = append $names .resource -}}{{- end -}}
{{- range $name, $class := .Values.dra.classes -}}
{{- if not (has $name $names) -}}
{{- fail (printf "dra.classes has %s, but no resource of that name has api: dra in config" $name) -}}
{{- end -}}
{{- end -}}
{{- if and (include "aosp-device-plugin.writesNode" .) (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "config.node_events and config.startup_taint require Kubernetes 1.30, whose ValidatingAdmissionPolicy limits the plugin to its own Node; this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end }}

{{/* Reject a configuration that requires rights or a mount that the pod of one kind of nodes would not have. */}}
{{- define "aosp-device-plugin.checkKind" -}}
{{- $config := .Values.config -}}
{{- $of := "" -}}
{{- with .Kind -}}{{- $of = printf "entry %s of nodes: " . -}}{{- end -}}
{{- $ours := dict "kubelet_dir" "kubelet.rootDir" "pod_resources_socket" "kubelet.rootDir" "provisioned_by" "provision.mode" -}}
{{- range $key, $value := $ours -}}
{{- if hasKey $config $key -}}
{{- fail (printf "%sconfig.%s depends on the rights and mounts of the pod: set %s instead" $of $key $value) -}}
{{- end -}}
{{- end -}}
{{- $privileged := eq "true" (include "aosp-device-plugin.privileged" .) -}}
{{- $plugin := "requires a privileged plugin: provision.mode=plugin (docs/deploy.md)" -}}
{{- $surge := dig "rollingUpdate" "maxSurge" 0 (.Values.updateStrategy | default dict) | toString -}}
{{- if not (has $surge (list "0" "0%")) -}}
{{- if include "aosp-device-plugin.dra" . -}}
{{- fail (printf "%supdateStrategy.rollingUpdate.maxSurge=%s: two DRA drivers of a node would wait for each other; choose 0" $of $surge) -}}
{{- end -}}
{{- if .Values.hostNetwork -}}
{{- fail (printf "updateStrategy.rollingUpdate.maxSurge=%s: with hostNetwork the new pod waits for the port of the old one; choose 0" $surge) -}}
{{- end -}}
{{- end -}}
{{- range (include "aosp-device-plugin.resources" . | fromJsonArray) -}}
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
