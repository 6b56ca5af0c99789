"""Whether an object is one that Kubernetes knows, field by field.

Kinds of Kubernetes itself are checked against its published schemas; a kind that these do not know must have a schema
of ours, in deploy/manifests/schemas, or it is refused.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

from deploy.manifests.rendering import Manifest

KUBERNETES_VERSION = "1.35"
OWN = Path(__file__).parent / "schemas"


@cache
def _own_schema(api_version: str, kind: str) -> Any:
    path = OWN / f"{kind.lower()}-{api_version.replace('/', '-')}.json"
    return json.loads(path.read_text()) if path.exists() else None


def named(one: Manifest) -> str:
    """`Deployment fastserve-gateway`."""
    return f"{one.get('kind')} {one.get('metadata', {}).get('name')}"


def schema_faults(objects: Sequence[Manifest]) -> list[str]:
    """What the schemas refuse, a line each."""
    faults: list[str] = []
    for one in objects:
        try:
            kubernetes_validate.validate(dict(one), KUBERNETES_VERSION, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            schema = _own_schema(str(one.get("apiVersion")), str(one.get("kind")))
            if schema is None:
                faults.append(f"{named(one)}: {one.get('apiVersion')} has no such kind, and we have no schema for it")
                continue
            for error in jsonschema.Draft202012Validator(schema).iter_errors(one):
                faults.append(f"{named(one)}: {error.json_path}: {error.message}")
        except kubernetes_validate.ValidationError as error:
            place = ".".join(str(part) for part in error.path)
            faults.append(f"{named(one)}: {place}: {error.message}")
    return faults
