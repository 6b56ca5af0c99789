package main

import (
	"fmt"
	"net/url"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/ptr"
)

// External types are registered a second time as the internal version of their group, so that no conversion is needed.
var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	for _, gv := range groups {
		metav1.AddToGroupVersion(scheme, gv)
		utilruntime.Must(scheme.SetVersionPriority(gv))
	}
	unversioned := schema.GroupVersion{Version: "v1"}
	scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	utilruntime.Must(metainternal.AddToScheme(scheme))
	both := func(gv schema.GroupVersion, kind string, object runtime.Object) {
		scheme.AddKnownTypeWithName(gv.WithKind(kind), object)
		scheme.AddKnownTypeWithName(schema.GroupVersionKind{Group: gv.Group, Version: runtime.APIVersionInternal, Kind: kind}, object)
	}
	for _, r := range resources {
		both(r.gv, r.kind, r.object)
		both(r.gv, r.kind+"List", r.list)
	}
	both(autoscalingv1.SchemeGroupVersion, "Scale", &autoscalingv1.Scale{})
	both(policyv1.SchemeGroupVersion, "Eviction", &policyv1.Eviction{})
	scheme.AddKnownTypes(core, &corev1.PodLogOptions{})
	utilruntime.Must(scheme.AddConversionFunc((*url.Values)(nil), (*corev1.PodLogOptions)(nil), func(a, b any, _ conversion.Scope) error {
		in, out := *a.(*url.Values), b.(*corev1.PodLogOptions)
		out.Container, out.Follow, out.Previous = in.Get("container"), in.Get("follow") == "true", in.Get("previous") == "true"
		return nil
	}))
	fields := func(gvk schema.GroupVersionKind, known ...string) {
		utilruntime.Must(scheme.AddFieldLabelConversionFunc(gvk, func(label, value string) (string, string, error) {
			for _, one := range append(known, "metadata.name", "metadata.namespace") {
				if one == label {
					return label, value, nil
				}
			}
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}))
	}
	fields(core.WithKind("Pod"), "spec.nodeName", "status.phase")
	fields(core.WithKind("Event"), "involvedObject.name", "involvedObject.namespace", "involvedObject.kind", "involvedObject.uid", "reason", "type")
	addDefaults()
}

func addDefaults() {
	add := scheme.AddTypeDefaultingFunc
	add(&corev1.Pod{}, func(o any) { defaultPodSpec(&o.(*corev1.Pod).Spec) })
	add(&appsv1.Deployment{}, func(o any) {
		d := o.(*appsv1.Deployment)
		setDefault(&d.Spec.Replicas, 1)
		setDefault(&d.Spec.RevisionHistoryLimit, 10)
		setDefault(&d.Spec.ProgressDeadlineSeconds, 600)
		if d.Spec.Strategy.Type == "" {
			d.Spec.Strategy.Type = appsv1.RollingUpdateDeploymentStrategyType
		}
		if d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
			if d.Spec.Strategy.RollingUpdate == nil {
				d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{}
			}
			setDefault(&d.Spec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
			setDefault(&d.Spec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		}
		defaultPodSpec(&d.Spec.Template.Spec)
	})
	add(&appsv1.ReplicaSet{}, func(o any) {
		setDefault(&o.(*appsv1.ReplicaSet).Spec.Replicas, 1)
		defaultPodSpec(&o.(*appsv1.ReplicaSet).Spec.Template.Spec)
	})
	add(&appsv1.StatefulSet{}, func(o any) {
		s := o.(*appsv1.StatefulSet)
		setDefault(&s.Spec.Replicas, 1)
		setDefault(&s.Spec.RevisionHistoryLimit, 10)
		if s.Spec.PodManagementPolicy == "" {
			s.Spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
		}
		if s.Spec.UpdateStrategy.Type == "" {
			s.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		}
		defaultPodSpec(&s.Spec.Template.Spec)
	})
	add(&corev1.Service{}, func(o any) {
		s := &o.(*corev1.Service).Spec
		if s.Type == "" {
			s.Type = corev1.ServiceTypeClusterIP
		}
		if s.SessionAffinity == "" {
			s.SessionAffinity = corev1.ServiceAffinityNone
		}
		setDefault(&s.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
		for i := range s.Ports {
			if s.Ports[i].Protocol == "" {
				s.Ports[i].Protocol = corev1.ProtocolTCP
			}
			if s.Ports[i].TargetPort == (intstr.IntOrString{}) {
				s.Ports[i].TargetPort = intstr.FromInt32(s.Ports[i].Port)
			}
		}
	})
	add(&autoscalingv2.HorizontalPodAutoscaler{}, func(o any) {
		setDefault(&o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MinReplicas, 1)
	})
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = ptr.To(value)
	}
}

func defaultPodSpec(s *corev1.PodSpec) {
	if s.RestartPolicy == "" {
		s.RestartPolicy = corev1.RestartPolicyAlways
	}
	if s.DNSPolicy == "" {
		s.DNSPolicy = corev1.DNSClusterFirst
	}
	if s.SchedulerName == "" {
		s.SchedulerName = corev1.DefaultSchedulerName
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	setDefault(&s.TerminationGracePeriodSeconds, 30)
	setDefault(&s.EnableServiceLinks, true)
	for _, containers := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range containers {
			defaultContainer(&containers[i])
		}
	}
}

func defaultContainer(c *corev1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = corev1.PullIfNotPresent
	}
	if c.TerminationMessagePath == "" {
		c.TerminationMessagePath = "/dev/termination-log"
	}
	if c.TerminationMessagePolicy == "" {
		c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
	}
	for i := range c.Ports {
		if c.Ports[i].Protocol == "" {
			c.Ports[i].Protocol = corev1.ProtocolTCP
		}
	}
	for _, list := range []corev1.ResourceList{c.Resources.Limits} {
		for name, quantity := range list {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			if _, ok := c.Resources.Requests[name]; !ok {
				c.Resources.Requests[name] = quantity
			}
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p == nil {
			continue
		}
		for _, f := range []struct {
			field *int32
			value int32
		}{{&p.TimeoutSeconds, 1}, {&p.PeriodSeconds, 10}, {&p.SuccessThreshold, 1}, {&p.FailureThreshold, 3}} {
			if *f.field == 0 {
				*f.field = f.value
			}
		}
		if p.GRPC != nil && p.GRPC.Service == nil {
			p.GRPC.Service = ptr.To("")
		}
		if p.HTTPGet != nil && p.HTTPGet.Scheme == "" {
			p.HTTPGet.Scheme = corev1.URISchemeHTTP
		}
	}
}
