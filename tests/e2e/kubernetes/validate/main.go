// Command validate processes manifests as the API server does: strict decoding, defaulting and validation.
//
// It reads YAML documents from standard input and writes each valid one as a line of JSON with its defaults. It writes
// the errors of the others to standard error, and exits with 1. Kinds that it does not know are errors.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	admissionvalidation "k8s.io/kubernetes/pkg/apis/admissionregistration/validation"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/rbac"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	rbacvalidation "k8s.io/kubernetes/pkg/apis/rbac/validation"
	"k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	resourcevalidation "k8s.io/kubernetes/pkg/apis/resource/validation"
	"k8s.io/kubernetes/pkg/capabilities"
)

var strict = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict)

func main() {
	// As an API server with --allow-privileged, the usual setting.
	capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true})
	documents := utilyaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	refused := false
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = accept(text)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			refused = true
		}
	}
	if refused {
		os.Exit(1)
	}
}

// accept validates one document and prints it.
func accept(text []byte) error {
	versioned, _, err := strict.UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return err
	}
	legacyscheme.Scheme.Default(versioned)
	meta := versioned.(metav1.Object)
	if meta.GetNamespace() == "" && !clusterWide(versioned) {
		meta.SetNamespace(metav1.NamespaceDefault)
	}
	group := versioned.GetObjectKind().GroupVersionKind().GroupKind().WithVersion(runtime.APIVersionInternal).GroupVersion()
	internal, err := legacyscheme.Scheme.ConvertToVersion(versioned, group)
	if err != nil {
		return err
	}
	problems, err := validate(internal)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return fmt.Errorf("%s %s: %w", versioned.GetObjectKind().GroupVersionKind().Kind, meta.GetName(), problems.ToAggregate())
	}
	return json.NewEncoder(os.Stdout).Encode(versioned)
}

func clusterWide(object runtime.Object) bool {
	switch object.GetObjectKind().GroupVersionKind().Kind {
	case "ClusterRole", "ClusterRoleBinding", "DeviceClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
		return true
	}
	return false
}

func validate(object runtime.Object) (field.ErrorList, error) {
	switch typed := object.(type) {
	case *apps.DaemonSet:
		return appsvalidation.ValidateDaemonSet(typed, podutil.GetValidationOptionsFromPodTemplate(&typed.Spec.Template, nil)), nil
	case *apps.StatefulSet:
		return appsvalidation.ValidateStatefulSet(typed, podutil.GetValidationOptionsFromPodTemplate(&typed.Spec.Template, nil)), nil
	case *batch.Job:
		// The API server generates a selector from the UID when it creates a Job, before it validates it.
		manual := true
		typed.Spec.ManualSelector = &manual
		typed.Spec.Selector = &metav1.LabelSelector{MatchLabels: typed.Spec.Template.Labels}
		options := podutil.GetValidationOptionsFromPodTemplate(&typed.Spec.Template, nil)
		return batchvalidation.ValidateJob(typed, batchvalidation.JobValidationOptions{PodValidationOptions: options}), nil
	case *core.ConfigMap:
		return corevalidation.ValidateConfigMap(typed), nil
	case *core.Pod:
		options := podutil.GetValidationOptionsFromPodSpecAndMeta(&typed.Spec, nil, &typed.ObjectMeta, nil)
		return corevalidation.ValidatePodCreate(typed, options), nil
	case *core.Service:
		// The API server does this when it creates a Service, before it validates it (normalizeClusterIPs).
		if typed.Spec.ClusterIP != "" && len(typed.Spec.ClusterIPs) == 0 {
			typed.Spec.ClusterIPs = []string{typed.Spec.ClusterIP}
		}
		return corevalidation.ValidateServiceCreate(typed), nil
	case *networking.NetworkPolicy:
		options := networkingvalidation.ValidationOptionsForNetworking(typed, nil)
		return networkingvalidation.ValidateNetworkPolicy(typed, options), nil
	case *core.ServiceAccount:
		return corevalidation.ValidateServiceAccount(typed), nil
	case *rbac.ClusterRole:
		return rbacvalidation.ValidateClusterRole(typed, rbacvalidation.ClusterRoleValidationOptions{}), nil
	case *rbac.Role:
		return rbacvalidation.ValidateRole(typed), nil
	case *rbac.RoleBinding:
		return rbacvalidation.ValidateRoleBinding(typed), nil
	case *rbac.ClusterRoleBinding:
		return rbacvalidation.ValidateClusterRoleBinding(typed), nil
	case *admissionregistration.ValidatingAdmissionPolicy:
		return admissionvalidation.ValidateValidatingAdmissionPolicy(typed), nil
	case *admissionregistration.ValidatingAdmissionPolicyBinding:
		return admissionvalidation.ValidateValidatingAdmissionPolicyBinding(typed), nil
	case *resource.DeviceClass:
		return resourcevalidation.ValidateDeviceClass(typed), nil
	case *resource.ResourceClaim:
		return resourcevalidation.ValidateResourceClaim(typed), nil
	case *resource.ResourceClaimTemplate:
		return resourcevalidation.ValidateResourceClaimTemplate(typed), nil
	default:
		return nil, fmt.Errorf("%T is not validated here", object)
	}
}
