package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	psa "k8s.io/pod-security-admission/api"
	psapolicy "k8s.io/pod-security-admission/policy"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/warning"
)

// tokens: the administrator's one, and "sa:NAMESPACE:NAME" for a service account. For tests on a loopback address only.
type tokens struct{ admin string }

func (t tokens) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	if token == t.admin {
		groups := []string{user.SystemPrivilegedGroup, user.AllAuthenticated}
		return &authenticator.Response{User: &user.DefaultInfo{Name: "admin", Groups: groups}}, true, nil
	}
	if part := strings.Split(token, ":"); len(part) == 3 && part[0] == "sa" {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "system:serviceaccount:" + part[1] + ":" + part[2],
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + part[1], user.AllAuthenticated}}}, true, nil
	}
	return nil, false, nil
}

// roleBased is RBAC over the Roles and bindings in the server itself.
type roleBased struct {
	informers informers.SharedInformerFactory
}

func (r *roleBased) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if slices.Contains(a.GetUser().GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	if !a.IsResourceRequest() {
		for _, open := range []string{"/api", "/openapi", "/version", "/healthz", "/livez", "/readyz"} {
			if a.IsReadOnly() && strings.HasPrefix(a.GetPath(), open) {
				return authorizer.DecisionAllow, "", nil
			}
		}
		return authorizer.DecisionNoOpinion, "no such path for it", nil
	}
	v1 := r.informers.Rbac().V1()
	clusterBindings, _ := v1.ClusterRoleBindings().Lister().List(labels.Everything())
	for _, b := range clusterBindings {
		if bound(b.Subjects, "", a.GetUser()) && covers(r.rules(b.RoleRef, ""), a) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	if a.GetNamespace() != "" {
		bindings, _ := v1.RoleBindings().Lister().RoleBindings(a.GetNamespace()).List(labels.Everything())
		for _, b := range bindings {
			if bound(b.Subjects, b.Namespace, a.GetUser()) && covers(r.rules(b.RoleRef, b.Namespace), a) {
				return authorizer.DecisionAllow, "", nil
			}
		}
	}
	return authorizer.DecisionNoOpinion, "no role allows it", nil
}

func (r *roleBased) rules(ref rbacv1.RoleRef, namespace string) []rbacv1.PolicyRule {
	if ref.Kind == "ClusterRole" {
		if role, err := r.informers.Rbac().V1().ClusterRoles().Lister().Get(ref.Name); err == nil {
			return role.Rules
		}
	} else if role, err := r.informers.Rbac().V1().Roles().Lister().Roles(namespace).Get(ref.Name); err == nil {
		return role.Rules
	}
	return nil
}

func bound(subjects []rbacv1.Subject, namespace string, u user.Info) bool {
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			where := s.Namespace
			if where == "" {
				where = namespace
			}
			if u.GetName() == "system:serviceaccount:"+where+":"+s.Name {
				return true
			}
		case rbacv1.GroupKind:
			if slices.Contains(u.GetGroups(), s.Name) {
				return true
			}
		default:
			if u.GetName() == s.Name {
				return true
			}
		}
	}
	return false
}

func has(list []string, wanted string) bool {
	return slices.Contains(list, wanted) || slices.Contains(list, "*")
}

func covers(rules []rbacv1.PolicyRule, a authorizer.Attributes) bool {
	resource := a.GetResource()
	if a.GetSubresource() != "" {
		resource += "/" + a.GetSubresource()
	}
	for _, rule := range rules {
		if has(rule.Verbs, a.GetVerb()) && has(rule.APIGroups, a.GetAPIGroup()) &&
			(has(rule.Resources, resource) || slices.Contains(rule.Resources, "*/"+a.GetSubresource())) &&
			(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName())) {
			return true
		}
	}
	return false
}

// gate is the admission: the namespace exists, and its Pod Security level holds.
type gate struct {
	informers informers.SharedInformerFactory
	pods      psapolicy.Evaluator
}

func newGate(i informers.SharedInformerFactory) (*gate, error) {
	pods, err := psapolicy.NewEvaluator(psapolicy.DefaultChecks(), nil)
	return &gate{i, pods}, err
}

func (g *gate) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (g *gate) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetNamespace() == "" || a.GetKind().Kind == "Namespace" || a.GetOperation() != admission.Create {
		return nil
	}
	namespace, err := g.informers.Core().V1().Namespaces().Lister().Get(a.GetNamespace())
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, a.GetNamespace())
	} else if err != nil {
		return err
	}
	open := psa.LevelVersion{Level: psa.LevelPrivileged, Version: psa.LatestVersion()}
	policies, _ := psa.PolicyToEvaluate(namespace.Labels, psa.Policy{Enforce: open, Warn: open, Audit: open})
	check := func(level psa.LevelVersion, m *metav1.ObjectMeta, s *corev1.PodSpec) string {
		result := psapolicy.AggregateCheckResults(g.pods.EvaluatePod(level, m, s))
		if result.Allowed {
			return ""
		}
		return fmt.Sprintf("violates PodSecurity %q: %s", level.String(), result.ForbiddenDetail())
	}
	switch o := a.GetObject().(type) {
	case *corev1.Pod:
		if why := check(policies.Enforce, &o.ObjectMeta, &o.Spec); why != "" && a.GetSubresource() == "" {
			return admission.NewForbidden(a, errors.New(why))
		}
	case *appsv1.Deployment:
		g.warn(ctx, check(policies.Warn, &o.Spec.Template.ObjectMeta, &o.Spec.Template.Spec))
	case *appsv1.StatefulSet:
		g.warn(ctx, check(policies.Warn, &o.Spec.Template.ObjectMeta, &o.Spec.Template.Spec))
	}
	return nil
}

func (g *gate) warn(ctx context.Context, why string) {
	if why != "" {
		warning.AddWarning(ctx, "", "would "+strings.Replace(why, "violates", "violate", 1))
	}
}
