"""What an image installs: per service a folder of wheels, the versions of requirements.lock, made before the build
because nothing in a build has a network.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from services.worker.kernels.cpu.compiled import library, remove_others

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "wheels"
FRONT = ROOT / "build" / "rest" / "fastserve-rest"
EXTRAS: dict[str, tuple[str, ...]] = {
    "gateway": ("gateway",),
    "scheduler": ("kubernetes",),
    "kvmanager": (),
    "worker": ("worker",),
}
"""The extras of pyproject.toml that a service's image installs."""
BROUGHT_BY_TORCH = ("torch", "nvidia-", "cuda-", "triton", "sympy", "mpmath", "networkx", "jinja2", "markupsafe")
"""Left out of an image whose torch is mounted: 4 GB, and what only torch needs."""


def _uv() -> str:
    own = ROOT / "build" / "uv" / "bin" / "uv"
    return str(own) if own.exists() else "uv"


def _run(*argv: str) -> str:
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv[:4])} ... failed:\n{done.stderr.strip()}")
    return done.stdout


def requirements(service: str, without_torch: bool) -> list[str]:
    """`name==version` of everything that the service's image installs beside fastserve itself."""
    extras = [word for extra in EXTRAS[service] for word in ("--extra", extra)]
    compiled = _run(
        _uv(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", "3.11",
        "--constraint", "requirements.lock", *extras, "pyproject.toml",
    )  # fmt: skip
    lines = [line.strip() for line in compiled.splitlines() if line.strip()]
    return [line for line in lines if not (without_torch and line.startswith(BROUGHT_BY_TORCH))]


def _base_python() -> str:
    """The interpreter that .venv was made with: it has pip."""
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")


def fill(service: str, own_wheel: Path, without_torch: bool) -> Path:
    """The folder of the service's wheels, of exactly the versions that it needs now; the gateway's has the REST front
    too.
    """
    folder = WHEELS / service
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kept = WHEELS / "downloads"
    listed = WHEELS / f"{service}.txt"
    listed.write_text("\n".join(requirements(service, without_torch)) + "\n")
    pip = (_base_python(), "-m", "pip", "--disable-pip-version-check", "--quiet")
    _run(*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(kept), "-r", str(listed))
    found = _run(
        *pip, "download", "--no-deps", "--no-index", "--find-links", str(kept), "--dest", str(folder), "-r", str(listed)
    )
    assert not found, found
    os.link(own_wheel, folder / own_wheel.name)
    if service == "gateway":
        if not FRONT.is_file():
            raise SystemExit(
                "make images: the gateway's image holds the REST front, which `make front` can't build here"
            )
        shutil.copy2(FRONT, folder)
    return folder


def build_own_wheel() -> Path:
    """The wheel of this project, with the compiled decoder of its present sources alone."""
    remove_others(library())
    folder = WHEELS / "own"
    shutil.rmtree(folder, ignore_errors=True)
    _run(_uv(), "build", "--quiet", "--wheel", "--out-dir", str(folder), ".")
    return next(folder.glob("fastserve-*.whl"))
