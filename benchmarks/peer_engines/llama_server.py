"""llama.cpp's server: a process that this one asks over HTTP, a thread for each job under way.

Weights are bfloat16, the KV cache is half-precision (its kernels' own format on CPUs), a part for each slot. In one
cache for all slots, the tokens of jobs that have ended would stay, and attention walks over them: after a trace, one
stream was decoded at two thirds and a prompt computed at a third of the speed. Only the tokens of watched jobs are
streamed: the others cost this side nothing while the model computes.
"""

import ctypes
import http.client
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.peer_engines.engine_settings import PeerSettings

SERVER = Path("built") / "bin" / "llama-server"
"""Below the environment's folder."""
MODEL = "model-whole-texts.gguf"
SLOT_TOKENS = 1024
"""More than any job of the benchmark has. All slots together have more than `kv_tokens`, which is an advantage."""
HOST = "127.0.0.1"
START_LIMIT_S = 120.0
ANSWER_LIMIT_S = 900.0
LOOK_S = 0.1
_PR_SET_PDEATHSIG = 1


class LlamaServerError(Exception):
    """The server did not start, or refused a request."""


class LlamaServer:
    """The server's answers, as they come."""

    def __init__(self, settings: PeerSettings) -> None:
        file = settings.made / MODEL
        if not file.exists():
            from benchmarks.peer_engines.gguf_file import write_gguf  # needs gguf, which only the peer has

            write_gguf(settings.model, file)
        argv = [str(Path(sys.prefix) / SERVER), "--model", str(file), "--host", HOST, "--port", "0"]
        argv += ["--threads", str(settings.threads), "--threads-batch", str(settings.threads)]
        tokens = max(settings.kv_tokens, SLOT_TOKENS * settings.max_batch)
        argv += ["--ctx-size", str(tokens), "--no-kv-unified", "--parallel", str(settings.max_batch)]
        argv += ["--flash-attn", "on", "--batch-size", "2048", "--ubatch-size", "512", "--no-cache-prompt"]
        argv += ["--cache-ram", "0", "--no-ui", "--offline", "--fit", "off"]
        self._process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=_die_with_parent
        )
        self._port = 0
        self._results: queue.Queue[tuple[int, Sequence[int]] | Exception] = queue.Queue()
        threading.Thread(target=self._read_log, daemon=True).start()
        began_s = time.monotonic()
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() - began_s > START_LIMIT_S:
                raise LlamaServerError("llama-server did not start")
            time.sleep(LOOK_S)

    def _read_log(self) -> None:
        assert self._process.stderr is not None, "stderr is a pipe"
        for line in self._process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            _, found, address = line.partition("listening on http://")
            if found:
                self._port = int(address.split()[0].rpartition(":")[2].rstrip("/"))

    def _healthy(self) -> bool:
        if not self._port:
            return False
        connection = http.client.HTTPConnection(HOST, self._port, timeout=ANSWER_LIMIT_S)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200

    def add(self, number: int, prompt: Sequence[int], output_tokens: int, watched: bool) -> None:
        """See PeerEngine."""
        body = json.dumps(
            {
                "prompt": list(prompt),
                "n_predict": output_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
                "cache_prompt": False,
                "return_tokens": True,
                "stream": watched,
            }
        )
        threading.Thread(target=self._ask, args=(number, body, watched), daemon=True).start()

    def _ask(self, number: int, body: str, streamed: bool) -> None:
        try:
            connection = http.client.HTTPConnection(HOST, self._port, timeout=ANSWER_LIMIT_S)
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise LlamaServerError(response.read().decode("utf-8", "replace"))
            for token_ids in streamed_tokens(response) if streamed else [json.loads(response.read())["tokens"]]:
                self._results.put((number, token_ids))
        except Exception as error:  # whatever it is, nobody else would tell the driver
            self._results.put(error)

    def step(self, limit_s: float) -> list[tuple[int, Sequence[int]]]:
        """See PeerEngine. Raises the error of a request that failed."""
        try:
            one = self._results.get(timeout=limit_s) if limit_s > 0 else self._results.get_nowait()
        except queue.Empty:
            return []
        if isinstance(one, Exception):
            raise one
        return [one]


def streamed_tokens(lines: Iterable[bytes]) -> Iterator[list[int]]:
    """The tokens of an answer's events, as they come. Raises LlamaServerError if the last event tells of another number
    of tokens, or there is none.
    """
    seen = 0
    for line in lines:
        if line.startswith(b"data: "):
            event = json.loads(line.removeprefix(b"data: "))
            if event["tokens"]:
                seen += len(event["tokens"])
                yield event["tokens"]
            if event["stop"]:
                if seen != event["tokens_predicted"]:
                    raise LlamaServerError(f"llama-server streamed {seen} of {event['tokens_predicted']} tokens")
                return
    raise LlamaServerError(f"llama-server ended its answer after {seen} tokens")


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def engine(settings: PeerSettings) -> LlamaServer:
    """The server of a model that is loaded."""
    return LlamaServer(settings)
