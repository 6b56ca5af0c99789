"""What the test cluster is made of: what has to be installed, and what is built from source, each once per version of
its sources, below build/kubernetes.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

from rest.build import BuildError, find_go
from tests.builders.repository_paths import ROOT

WORK = ROOT / "build" / "kubernetes"
PROGRAMS = WORK / "programs"
STUBS = WORK / "stubs"
IMAGES = WORK / "images"
SOURCES = Path(__file__).parent / "go"
PAUSE_SOURCE = Path(__file__).parent / "pause.c"
PAUSE_IMAGE = "localhost/pause:1"
KUBERNETES = "v1.35.7"
OPENAPI_GENERATOR = "k8s.io/kube-openapi/cmd/openapi-gen@v0.0.0-20250910181357-589584f1c912"
KEDA, KEDA_VERSION = "github.com/kedacore/keda/v2", "v2.20.2"
CRI_API = "k8s.io/cri-api@v0.35.3"
API_GROUPS = (
    "apps/v1", "authentication/v1", "authorization/v1", "autoscaling/v1", "autoscaling/v2", "batch/v1",
    "coordination/v1", "core/v1", "discovery/v1", "events/v1", "networking/v1", "policy/v1", "rbac/v1", "scheduling/v1",
)  # fmt: skip
API_BASICS = ("api/resource", "apis/meta/v1", "runtime", "util/intstr", "version")
IMAGED = ("gateway", "scheduler", "kvmanager", "worker")
IMAGE_SOURCES = ("services", "protos/fastserve", "models/bundled", "docker", "requirements.lock", "pyproject.toml")
COMMANDS = ("cc", "containerd", "ctr", "ip", "iptables", "kubectl", "nsenter", "runc", "unshare")
PLUGINS = Path("/usr/lib/cni")
PACKAGES = (
    "apt-get install --no-install-recommends containerd runc containernetworking-plugins docker.io debootstrap "
    "iproute2 iptables"
)
BUILD_LIMIT_S = 1500.0


class MissingError(Exception):
    """The test can't run here; a line for each thing that is missing."""


def check_machine(uv: str) -> str:
    """The path of Go. Raises MissingError."""
    missing = [f"{name}: no such command" for name in COMMANDS if shutil.which(name) is None]
    missing += [f"{PLUGINS / name}: no such plugin" for name in ("bridge", "portmap") if not (PLUGINS / name).exists()]
    if shutil.which("docker") is None:
        missing.append("docker: no such command; the images are built with it")
    go = ""
    try:
        go = find_go(uv)
    except BuildError as error:
        missing.append(str(error))
    if os.getuid() != 0:
        missing.append("root: namespaces, mounts and iptables need it")
    elif shutil.which("ip") and subprocess.run(["ip", "netns", "list"], capture_output=True).returncode:
        missing.append("network namespaces: this machine lets nobody make them")
    if missing:
        raise MissingError("\n".join(missing))
    return go


def build_all(go: str, say: Callable[[str], None]) -> None:
    """Everything that is not there in its present version. Raises CalledProcessError."""
    parts: tuple[tuple[str, list[Path], Callable[[], None]], ...] = (
        ("programs", [SOURCES], lambda: _build_programs(go)),
        ("pause", [PAUSE_SOURCE], _build_pause),
        ("stubs", [Path(__file__)], lambda: _build_stubs(go)),
        ("images", [ROOT / name for name in IMAGE_SOURCES] + [ROOT / "build" / "rest"], _build_images),
    )
    for name, sources, make in parts:
        mark, wanted = WORK / f"{name}.digest", digest(sources)
        if mark.exists() and mark.read_text() == wanted:
            continue
        say(f"building {name}")
        mark.unlink(missing_ok=True)
        make()
        mark.write_text(wanted)


def keda_sources() -> Path:
    """Where those of the operator are that was built."""
    return WORK / f"keda-{KEDA_VERSION}"


def build_keda(go: str, say: Callable[[str], None]) -> None:
    """KEDA's operator, from its published module, unless it is there. Raises MissingError."""
    mark = WORK / "keda.digest"
    if mark.exists() and mark.read_text() == KEDA_VERSION:
        return
    say("building KEDA's operator: 12 minutes of a processor, 3 GB of memory")
    told = json.loads(_run(go, "mod", "download", "-json", f"{KEDA}@{KEDA_VERSION}"))
    copied = keda_sources()
    shutil.rmtree(copied, ignore_errors=True)
    # As the module it is, with what its go.mod replaces. The files of the store are read-only.
    shutil.copytree(told["Dir"], copied, copy_function=shutil.copyfile)
    environ = {"GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -mod=mod", "CGO_ENABLED": "0"}
    for folder in (copied, *(path for path in copied.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    _run(
        go, "build", "-ldflags", "-s -w", "-o", str(PROGRAMS / "keda-operator"), "./cmd/operator", cwd=copied, **environ
    )
    # What the HPA's stand-in asks the operator.
    shutil.copyfile(copied / "pkg" / "metricsservice" / "api" / "metrics.proto", STUBS / "keda_metrics.proto")
    _compile_stubs("keda_metrics.proto")
    mark.write_text(KEDA_VERSION)


def digest(sources: list[Path]) -> str:
    """Of the contents of files and folders."""
    whole = hashlib.sha256()
    for path in (file for source in sources for file in _files(source)):
        whole.update(f"{path}:{path.stat().st_size}\n".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()


def _files(source: Path) -> Iterator[Path]:
    if source.is_file():
        yield source
        return
    left_out = {"__pycache__", "built"}
    yield from sorted(path for path in source.rglob("*") if path.is_file() and not left_out & set(path.parts))


def _run(*argv: str, cwd: Path = ROOT, **environ: str) -> str:
    done = subprocess.run(
        argv, cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=BUILD_LIMIT_S
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise MissingError(f"{' '.join(argv[:3])} ... failed: {' | '.join(lines[-5:])}")
    return done.stdout


def _build_programs(go: str) -> None:
    """The API server, whose OpenAPI definitions are generated first, and the judge of elections."""
    copied = WORK / "go"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(SOURCES, copied)
    generated = copied / "apiserver" / "openapi"
    generated.mkdir()
    (copied / "header.txt").write_text("\n")
    packages = [f"k8s.io/api/{group}" for group in API_GROUPS]
    packages += [f"k8s.io/apimachinery/pkg/{name}" for name in API_BASICS]
    environ = {"GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}
    _run(
        go, "run", OPENAPI_GENERATOR, "--output-dir", str(generated), "--output-file", "definitions.go",
        "--output-pkg", "fastserve/testcluster/apiserver/openapi", "--go-header-file", "header.txt",
        "--report-filename", str(copied / "report.txt"), *packages, cwd=copied, **environ,
    )  # fmt: skip
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    version = f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES}"
    for name in ("apiserver", "elector"):
        _run(go, "build", "-ldflags", version, "-o", str(PROGRAMS / name), f"./{name}", cwd=copied, **environ)


def _build_stubs(go: str) -> None:
    """Of the container runtime interface."""
    shutil.rmtree(STUBS, ignore_errors=True)
    STUBS.mkdir(parents=True)
    told = json.loads(_run(go, "mod", "download", "-json", CRI_API, cwd=SOURCES))
    shutil.copy(Path(told["Dir"]) / "pkg" / "apis" / "runtime" / "v1" / "api.proto", STUBS / "cri_api.proto")
    (STUBS / "cri_api.proto").chmod(0o644)
    _compile_stubs("cri_api.proto")
    (WORK / "keda.digest").unlink(missing_ok=True)  # its stubs were here


def _compile_stubs(file: str) -> None:
    """Of a proto that lies in STUBS."""
    out = [f"--python_out={STUBS}", f"--grpc_python_out={STUBS}"]
    _run(sys.executable, "-m", "grpc_tools.protoc", f"-I{STUBS}", *out, file)


def _build_pause() -> None:
    """The image of a process that waits: it holds a pod's network."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    program = PROGRAMS / "pause"
    _run("cc", "-static", "-Os", "-o", str(program), str(PAUSE_SOURCE))
    layer = BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(program, "pause")
    found = "sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()
    config = {"architecture": _architecture(), "os": "linux", "config": {"Entrypoint": ["/pause"]}}
    config |= {"rootfs": {"type": "layers", "diff_ids": [found]}}
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tarfile.open(IMAGES / "pause.tar", "w") as tar:
        for name, content in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


def _build_images() -> None:
    """Those of `make images`, but for torch, which pods mount."""
    told = _run(sys.executable, "-m", "deploy.images.build", "--torch", "mounted", "--save", str(IMAGES))
    (WORK / "images.txt").write_text(
        "\n".join(line for line in told.splitlines() if line.startswith(("image ", "fastserve/", "python:")))
    )
