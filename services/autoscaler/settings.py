"""The autoscaler's settings."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from services.autoscaler.scaling import ScaleLimits
from services.runtime.settings import Address, Settings


def _checked_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return url


Url = Annotated[str, AfterValidator(_checked_url)]


class AutoscaleSettings(Settings):
    """Scales the worker groups on Kubernetes as the scheduler's forecast asks: for clusters without KEDA, and for
    groups of several pods.
    """

    forecast: Url = Field(description="URL of the scheduler's /metrics")
    listen: Address = Field("127.0.0.1:0", description="HOST:PORT of the health service; port 0 picks a free port")
    target_kind: Literal["StatefulSet", "LeaderWorkerSet"] = Field(
        "StatefulSet", description="kind of the workers' object"
    )
    target_name: str = Field("fastserve-worker", min_length=1, max_length=253, description="its name")
    pods_per_group: int = Field(
        1, ge=1, le=1024, description="replicas of the object per worker group: the stages; 1 for a LeaderWorkerSet"
    )
    least_groups: int = Field(1, ge=0, le=1024, description="minimum number of worker groups")
    most_groups: int = Field(4, ge=1, le=1024, description="maximum number of worker groups")
    quiet: float = Field(
        60.0, ge=0, le=86_400, description="seconds in which fewer groups must have sufficed before one leaves"
    )
    period: float = Field(1.0, ge=0.1, le=600, description="seconds between two looks at the forecast")

    @model_validator(mode="after")
    def _check(self) -> "AutoscaleSettings":
        if self.most_groups < self.least_groups:
            raise ValueError("--most-groups must be at least --least-groups")
        return self

    @property
    def limits(self) -> ScaleLimits:
        """The limits of the decision."""
        return ScaleLimits(self.least_groups, self.most_groups, self.quiet, self.pods_per_group)
