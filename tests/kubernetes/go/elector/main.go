// The judge of the Lease: client-go's own election, as other programs of a cluster take part in one. It takes part until SIGTERM and then gives the
// Lease back; what it sees it writes, a line each: "leads TERM", "lost", "sees HOLDER".
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func say(format string, values ...any) {
	fmt.Printf("%.3f ", float64(time.Now().UnixMilli())/1000)
	fmt.Printf(format+"\n", values...)
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	namespace := flag.String("namespace", "fastserve", "namespace of the Lease")
	name := flag.String("lease", "fastserve-scheduler", "name of the Lease")
	identity := flag.String("identity", "judge", "what to write as the holder")
	duration := flag.Duration("duration", 4*time.Second, "time without a renewal after which others may take the Lease")
	deadline := flag.Duration("deadline", 3*time.Second, "time after which a leader that can't renew gives up")
	retry := flag.Duration("retry", 500*time.Millisecond, "time between two looks")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: *namespace, Name: *name},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: *identity},
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: *duration, RenewDeadline: *deadline, RetryPeriod: *retry, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				record, _, err := lock.Get(ctx)
				if err != nil {
					log.Fatal(err)
				}
				say("leads %d", record.LeaderTransitions+1)
			},
			OnStoppedLeading: func() { say("lost") },
			OnNewLeader:      func(holder string) { say("sees %s", holder) },
		},
	})
}
