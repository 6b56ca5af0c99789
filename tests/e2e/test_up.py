"""`fastserve up` with the real services: its one line, `fastserve generate` through it, its restarts and its end."""

import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.builders.api_keys import add_key
from tests.builders.certificates import CertificateAuthority, IssuedFiles
from tests.builders.waits import wait_until
from tests.runtime.tls.shown_certificates import bytes_from, shown_serial

pytestmark = pytest.mark.timeout(240)

LIMIT_S = 120.0
SERVICES = {"gateway", "scheduler", "kvmanager", "worker", "rest"}
READY_LINE = re.compile(
    r"ready grpc=(127\.0\.0\.1:[1-9]\d*) http=(127\.0\.0\.1:[1-9]\d*) metrics=(127\.0\.0\.1:[1-9]\d*)\n"
)
FASTSERVE = (sys.executable, "-m", "services.cli")


class Up:
    """One `fastserve up` of the bundled model."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.log_path = folder / "log"
        flags = (
            "--grpc-port",
            "0",
            "--http-port",
            "0",
            "--metrics-port",
            "0",
            "--threads",
            "1",
            "--kv-device-tokens",
            "16384",
            *more,
        )
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [*FASTSERVE, "up", *flags], stdout=subprocess.PIPE, stderr=log, text=True, env=environment()
            )

    def wait_ready(self) -> str:
        """The gateway's address."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = READY_LINE.fullmatch(line)
        assert match, f"{line!r}\n{self.log()}"
        self.http = match[2]
        return match[1]

    def log(self) -> str:
        return self.log_path.read_text()

    def children(self) -> dict[int, str]:
        """Its services by process id."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                words = (stat.parent / "cmdline").read_text().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == self.process.pid and "-m" in words:
                found[int(stat.parent.name)] = words[words.index("-m") + 1].removeprefix("services.")
            elif parent == self.process.pid:
                found[int(stat.parent.name)] = Path(words[0]).name.removeprefix("fastserve-")
        return found

    def ended(self) -> tuple[int, str]:
        """Exit code, and what was on stdout after the line of readiness."""
        out, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def generate(server: str, *flags: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    argv = [*FASTSERVE, "generate", "--server", server, *flags]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, input=stdin)


def rest_completion(address: str, authorization: str = "", tls: ssl.SSLContext | None = None) -> str | None:
    """The text of a greedy completion over REST; None if there is no answer."""
    body = {"model": "fastserve-bundled", "prompt": "def main(argv):\n", "max_tokens": 8, "temperature": 0}
    headers = {"Content-Type": "application/json"} | ({"Authorization": authorization} if authorization else {})
    scheme = "http" if tls is None else "https"
    request = Request(f"{scheme}://{address}/v1/completions", json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=LIMIT_S, context=tls) as answer:
            text: str = json.load(answer)["choices"][0]["text"]
            return text
    except (ConnectionError, URLError):
        return None


def services_that_logged_ready(up: Up) -> set[str]:
    """Of a log that is JSON, whatever its lines say."""
    lines = [json.loads(line) for line in up.log().splitlines(keepends=True) if line.endswith("\n")]
    return {line["service"] for line in lines if line["message"].startswith(f"ready {line['service']} ")}


def threads_that_take_cores(pid: int) -> set[str]:
    """The names of a process's threads that take a core from another thread when they wake."""
    names = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if os.sched_getscheduler(int(thread.name)) != os.SCHED_BATCH:
                names.add((thread / "comm").read_text().strip())
    return names


def are_gone(pids: dict[int, str]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    run = Up(tmp_path)
    yield run
    run.process.kill()
    run.process.communicate()


def test_up_serves_generate_restarts_a_killed_worker_and_ends_with_0_on_sigterm(up: Up) -> None:
    server = up.wait_ready()
    children = up.children()
    assert set(children.values()) == SERVICES
    # Nobody said how many: on any processor more than 16 jobs of so small a model make more tokens a second.
    told = re.search(r"group 0: up to (\d+) jobs in an iteration", up.log())
    assert told, up.log()
    assert int(told[1]) in (32, 64)
    for pid, name in children.items():
        assert threads_that_take_cores(pid) == ({"compute"} if name == "worker" else set()), name

    check_generate(server)
    text = rest_completion(up.http)
    front = next(pid for pid, name in children.items() if name == "rest")
    os.kill(front, signal.SIGKILL)
    wait_until(lambda: rest_completion(up.http) == text, "the front is back at its port", LIMIT_S)

    worker = next(pid for pid, name in children.items() if name == "worker")
    os.kill(worker, signal.SIGKILL)
    after = generate(server, "def main(", "--max-tokens", "8", "--ignore-eos", "--temperature", "0")
    assert after.returncode == 0, after.stderr
    assert after.stdout.strip()
    assert "[up] worker ended (killed by SIGKILL)" in up.log()

    children = up.children()
    assert set(children.values()) == SERVICES
    assert worker not in children
    up.process.send_signal(signal.SIGTERM)
    assert up.ended() == (0, "")
    wait_until(lambda: are_gone(children), "no child is left", LIMIT_S)


def check_generate(server: str) -> None:
    """Text, JSON, a refusal, and nobody there."""
    flags = ("--max-tokens", "12", "--ignore-eos", "--temperature", "0")
    text = generate(server, "-", *flags, stdin="def main(argv):\n")
    assert (text.returncode, text.stderr) == (0, "")
    messages = generate(server, "def main(argv):\n", *flags, "--logprobs", "1", "--json")
    pieces = [json.loads(line) for line in messages.stdout.splitlines()]
    assert "".join(piece["text"] for piece in pieces).rstrip("\n") == text.stdout.rstrip("\n")
    assert sum(len(piece["token_ids"]) for piece in pieces) == 12
    refused = generate(server, "x", "--top-p", "7")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "top_p" in refused.stderr
    assert generate("127.0.0.1:1", "x").returncode == 3


def test_a_server_with_tls_and_keys_serves_who_has_one_and_no_service_outlives_a_sigkill_of_up(tmp_path: Path) -> None:
    files = CertificateAuthority().issue(tmp_path)
    keys = tmp_path / "keys.json"
    key = add_key(keys, "alice")
    targets = tmp_path / "targets.json"
    flags = ("--log-format", "json", "--targets-file", str(targets), "--api-keys-file", str(keys))
    up = Up(tmp_path, *flags, *files.flags)
    try:
        check_secured(up, files, key)
        check_targets(targets)
        check_sigkill(up)
        assert key not in up.log()
    finally:
        up.process.kill()
        up.process.communicate()


def check_secured(up: Up, files: IssuedFiles, key: str) -> None:
    """gRPC and REST over TLS and with a key; between the services nothing without a certificate."""
    server = up.wait_ready()
    key_file = files.cert.with_name("key")
    key_file.write_text(key)
    flags = ("--max-tokens", "8", "--temperature", "0", "--ignore-eos", "--tls-ca", str(files.ca))
    text = generate(server, "def main(argv):\n", *flags, "--api-key-file", str(key_file))
    assert (text.returncode, text.stderr) == (0, "")
    refused = generate(server, "x", *flags)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "UNAUTHENTICATED: an API key is required" in refused.stderr
    assert generate(server, "x", "--max-tokens", "1").returncode == 3
    assert rest_completion(up.http, f"Bearer {key}", files.context()) == text.stdout.removesuffix("\n")
    for pid, service in up.children().items():
        if service in ("scheduler", "kvmanager"):
            (address,) = {one for one in listening(pid) if speaks_tls(one, files)}
            assert bytes_from(address, ssl.create_default_context(cafile=str(files.ca))) == b""
            assert bytes_from(address, None)[:1] != b"\x00", "no frame of HTTP/2"


def listening(pid: int) -> list[str]:
    """The addresses of the loopback interface on which a process listens."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    found = []
    sockets = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    for fields in (line.split() for lines in sockets for line in lines):
        if fields[3] == "0A" and fields[9] in inodes:
            found.append(f"127.0.0.1:{int(fields[1].rpartition(':')[2], 16)}")
    return found


def speaks_tls(address: str, files: IssuedFiles) -> bool:
    try:
        return shown_serial(address, files.context()) == files.serial()
    except (ssl.SSLError, OSError):
        return False


def check_targets(file: Path) -> None:
    """Prometheus finds every service by the file."""
    targets = json.loads(file.read_text())
    assert {target["labels"]["service"] for target in targets} == SERVICES - {"rest"}
    for target in targets:
        with urlopen(f"http://{target['targets'][0]}/metrics", timeout=LIMIT_S) as page:
            assert b"fastserve:" in page.read()


def check_sigkill(up: Up) -> None:
    children = up.children()
    assert set(children.values()) == SERVICES
    wait_until(lambda: services_that_logged_ready(up) == SERVICES, "every line of the log is an object", LIMIT_S)
    up.process.send_signal(signal.SIGKILL)
    assert up.ended() == (-signal.SIGKILL, "")
    wait_until(lambda: are_gone(children), "no child is left", LIMIT_S)
