"""Calls to Kubernetes' API server through the `kubernetes` package: on a thread, with errors that say what to change.

Only who uses the API server imports this: the package takes 20 MB and a second.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from kubernetes import client
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.incluster_config import load_incluster_config
from urllib3.exceptions import HTTPError

from services.domain.errors import InvalidFieldError
from services.runtime.api_server_errors import ApiServerError, WriteConflictError

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
REQUEST_LIMIT_S = 2.0

AnswerT = TypeVar("AnswerT")


def connect(flag: str) -> str:
    """Reach the API server as a pod does, by its service account; the pod's namespace. `flag` is named in the
    InvalidFieldError that is raised outside of a pod.
    """
    try:
        load_incluster_config()  # type: ignore[no-untyped-call]
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except (ConfigException, OSError) as error:
        raise InvalidFieldError(flag, f"needs the service account of a pod: {error}") from None


async def api_call(verb: str, resource: str, namespace: str, request: Callable[[], AnswerT]) -> AnswerT | None:
    """The answer; None for an object that is not there. Raises ApiServerError, WriteConflictError."""
    try:
        return await asyncio.to_thread(request)
    except client.ApiException as error:
        if error.status == HTTPStatus.NOT_FOUND and verb != "create":
            return None
        if error.status == HTTPStatus.CONFLICT:
            raise WriteConflictError("the object was written by another") from None
        if error.status in (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED):
            raise ApiServerError(
                f"the service account may not {verb} {resource} in namespace {namespace}: give it a Role"
            ) from None
        raise ApiServerError(f"can't {verb} {resource}: the API server answers {error.status}") from None
    except (HTTPError, OSError) as error:
        raise ApiServerError(f"can't reach the API server: {error}") from None


def raw_call(method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """One request for any kind of object, as plain values."""
    headers = {"Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/merge-patch+json"
    api = client.ApiClient()
    request = api.param_serialize(method, path, header_params=headers, body=body, auth_settings=["BearerToken"])
    response = api.call_api(*request, _request_timeout=REQUEST_LIMIT_S)
    data = response.read()  # type: ignore[no-untyped-call]
    if not 200 <= response.status < 300:
        raise client.ApiException(status=response.status, reason=response.reason)
    return json.loads(data)
