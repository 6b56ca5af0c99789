"""Generates an output for each of so many random JSON Schemas, through the real services, and has an independent
validator (the package jsonschema) check those that came to their end.

    python -m tests.e2e.guided_schemas --schemas 500 --out tests/e2e/guided_schemas.json
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jsonschema

from fastserve.v1 import inference_pb2 as api
from tests.builders.generate_requests import text_request
from tests.builders.repository_paths import BUNDLED
from tests.builders.schemas import Schema, schema_of
from tests.e2e.client import Client, client_of
from tests.e2e.cluster import running_cluster

PROMPT = '"""An example."""\n\nEXAMPLE = '
MOST_TOKENS = 192
AT_A_TIME = 20


async def outputs_of(client: Client, schemas: Sequence[Schema], seed: int = 0) -> list[str | None]:
    """The output for each schema; None if it did not come to its end."""
    requests = [
        text_request(
            PROMPT,
            max_tokens=MOST_TOKENS,
            temperature=0.0 if number % 4 == 0 else 0.8,
            seed=seed + number,
            ignore_eos=number % 3 == 0,
            guide=api.Guide(json_schema=json.dumps(schema)),
        )
        for number, schema in enumerate(schemas)
    ]
    made = await client.all(requests)
    return [one.text if one.finish_reason == api.FINISH_REASON_STOP else None for one in made]


def complaint(schema: Schema, text: str) -> str:
    """What is wrong with an output; empty if it is valid."""
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


async def _run(address: str, count: int) -> dict[str, object]:
    found: Counter[str] = Counter()
    complaints: list[object] = []
    async with client_of(address) as client:
        for first in range(0, count, AT_A_TIME):
            schemas = [schema_of(number) for number in range(first, min(first + AT_A_TIME, count))]
            for place, text in enumerate(await outputs_of(client, schemas, seed=first)):
                if text is None:
                    found["unfinished"] += 1
                    continue
                found["finished"] += 1
                if said := complaint(schemas[place], text):
                    complaints.append({"schema": first + place, "output": text, "complaint": said})
    return {"schemas": count, **found, "max_tokens": MOST_TOKENS, "invalid": complaints}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Outputs for random JSON Schemas, checked by an independent validator."
    )
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(argv)
    flags = ("--dtype", "float32", "--kv-device-tokens", "2048", "--kv-host-tokens", "16384")
    with (
        tempfile.TemporaryDirectory() as folder,
        running_cluster(BUNDLED, Path(folder), worker_flags=flags) as cluster,
    ):
        result = asyncio.run(_run(cluster.gateway_address, arguments.schemas))
        result["preemptions"] = cluster.status().counters.preemptions
    text = json.dumps(result, indent=2) + "\n"
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text)
    return 1 if result["invalid"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
