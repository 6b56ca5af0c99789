// A small Kubernetes API server for tests: the published server library, etcd in the same process, no controllers.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	corev1 "k8s.io/api/core/v1"
	crdv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	crdopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kube-openapi/pkg/common"

	noop "go.opentelemetry.io/otel/trace/noop"

	generated "fastserve/testcluster/apiserver/openapi"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func startEtcd(dir string) string {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	address := listener.Addr().String()
	listener.Close()
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.UnsafeNoFsync = dir, "error", true
	client, peer := must(url.Parse("http://"+address)), must(url.Parse("http://127.0.0.1:0"))
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	etcd := must(embed.StartEtcd(c))
	<-etcd.Server.ReadyNotify()
	return client.String()
}

func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := crdopenapi.GetOpenAPIDefinitions(ref)
	for name, definition := range generated.GetOpenAPIDefinitions(ref) {
		all[name] = definition
	}
	return all
}

func main() {
	dir := flag.String("dir", "", "folder for data, certificate and kubeconfig")
	bind := flag.String("bind", "127.0.0.1", "address to listen on")
	port := flag.Int("port", 6443, "port to listen on")
	admin := flag.String("admin-token", "admin", "token of the administrator")
	flag.Parse()
	logs := filepath.Join(*dir, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		log.Fatal(err)
	}

	serving := genericoptions.NewSecureServingOptions().WithLoopback()
	serving.BindAddress, serving.BindPort, serving.ServerCert.CertDirectory = net.ParseIP(*bind), *port, *dir
	if err := serving.MaybeDefaultWithSelfSignedCerts(*bind, []string{"kubernetes.default.svc"}, []net.IP{net.ParseIP(*bind), net.ParseIP("127.0.0.1")}); err != nil {
		log.Fatal(err)
	}
	namer := openapinamer.NewDefinitionNamer(scheme, crdserver.Scheme)
	base := *storagebackend.NewDefaultConfig("/registry", nil)
	base.Transport.ServerList = []string{startEtcd(filepath.Join(*dir, "etcd"))}

	newConfig := func(config *genericapiserver.RecommendedConfig) {
		config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
		config.ExternalAddress = net.JoinHostPort(*bind, fmt.Sprint(*port))
		config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
		config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	}
	config := genericapiserver.NewRecommendedConfig(codecs)
	newConfig(config)
	if err := serving.ApplyTo(&config.SecureServing, &config.LoopbackClientConfig); err != nil {
		log.Fatal(err)
	}
	config.LoopbackClientConfig.ContentConfig.ContentType = runtime.ContentTypeJSON
	shared := informers.NewSharedInformerFactory(must(kubernetes.NewForConfig(config.LoopbackClientConfig)), 0)
	config.SharedInformerFactory = shared
	config.Authentication.Authenticator = group.NewAuthenticatedGroupAdder(bearertoken.New(tokens{*admin}))
	config.Authorization.Authorizer = &roleBased{shared}
	config.AdmissionControl = must(newGate(shared))
	config.RESTOptionsGetter = restOptions{base}
	// The listers that authorization and admission read.
	shared.Core().V1().Namespaces().Informer()
	shared.Rbac().V1().Roles().Informer()
	shared.Rbac().V1().RoleBindings().Informer()
	shared.Rbac().V1().ClusterRoles().Informer()
	shared.Rbac().V1().ClusterRoleBindings().Informer()

	crdConfig := genericapiserver.NewRecommendedConfig(crdserver.Codecs)
	newConfig(crdConfig)
	crdConfig.SecureServing, crdConfig.LoopbackClientConfig, crdConfig.SharedInformerFactory = config.SecureServing, config.LoopbackClientConfig, shared
	crdConfig.Authentication, crdConfig.Authorization, crdConfig.AdmissionControl = config.Authentication, config.Authorization, config.AdmissionControl
	crdConfig.MergedResourceConfig = crdserver.DefaultAPIResourceConfigSource()
	crdConfig.SkipOpenAPIInstallation = false
	etcdOptions := genericoptions.NewEtcdOptions(&base)
	etcdOptions.StorageConfig.Codec = crdserver.Codecs.LegacyCodec(crdv1.SchemeGroupVersion)
	etcdOptions.StorageConfig.EncodeVersioner = crdv1.SchemeGroupVersion
	if err := etcdOptions.ApplyTo(&crdConfig.Config); err != nil {
		log.Fatal(err)
	}
	extensions := must((&crdserver.Config{GenericConfig: crdConfig, ExtraConfig: crdserver.ExtraConfig{
		CRDRESTOptionsGetter: crdoptions.NewCRDRESTOptionsGetter(*etcdOptions, nil, crdConfig.StorageObjectCountTracker),
		AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, config.LoopbackClientConfig, noop.NewTracerProvider()),
	}}).Complete().New(genericapiserver.NewEmptyDelegate()))

	config.AggregatedDiscoveryGroupManager = extensions.GenericAPIServer.AggregatedDiscoveryGroupManager
	server := must(config.Complete().New("test-apiserver", extensions.GenericAPIServer))
	install(server, config, logs)
	server.AddPostStartHookOrDie("informers", func(hook genericapiserver.PostStartHookContext) error {
		shared.Start(hook.Done())
		shared.WaitForCacheSync(hook.Done())
		client := must(kubernetes.NewForConfig(config.LoopbackClientConfig))
		for _, name := range []string{"default", "kube-system"} {
			if _, err := client.CoreV1().Namespaces().Create(hook, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
		}
		return nil
	})
	writeKubeconfig(*dir, *bind, *port, *admin)
	stop := genericapiserver.SetupSignalContext()
	if err := server.PrepareRun().RunWithContext(stop); err != nil {
		log.Fatal(err)
	}
}

func install(server *genericapiserver.GenericAPIServer, config *genericapiserver.RecommendedConfig, logs string) {
	byGroup := map[string]*genericapiserver.APIGroupInfo{}
	stores := map[string]*genericregistry.Store{}
	for _, r := range resources {
		info, ok := byGroup[r.gv.Group]
		if !ok {
			made := genericapiserver.NewDefaultAPIGroupInfo(r.gv.Group, scheme, runtime.NewParameterCodec(scheme), codecs)
			info = &made
			info.VersionedResourcesStorageMap[r.gv.Version] = map[string]rest.Storage{}
			byGroup[r.gv.Group] = info
		}
		store := must(newStore(r, config.RESTOptionsGetter))
		stores[r.plural] = store
		storage := info.VersionedResourcesStorageMap[r.gv.Version]
		storage[r.plural] = &REST{store, r.short}
		if r.status {
			storage[r.plural+"/status"] = newStatusREST(store)
		}
		if r.scale {
			storage[r.plural+"/scale"] = &scaleREST{store}
		}
	}
	pods := byGroup[""].VersionedResourcesStorageMap["v1"]
	pods["pods/eviction"] = &evictionREST{stores["pods"], stores["poddisruptionbudgets"]}
	pods["pods/log"] = &logREST{stores["pods"], logs}
	if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, byGroup[""]); err != nil {
		log.Fatal(err)
	}
	for _, gv := range groups {
		if gv.Group == "" {
			continue
		}
		if err := server.InstallAPIGroups(byGroup[gv.Group]); err != nil {
			log.Fatal(err)
		}
	}
}

func writeKubeconfig(dir, bind string, port int, token string) {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://%s:%d", certificate-authority: %s}}]
users: [{name: admin, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: admin, namespace: default}}]
current-context: test
`, bind, port, filepath.Join(dir, "apiserver.crt"), token)
	if err := os.WriteFile(filepath.Join(dir, "kubeconfig"), []byte(text), 0o600); err != nil {
		log.Fatal(err)
	}
}
