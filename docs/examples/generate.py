"""A Python client of FastServe: `.venv/bin/python docs/examples/generate.py HOST:PORT "def main"`.

Needs grpcio and the stubs of protos/fastserve/v1 (installed with fastserve); inference.proto documents everything.
"""

import sys

import grpc

from fastserve.v1.inference_pb2 import FinishReason, GenerateRequest, SamplingParams
from fastserve.v1.inference_pb2_grpc import InferenceServiceStub


def main(server: str, prompt: str) -> None:
    """Stream one completion to stdout."""
    sampling = SamplingParams(max_tokens=64, temperature=0.7, seed=1, stop=["\n\n\n"])
    with grpc.insecure_channel(server) as channel:
        # The deadline travels with the request: when it passes, the server frees what the request holds.
        for response in InferenceServiceStub(channel).Generate(
            GenerateRequest(text=prompt, sampling=sampling), timeout=60
        ):
            print(response.text, end="", flush=True)
            if response.HasField("usage"):
                reason = FinishReason.Name(response.finish_reason)
                print(
                    f"\n[{reason}, {response.usage.completion_tokens} tokens, preempted {response.usage.preemptions}x]"
                )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
