"""Writes the derived profiles of this folder: `python -m profiles.derive`. `--check` writes nothing and names the files
that are out of date.

Each file contains the figures, the assumptions and the formulas behind it, and how far it is from published
measurements of the same hardware.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from profiles import roofline
from profiles.hardware import ASSUMPTIONS, LAYOUTS, OPT_13B, OPT_66B, OPT_175B, Figure, Layout
from services.experiments.named_profiles import PROFILES
from services.runtime.profile_file import Profile, profile_text, write_profile

FORMULAS = {
    "prefill": "max((2 layer_weights n + 2 layers hidden n^2 + 2 output_weights) / (TP compute compute_efficiency), "
    "weight_bytes / (TP bandwidth bandwidth_efficiency)) + 2 layers all_reduce(n) + layers layer_overhead "
    "+ iteration_overhead + (stages - 1) send(n)",
    "decode": "max(batch (2 weights + 4 layers hidden context) / (TP compute compute_efficiency), "
    "(weight_bytes + batch context kv_bytes_per_token) / (TP bandwidth bandwidth_efficiency)) "
    "+ 2 layers all_reduce(batch) + layers layer_overhead + iteration_overhead + (stages - 1) send(batch)",
    "all_reduce": "0 for TP 1, else all_reduce_latency + 2 (TP - 1) / TP tokens hidden value_bytes / "
    "(nvlink link_efficiency)",
    "send": "stage_latency + tokens hidden value_bytes / stage_bandwidth",
    "kv_bytes_per_token": "2 layers (hidden / heads) kv_heads value_bytes",
    "device_kv_tokens": "(GPUs memory memory_share - stored_weights value_bytes) / kv_bytes_per_token",
    "host_kv_tokens": "GPUs host_memory host_share / kv_bytes_per_token",
    "link": "bytes_per_s = TP host_link, for each stage and direction; latency_s = copy_latency",
}
PAPER_DECODE_S = 0.25
PAPER_SWAP_S = 0.036
PAPER_JOB_TOKENS = 512
PAPER_BATCH = 16
PUBLISHED_KV_SLOTS = {OPT_13B.name: 15_700, OPT_66B.name: 9_700}
"""Kwon et al., PagedAttention (SOSP 2023), table 1: KV slots of OPT-13B on one A100-40GB and OPT-66B on four."""


def name_of(layout: Layout) -> str:
    """`opt-175b-a100-40gb-tp8-pp2`."""
    parallel = [f"{kind}{size}" for kind, size in (("tp", layout.tensor_parallel), ("pp", layout.stages)) if size > 1]
    return "-".join([layout.shape.name, layout.gpu.name, *parallel])


def _listed(figures: Mapping[str, Figure]) -> dict[str, dict[str, object]]:
    return {
        name: {"value": figure.value, "unit": figure.unit, "source": figure.source} for name, figure in figures.items()
    }


def _checks(layout: Layout) -> dict[str, str]:
    """Published figures of the same model on the same hardware, beside the derived ones."""
    checks = {}
    slots = PUBLISHED_KV_SLOTS.get(layout.shape.name)
    if slots is not None:
        ours = roofline.device_kv_tokens(layout)
        checks["device_kv_tokens"] = (
            f"published {slots} (PagedAttention, SOSP 2023, table 1), here {ours}: {ours / slots - 1:+.1%}"
        )
    if layout.shape is OPT_175B:
        decode_s = roofline.decode_s(layout, PAPER_BATCH, PAPER_JOB_TOKENS)
        stage_bytes = PAPER_JOB_TOKENS * roofline.kv_bytes_per_token(layout.shape) / layout.stages
        swap_s = roofline.link_speed(layout).latency_s + stage_bytes / roofline.link_speed(layout).bytes_per_s
        checks["decode"] = (
            f"FastServe v1 {PAPER_DECODE_S * 1e3:.0f} ms a decode step, here {decode_s * 1e3:.1f} ms "
            f"(batch {PAPER_BATCH}, {PAPER_JOB_TOKENS} tokens of context): {PAPER_DECODE_S / decode_s:.1f} times faster"
        )
        checks["link"] = (
            f"FastServe v1 {PAPER_SWAP_S * 1e3:.0f} ms to move one job's KV, here {swap_s * 1e3:.1f} ms for "
            f"{PAPER_JOB_TOKENS} tokens: {PAPER_SWAP_S / swap_s:.1f} times faster"
        )
        checks["decision"] = (
            "the roofline is kept: both are faster by about the same factor, and what decides about swapping is "
            f"their ratio, {PAPER_SWAP_S / PAPER_DECODE_S:.3f} in v1, {swap_s / decode_s:.3f} here. Rates are "
            "therefore given relative to the capacity of FCFS, not in jobs per second of the paper's testbed"
        )
    return checks


def _source(layout: Layout) -> dict[str, object]:
    shape, gpu, checks = layout.shape, layout.gpu, _checks(layout)
    return {
        "kind": "derived",
        "by": "profiles/derive.py, formulas in profiles/roofline.py",
        "model": {
            "name": shape.text,
            "layers": shape.layers,
            "hidden": shape.hidden,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "intermediate": shape.intermediate,
            "vocabulary": shape.vocabulary,
            "layer_weights": roofline.layer_weights(shape),
            "output_weights": roofline.output_weights(shape),
            "stored_weights": roofline.stored_weights(shape),
            "max_model_len": "the context the model was trained with",
            "source": shape.source,
        },
        "device": gpu.text,
        "gpus": layout.tensor_parallel * layout.stages,
        "hardware": _listed(
            {
                "memory": gpu.memory,
                "bandwidth": gpu.bandwidth,
                "compute": gpu.compute,
                "nvlink": gpu.nvlink,
                "host_link": gpu.host_link,
                "host_memory": gpu.host_memory,
            }
        ),
        "assumptions": _listed(ASSUMPTIONS),
        "formulas": FORMULAS,
        **({"checks": checks} if checks else {}),
    }


def derived(layout: Layout) -> Profile:
    """The profile of a layout."""
    gpus = layout.tensor_parallel * layout.stages
    return Profile(
        cost=roofline.cost_profile(layout),
        source=_source(layout),
        name=name_of(layout),
        description=f"{layout.shape.text} in FP16 on {gpus} x {layout.gpu.text}, TP {layout.tensor_parallel} x "
        f"PP {layout.stages}, derived by a roofline model",
        kv_bytes_per_token=roofline.kv_bytes_per_token(layout.shape),
        device_kv_tokens=roofline.device_kv_tokens(layout),
        host_kv_tokens=roofline.host_kv_tokens(layout),
        link=roofline.link_speed(layout),
        stages=layout.stages,
        tensor_parallel=layout.tensor_parallel,
        max_model_len=layout.shape.context,
    )


def stale_files(folder: Path) -> Iterator[Path]:
    """Files that are missing or differ from what `derived` returns."""
    for layout in LAYOUTS:
        file = folder / f"{name_of(layout)}.json"
        if not file.exists() or file.read_text(encoding="utf-8") != profile_text(derived(layout)):
            yield file


def main(argv: list[str] | None = None) -> int:
    """Writes all files, or checks them. The exit code is 1 if `--check` finds a stale one."""
    if (sys.argv[1:] if argv is None else argv) == ["--check"]:
        stale = list(stale_files(PROFILES))
        for file in stale:
            print(f"{file.name} is not what `python -m profiles.derive` writes", file=sys.stderr)
        return 1 if stale else 0
    for layout in LAYOUTS:
        write_profile(PROFILES / f"{name_of(layout)}.json", derived(layout))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
