package main

import (
	"context"
	"fmt"
	"reflect"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// restOptions gives every group its own storage codec.
type restOptions struct{ base storagebackend.Config }

func (o restOptions) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := o.base
	for _, r := range resources {
		if r.gv.Group == gr.Group && r.plural == gr.Resource {
			config.Codec, config.EncodeVersioner = codecs.LegacyCodec(r.gv), r.gv
		}
	}
	return generic.RESTOptions{
		StorageConfig:           config.ForResource(gr),
		Decorator:               genericregistry.StorageWithCacher(),
		DeleteCollectionWorkers: 1,
		ResourcePrefix:          "/" + gr.Group + "/" + gr.Resource,
	}, nil
}

func fresh(prototype runtime.Object) func() runtime.Object {
	kind := reflect.TypeOf(prototype).Elem()
	return func() runtime.Object { return reflect.New(kind).Interface().(runtime.Object) }
}

func part(o runtime.Object, name string) reflect.Value {
	return reflect.ValueOf(o).Elem().FieldByName(name)
}

// strategy is one for all kinds.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	r          resource
	statusOnly bool
}

func (s strategy) NamespaceScoped() bool                                     { return s.r.namespaced }
func (s strategy) AllowCreateOnUpdate() bool                                 { return s.r.kind == "Lease" }
func (s strategy) AllowUnconditionalUpdate() bool                            { return true }
func (s strategy) Canonicalize(runtime.Object)                               {}
func (s strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (s strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (s strategy) PrepareForCreate(_ context.Context, o runtime.Object) {
	accessor, _ := meta.Accessor(o)
	accessor.SetGeneration(1)
	if s.r.status {
		part(o, "Status").SetZero()
	}
	switch o := o.(type) {
	case *corev1.Pod:
		o.Status.Phase = corev1.PodPending
		o.Status.QOSClass = corev1.PodQOSBurstable
	case *corev1.Namespace:
		o.Status.Phase = corev1.NamespaceActive
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		o.Labels["kubernetes.io/metadata.name"] = o.Name
	case *corev1.Secret:
		for key, value := range o.StringData {
			if o.Data == nil {
				o.Data = map[string][]byte{}
			}
			o.Data[key] = []byte(value)
		}
		o.StringData = nil
	}
}

func (s strategy) Validate(_ context.Context, o runtime.Object) field.ErrorList {
	accessor, _ := meta.Accessor(o)
	errs := field.ErrorList{}
	for _, problem := range path.IsValidPathSegmentName(accessor.GetName()) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), accessor.GetName(), problem))
	}
	return errs
}

func (s strategy) PrepareForUpdate(_ context.Context, o, old runtime.Object) {
	accessor, _ := meta.Accessor(o)
	oldAccessor, _ := meta.Accessor(old)
	accessor.SetGeneration(oldAccessor.GetGeneration())
	if s.statusOnly {
		part(o, "Spec").Set(part(old, "Spec"))
		return
	}
	if s.r.status {
		part(o, "Status").Set(part(old, "Status"))
	}
	if spec := part(o, "Spec"); spec.IsValid() && !apiequality.Semantic.DeepEqual(spec.Interface(), part(old, "Spec").Interface()) {
		accessor.SetGeneration(oldAccessor.GetGeneration() + 1)
	}
}

func (s strategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

// CheckGracefulDelete: only pods live on after their deletion was asked for, if a node has them.
func (s strategy) CheckGracefulDelete(_ context.Context, o runtime.Object, options *metav1.DeleteOptions) bool {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return false
	}
	if options.GracePeriodSeconds == nil {
		options.GracePeriodSeconds = ptr.To(*pod.Spec.TerminationGracePeriodSeconds)
	}
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		options.GracePeriodSeconds = ptr.To(int64(0))
	}
	return true
}

func (s strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	name := "status"
	if s.statusOnly {
		name = "spec"
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(s.r.gv.String()): fieldpath.NewSet(fieldpath.MakePathOrDie(name))}
}

type REST struct {
	*genericregistry.Store
	short []string
}

func (r *REST) ShortNames() []string { return r.short }

func attributes(o runtime.Object) (labels.Set, fields.Set, error) {
	accessor, err := meta.Accessor(o)
	if err != nil {
		return nil, nil, err
	}
	set := fields.Set{"metadata.name": accessor.GetName(), "metadata.namespace": accessor.GetNamespace()}
	switch o := o.(type) {
	case *corev1.Pod:
		set["spec.nodeName"], set["status.phase"] = o.Spec.NodeName, string(o.Status.Phase)
	case *corev1.Event:
		i := o.InvolvedObject
		set["involvedObject.name"], set["involvedObject.namespace"], set["involvedObject.kind"], set["involvedObject.uid"] = i.Name, i.Namespace, i.Kind, string(i.UID)
		set["reason"], set["type"] = o.Reason, o.Type
	}
	return accessor.GetLabels(), set, nil
}

func newStore(r resource, getter generic.RESTOptionsGetter) (*genericregistry.Store, error) {
	s := strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, r: r}
	gr := r.gv.WithResource(r.plural).GroupResource()
	store := &genericregistry.Store{
		NewFunc: fresh(r.object), NewListFunc: fresh(r.list),
		DefaultQualifiedResource: gr, SingularQualifiedResource: r.gv.WithResource(r.singular).GroupResource(),
		PredicateFunc: func(l labels.Selector, f fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: l, Field: f, GetAttrs: attributes}
		},
		CreateStrategy: s, UpdateStrategy: s, DeleteStrategy: s,
		TableConvertor: rest.NewDefaultTableConvertor(gr),
	}
	if r.status {
		store.ResetFieldsStrategy = s
	}
	return store, store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: attributes})
}

type statusREST struct{ store *genericregistry.Store }

func newStatusREST(store *genericregistry.Store) *statusREST {
	copied := *store
	s := store.UpdateStrategy.(strategy)
	s.statusOnly = true
	copied.UpdateStrategy, copied.ResetFieldsStrategy = s, s
	return &statusREST{&copied}
}

func (r *statusREST) New() runtime.Object { return r.store.New() }
func (r *statusREST) Destroy()            {}
func (r *statusREST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, o)
}
func (r *statusREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, cv rest.ValidateObjectFunc, uv rest.ValidateObjectUpdateFunc, _ bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, cv, uv, false, o)
}
func (r *statusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}
func (r *statusREST) ConvertToTable(ctx context.Context, o, to runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, o, to)
}

// scaleREST is the scale subresource of whatever has spec.replicas, status.replicas and spec.selector.
type scaleREST struct{ store *genericregistry.Store }

func (r *scaleREST) New() runtime.Object                                          { return &autoscalingv1.Scale{} }
func (r *scaleREST) Destroy()                                                     {}
func (r *scaleREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind { return scaleKind }
func (r *scaleREST) ConvertToTable(ctx context.Context, o, to runtime.Object) (*metav1.Table, error) {
	return rest.NewDefaultTableConvertor(autoscalingv1.Resource("scale")).ConvertToTable(ctx, o, to)
}

func scaleOf(o runtime.Object) (*autoscalingv1.Scale, error) {
	accessor, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	selector, err := metav1.LabelSelectorAsSelector(part(o, "Spec").FieldByName("Selector").Interface().(*metav1.LabelSelector))
	if err != nil {
		return nil, err
	}
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: accessor.GetName(), Namespace: accessor.GetNamespace(), UID: accessor.GetUID(),
		ResourceVersion: accessor.GetResourceVersion(), CreationTimestamp: accessor.GetCreationTimestamp()}}
	scale.Spec.Replicas = *part(o, "Spec").FieldByName("Replicas").Interface().(*int32)
	scale.Status.Replicas, scale.Status.Selector = int32(part(o, "Status").FieldByName("Replicas").Int()), selector.String()
	return scale, nil
}

func (r *scaleREST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	object, err := r.store.Get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	return scaleOf(object)
}

type scaleUpdate struct {
	name string
	info rest.UpdatedObjectInfo
}

func (u *scaleUpdate) Preconditions() *metav1.Preconditions { return u.info.Preconditions() }
func (u *scaleUpdate) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	before, err := scaleOf(old)
	if err != nil {
		return nil, err
	}
	changed, err := u.info.UpdatedObject(ctx, before)
	if err != nil {
		return nil, err
	}
	scale, ok := changed.(*autoscalingv1.Scale)
	if !ok {
		return nil, errors.NewBadRequest(fmt.Sprintf("wrong object passed to Scale update: %T", changed))
	}
	if scale.Spec.Replicas < 0 {
		return nil, errors.NewInvalid(scaleKind.GroupKind(), u.name, field.ErrorList{field.Invalid(field.NewPath("spec", "replicas"), scale.Spec.Replicas, "must be greater than or equal to 0")})
	}
	object := old.DeepCopyObject()
	accessor, _ := meta.Accessor(object)
	if scale.ResourceVersion != "" {
		accessor.SetResourceVersion(scale.ResourceVersion)
	}
	part(object, "Spec").FieldByName("Replicas").Set(reflect.ValueOf(ptr.To(scale.Spec.Replicas)))
	return object, nil
}

func (r *scaleREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc, _ rest.ValidateObjectUpdateFunc, _ bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	object, _, err := r.store.Update(ctx, name, &scaleUpdate{name, info}, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, o)
	if err != nil {
		return nil, false, err
	}
	scale, err := scaleOf(object)
	return scale, false, err
}

// evictionREST asks the PodDisruptionBudgets whose status somebody else keeps.
type evictionREST struct{ pods, budgets *genericregistry.Store }

func (r *evictionREST) New() runtime.Object { return &policyv1.Eviction{} }
func (r *evictionREST) Destroy()            {}
func (r *evictionREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return evictionKind
}
func (r *evictionREST) Create(ctx context.Context, name string, o runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	object, err := r.pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	pod := object.(*corev1.Pod)
	list, err := r.budgets.List(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, budget := range list.(*policyv1.PodDisruptionBudgetList).Items {
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || budget.Namespace != pod.Namespace || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		taken := &budget
		if taken.Status.DisruptionsAllowed <= 0 {
			refusal := errors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
			refusal.ErrStatus.Details.Causes = append(refusal.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget " + taken.Name + " does not allow it now"})
			return nil, refusal
		}
		taken.Status.DisruptionsAllowed--
		if _, _, err := newStatusREST(r.budgets).Update(ctx, taken.Name, rest.DefaultUpdatedObjectInfo(taken), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); errors.IsConflict(err) {
			return nil, errors.NewTooManyRequests("Another eviction is under way", 0)
		} else if err != nil {
			return nil, err
		}
	}
	options := o.(*policyv1.Eviction).DeleteOptions
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	if _, _, err := r.pods.Delete(ctx, name, rest.ValidateAllObjectFunc, options); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}
