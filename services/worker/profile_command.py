"""`fastserve profile`: measures the cost model of a model on this machine, and its host link, writes both to a file,
and says how far the cost model is from measured mixed iterations.
"""

import datetime
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from services.domain.copying import LinkSpeed
from services.domain.errors import FastServeError
from services.domain.mixed_cost import MixedCost, model_error
from services.runtime.profile_file import Profile, check_writable, write_profile
from services.runtime.settings import load
from services.worker.engine.compute_environment import set_compute_environment
from services.worker.settings import ProfileSettings

if TYPE_CHECKING:
    from services.worker.build import Built

_SOURCES = {
    "prefill": "measured: lower quartile of a few iterations that prefill one prompt, from layout to sampled token",
    "decode": "measured: lower quartile of a few iterations that decode one token of each job",
    "mixed": "measured: lower quartile of a few iterations that prefill one prompt and decode one token of each job; "
    "modelled_seconds is what the cost model gives for them",
    "kv_bytes_per_token": "exact: 2 x layers x KV heads x head size x bytes of the dtype",
    "pools": "device_kv_tokens and host_kv_tokens are the pools that were measured with, not the most that fits",
    "link": "measured: the copier's time for a job of 512 tokens in scattered blocks, and for one block",
}

_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def _processor(built: "Built") -> dict[str, str]:
    """Instructions that decide a CPU's speed, if the system lists them: its name often does not say."""
    cpuinfo = Path("/proc/cpuinfo")
    if built.facts.device != "cpu" or not cpuinfo.exists():
        return {}
    flags = next((line.split() for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), [])
    return {"instructions": " ".join(name for name in _INSTRUCTIONS if name in flags)}


def _profile_of(built: "Built", link: LinkSpeed, name: str) -> Profile:
    facts = built.facts
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    source = {"kind": "measured", **built.profile.source, **_processor(built), "measured_at": now, **_SOURCES}
    if mixed := built.profile.mixed:
        source["model_error"] = _error_sentence(mixed)
    else:
        del source["mixed"]
    cores = f", {source['threads']} threads" if facts.device == "cpu" else ""
    return replace(
        built.profile,
        source=source,
        name=name,
        description=f"{source['model']} in {source['dtype']} on {source['device']}{cores}, measured",
        kv_bytes_per_token=facts.block_bytes // facts.block_size,
        device_kv_tokens=facts.device_blocks * facts.block_size,
        host_kv_tokens=facts.host_blocks * facts.block_size,
        link=link,
        max_model_len=facts.max_model_len,
    )


def _error_sentence(mixed: Sequence[MixedCost]) -> str:
    error = model_error(mixed)
    return (
        f"The cost model's error against measured mixed iterations (modelled / measured - 1; points: {len(mixed)}) is "
        f"{100 * error.median:+.1f} % at the median and {100 * error.worst:+.1f} % at worst."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measures again, whatever earlier runs have kept. Returns the exit status: 0, or 1 with the reason in one line on
    stderr.
    """
    try:
        settings = load(ProfileSettings, "profile", sys.argv[1:] if argv is None else argv, os.environ)
        check_writable(settings.out)
        set_compute_environment()
        from services.worker.build import build
        from services.worker.profiling.link_speed import measure_link

        built = build(settings)
        try:
            link = measure_link(built.engine.pools)
        finally:
            built.engine.close()
        profile = _profile_of(built, link, settings.out.stem)
        write_profile(settings.out, profile)
        if profile.mixed:
            print(_error_sentence(profile.mixed))
    except FastServeError as error:
        print(f"fastserve profile: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
