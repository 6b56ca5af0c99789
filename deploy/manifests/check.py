"""Renders every overlay and every combination of components, and prints what is wrong with them: part of `make check`.

Three judges: Kubernetes' schemas, our own assertions, and kube-score. The last is a Go program: it is taken from the
path, or built once into build/bin where there is Go.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.manifests.assertions import DENY_ALL, faults
from deploy.manifests.rendering import (
    ROOT,
    Manifest,
    RenderError,
    components,
    overlays,
    parse,
    render_text,
    subsets,
    write_combination,
)
from deploy.manifests.schemas import schema_faults

KUBE_SCORE = "github.com/zegl/kube-score/cmd/kube-score@v1.20.0"
MOST_BUILD_S = 900.0
UNSCORED = {
    # An image has a tag of its own that never changes; one that was loaded into a node can't be pulled.
    "container-image-pull-policy",
}
UNSCORED_WITHOUT_POLICIES = UNSCORED | {"pod-networkpolicy"}
UNSCORED_WITH_SETS = {
    # It does not know the pods of a LeaderWorkerSet; our assertions do.
    "networkpolicy-targets-pod",
}


def kube_score() -> str | None:
    """The program, built if need be; None where it can't be had."""
    built = ROOT / "build" / "bin" / "kube-score"
    found = shutil.which("kube-score") or (str(built) if built.exists() else None)
    if found is not None or shutil.which("go") is None:
        return found
    print("building kube-score", flush=True)
    environ = {**os.environ, "GOBIN": str(built.parent), "GOFLAGS": "-buildvcs=false"}
    done = subprocess.run(["go", "install", KUBE_SCORE], env=environ, capture_output=True, timeout=MOST_BUILD_S)
    return str(built) if done.returncode == 0 else None


def score_faults(program: str, text: str, objects: Sequence[Manifest]) -> list[str]:
    """What kube-score calls critical."""
    has_policies = any(one["metadata"]["name"] == DENY_ALL for one in objects)
    has_sets = any(one["kind"] == "LeaderWorkerSet" for one in objects)
    left_out = (UNSCORED if has_policies else UNSCORED_WITHOUT_POLICIES) | (UNSCORED_WITH_SETS if has_sets else set())
    argv = [program, "score", "--output-format", "ci", "--ignore-container-cpu-limit", "--kubernetes-version", "v1.32"]
    argv += [word for name in sorted(left_out) for word in ("--ignore-test", name)]
    done = subprocess.run([*argv, "-"], input=text, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        return [f"kube-score failed: {done.stderr.strip()}"]
    return [line for line in done.stdout.splitlines() if line.startswith("[CRITICAL]")]


def judged(folder: Path, program: str | None) -> Iterator[str]:
    """The faults of one rendering."""
    try:
        text = render_text(folder)
    except RenderError as error:
        yield str(error)
        return
    objects = parse(text)
    yield from schema_faults(objects)
    yield from faults(objects)
    if program is not None:
        yield from score_faults(program, text, objects)


def main() -> int:
    """1 if anything is wrong."""
    program = kube_score()
    folders = [*overlays(), *(write_combination(chosen) for chosen in subsets(components()))]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda folder: [f"{folder.name}: {fault}" for fault in judged(folder, program)], folders))
    wrong = [line for lines in found for line in lines]
    for line in wrong:
        print(line, file=sys.stderr)
    by = "schemas and assertions" + (
        " and kube-score" if program else "; kube-score is not installed, and no Go to build it"
    )
    print(f"manifests: {len(folders)} renderings, {len(wrong)} faults, judged by {by}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
