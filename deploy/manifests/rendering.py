"""Manifests as Kubernetes would get them: kustomize's output, parsed.

kustomize comes with kubectl; where there is no kubectl, a `kustomize` on the path does.
"""

import itertools
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "deploy" / "k8s"
COMBINATIONS = ROOT / "build" / "manifests"
MOST_RENDER_S = 60.0

Manifest = Mapping[str, Any]
"""An object of Kubernetes as plain values."""


class RenderError(Exception):
    """kustomize is missing, or refuses; the text is one line."""


def _command() -> list[str]:
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    raise RenderError("neither kubectl nor kustomize is installed: one of them renders the manifests")


def render_text(folder: Path) -> str:
    """The YAML of a kustomization. Raises RenderError."""
    done = subprocess.run([*_command(), str(folder)], capture_output=True, text=True, timeout=MOST_RENDER_S)
    if done.returncode:
        raise RenderError(f"{folder} does not render: {' '.join(done.stderr.split())}")
    return done.stdout


def parse(text: str) -> list[Manifest]:
    """The objects of a YAML stream. Takes the C parser where PyYAML has it: it is ten times as fast."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [one for one in yaml.load_all(text, Loader=loader) if one is not None]


def overlays() -> list[Path]:
    """The folders of all overlays."""
    return sorted(path.parent for path in (K8S / "overlays").glob("*/kustomization.yaml"))


def components() -> list[str]:
    """The names of all components."""
    return sorted(path.parent.name for path in (K8S / "components").glob("*/kustomization.yaml"))


EXCLUSIVE: tuple[frozenset[str], ...] = (frozenset({"autoscaler", "keda"}),)
"""Components that must not be used together: both would scale the same object."""
LAST = "lws"
"""Takes over what the others have made of the workers, so it stands behind them."""


APART: Mapping[str, int] = {"keys": 1, "tls": 2}
"""Components of which not every set is judged: those of at most so many, and those of as many as there may be. The
first touches nothing that others do, the second a few things of some of them.
"""


def subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every set of components that may be used together, but for most of those with one that stands apart."""
    most = len(names) - len(EXCLUSIVE)
    for count in range(len(names) + 1):
        for chosen in itertools.combinations(names, count):
            if any(APART.get(name, most) < count < most for name in chosen):
                continue
            if not any(pair <= set(chosen) for pair in EXCLUSIVE):
                yield chosen


def write_combination(chosen: Sequence[str]) -> Path:
    """A kustomization of the base with these components, below build/; its folder."""
    folder = COMBINATIONS / ("-".join(chosen) or "base-alone")
    folder.mkdir(parents=True, exist_ok=True)
    up = "../../../deploy/k8s"
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "fastserve",
        "resources": [f"{up}/base"],
        "components": [f"{up}/components/{name}" for name in sorted(chosen, key=lambda name: name == LAST)],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return folder
