"""The workers' object in Kubernetes: its /scale, and what else scales it."""

from typing import Any

from services.runtime.api_server_errors import ApiServerError
from services.runtime.kubernetes_api import api_call, connect, raw_call

GROUPS = {
    "StatefulSet": ("apps/v1", "statefulsets"),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
}
RIVALS = (
    ("HorizontalPodAutoscaler", "autoscaling/v2", "horizontalpodautoscalers"),
    ("ScaledObject", "keda.sh/v1alpha1", "scaledobjects"),
)


class KubernetesScale:
    """ScaledWorkers in the pod's namespace."""

    def __init__(self, kind: str, name: str) -> None:
        """Raises InvalidFieldError outside of a pod."""
        self._namespace = connect("autoscale")
        self._kind, self._name = kind, name
        version, self._plural = GROUPS[kind]
        self._path = f"/apis/{version}/namespaces/{self._namespace}/{self._plural}/{name}/scale"

    async def others(self) -> list[str]:
        """HorizontalPodAutoscalers and ScaledObjects of the object."""
        found: list[str] = []
        for kind, version, plural in RIVALS:
            path = f"/apis/{version}/namespaces/{self._namespace}/{plural}"
            # A kind that the cluster does not know has no objects.
            listed = await self._call("list", plural, "GET", path)
            for one in (listed or {}).get("items", []):
                reference = one["spec"]["scaleTargetRef"]
                if (reference.get("kind", "Deployment"), reference["name"]) == (self._kind, self._name):
                    found.append(f"{kind} {one['metadata']['name']}")
        return found

    async def replicas(self) -> int:
        """From /scale."""
        scale = await self._call("get", f"{self._plural}/scale", "GET", self._path)
        if scale is None:
            raise ApiServerError(f"there is no {self._kind} {self._name} in namespace {self._namespace}")
        return int(scale["spec"].get("replicas", 0))

    async def set_replicas(self, count: int) -> None:
        """To /scale."""
        await self._call("patch", f"{self._plural}/scale", "PATCH", self._path, {"spec": {"replicas": count}})

    async def _call(self, verb: str, resource: str, method: str, path: str, body: Any = None) -> Any:
        return await api_call(verb, resource, self._namespace, lambda: raw_call(method, path, body))
