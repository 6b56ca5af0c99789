"""Whether an object is one that Kubernetes knows, field by field.

Kinds of Kubernetes itself are checked against its published schemas; a kind that these do not know must have a schema
of ours, in deploy/manifests/schemas, or it is refused.
"""

import json
from collections.abc import Iterator, Sequence
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


def _templates(objects: Sequence[Manifest]) -> Iterator[Manifest]:
    """The pods of objects whose schema is ours: Kubernetes' own says what a pod is."""
    for one in objects:
        for part, template in one.get("spec", {}).get("leaderWorkerTemplate", {}).items():
            if part.endswith("Template"):
                name = f"{one['metadata']['name']} {part}"
                yield {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    **template,
                    "metadata": {**template["metadata"], "name": name},
                }


def schema_faults(objects: Sequence[Manifest]) -> list[str]:
    """What the schemas refuse, a line each."""
    return [fault for one in [*objects, *_templates(objects)] for fault in _faults_of(json.dumps(one, sort_keys=True))]


@cache
def _faults_of(document: str) -> tuple[str, ...]:
    """Of one object. Most renderings have most objects in common."""
    one: Manifest = json.loads(document)
    try:
        kubernetes_validate.validate(dict(one), KUBERNETES_VERSION, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        schema = _own_schema(str(one.get("apiVersion")), str(one.get("kind")))
        if schema is None:
            return (f"{named(one)}: {one.get('apiVersion')} has no such kind, and we have no schema for it",)
        errors = jsonschema.Draft202012Validator(schema).iter_errors(one)
        return tuple(f"{named(one)}: {error.json_path}: {error.message}" for error in errors)
    except kubernetes_validate.ValidationError as error:
        place = ".".join(str(part) for part in error.path)
        return (f"{named(one)}: {place}: {error.message}",)
    return ()
