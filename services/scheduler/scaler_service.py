"""KEDA's external scaler, by push: the leading scheduler says whether any worker group is wanted, and how many pods.

KEDA scales between none and the first pods by the activity, and has an HPA scale further by the metric. The HPA
divides the metric's value by its target: so the value is the pods of all groups that are wanted, and the target is 1.
(It leaves alone what is off by a tenth or less: from ten pods on, one more or less.)
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import ceil
from typing import Any, NamedTuple

import grpc

from fastserve.keda import externalscaler_pb2 as wire
from fastserve.keda import externalscaler_pb2_grpc
from services.domain.errors import AdmissionFullError, InvalidFieldError
from services.scheduler.policies.group_demand import Demand

EXTERNAL_SCALER = wire.DESCRIPTOR.services_by_name["ExternalScaler"].full_name
ACTIVITY_PERIOD_S = 0.1
"""How often a stream looks: a change is told within 0.2 s."""
MOST_STREAMS = 64
MOST_PODS_PER_GROUP = 64
RETRY_S = 2.0
GROUPS_WANTED = "groups_wanted"
BACKLOG_SECONDS = "backlog_seconds"
METRICS = (GROUPS_WANTED, BACKLOG_SECONDS)
KEYS_OF_KEDA = frozenset(
    {"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey", "tlsCertFile"}
)
KEYS = ("metric", "podsPerGroup")


class ScalerQuestion(NamedTuple):
    """What a ScaledObject's metadata asks for."""

    metric: str
    pods_per_group: int


def question_of(metadata: Mapping[str, str]) -> ScalerQuestion:
    """Reads scalerMetadata. Raises InvalidFieldError, whose field is the key."""
    for key in sorted(metadata):
        if key.removesuffix("FromEnv") not in KEYS_OF_KEDA and key not in KEYS:
            raise InvalidFieldError(f"scalerMetadata.{key[:64]}", f"there is no such key; there are {', '.join(KEYS)}")
    metric = metadata.get("metric", GROUPS_WANTED)
    if metric not in METRICS:
        raise InvalidFieldError("scalerMetadata.metric", f"must be one of {', '.join(METRICS)}, got {metric[:64]!r}")
    pods = metadata.get("podsPerGroup", "1")
    if not (pods.isascii() and pods.isdecimal() and len(pods) <= 4 and 1 <= int(pods) <= MOST_PODS_PER_GROUP):
        limits = f"must be a whole number from 1 to {MOST_PODS_PER_GROUP}"
        raise InvalidFieldError("scalerMetadata.podsPerGroup", f"{limits}, got {pods[:64]!r}")
    return ScalerQuestion(metric, int(pods))


class ExternalScaler(externalscaler_pb2_grpc.ExternalScalerServicer):
    """`demand` asks anew what is wanted; `check_leads` raises NotReadyError while this scheduler does not lead;
    `target_s` are the seconds of work a group. Must be created on the event loop.
    """

    def __init__(self, demand: Callable[[], Demand], check_leads: Callable[[], None], target_s: float) -> None:
        self._demand = demand
        self._check_leads = check_leads
        self._target_s = target_s
        self._handed_over = asyncio.Event()
        self._streams = 0

    def hand_over(self) -> None:
        """Ends all streams well: KEDA asks again, and reaches the next leader."""
        self._handed_over.set()

    async def IsActive(self, request: wire.ScaledObjectRef, context: Any) -> wire.IsActiveResponse:
        self._asked(request)
        return wire.IsActiveResponse(result=self._is_active())

    async def StreamIsActive(self, request: wire.ScaledObjectRef, context: Any) -> None:  # type: ignore[override]
        # Writes to the context instead of yielding: a call that is not a generator is cancelled at its await.
        self._asked(request)
        if self._streams >= MOST_STREAMS:
            raise AdmissionFullError(f"{MOST_STREAMS} streams are open already, which is the maximum", RETRY_S)
        self._streams += 1
        try:
            told: bool | None = None
            while not self._handed_over.is_set():
                is_active = self._is_active()
                if is_active is not told:
                    await context.write(wire.IsActiveResponse(result=is_active))
                    told = is_active
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._handed_over.wait(), ACTIVITY_PERIOD_S)
        finally:
            self._streams -= 1

    async def GetMetricSpec(self, request: wire.ScaledObjectRef, context: Any) -> wire.GetMetricSpecResponse:
        asked = self._asked(request)
        target = 1.0 if asked.metric == GROUPS_WANTED else self._target_s / asked.pods_per_group
        spec = wire.MetricSpec(metricName=asked.metric, targetSize=ceil(target), targetSizeFloat=target)
        return wire.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: wire.GetMetricsRequest, context: Any) -> wire.GetMetricsResponse:
        asked = self._asked(request.scaledObjectRef)
        if request.metricName != asked.metric:
            name = request.metricName[:64]
            raise InvalidFieldError("metricName", f"must be {asked.metric}, as GetMetricSpec says, got {name!r}")
        demand = self._demand()
        value = demand.backlog_s if asked.metric == BACKLOG_SECONDS else float(demand.wanted * asked.pods_per_group)
        one = wire.MetricValue(metricName=asked.metric, metricValue=ceil(value), metricValueFloat=value)
        return wire.GetMetricsResponse(metricValues=[one])

    def _asked(self, reference: wire.ScaledObjectRef) -> ScalerQuestion:
        self._check_leads()
        return question_of(reference.scalerMetadata)

    def _is_active(self) -> bool:
        return self._demand().wanted > 0


def register_scaler(server: grpc.aio.Server, scaler: ExternalScaler) -> None:
    """Adds the service to the server."""
    externalscaler_pb2_grpc.add_ExternalScalerServicer_to_server(scaler, server)
