"""The machine that figures were measured on, as the results name it. Figures of two machines are never compared."""

import os
import platform
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
MEMORY_INFO = Path("/proc/meminfo")
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")

TELLING_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16")
"""CPU features that decide how fast a model runs."""
_INSTRUCTION_SETS = (("amx_bf16", "amx"), ("avx512_bf16", "avx512-bf16"), ("avx512f", "avx512"), ("avx2", "avx2"))
"""By what they are told, the best one first."""

_NO_NAME = re.compile(r"\((r|tm)\)|@.*|\b(cpu|processor|\d+-core)\b", re.IGNORECASE)


def cpu_field(text: str, name: str) -> str | None:
    """The first value of a field of /proc/cpuinfo."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def slug(cpu_model: str, generation: Sequence[str | None], flags: Sequence[str], cores: int) -> str:
    """The name of a folder of results: `cpu-amd-epyc-25-1-avx2-2c`. `generation` is the processor's family and model:
    in a virtual machine several generations may have one name, and one may compute twice as fast as another.
    """
    words = re.findall(r"[a-z0-9]+", _NO_NAME.sub(" ", cpu_model).lower())
    best = [name for flag, name in _INSTRUCTION_SETS if flag in flags][:1]
    numbers = [number for number in generation if number is not None]
    return "-".join(["cpu", *(words or ["unknown"]), *numbers, *best, f"{cores}c"])


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Bytes of memory of the system or allowed by its control group, whichever is less."""
    if not MEMORY_INFO.exists():
        return None
    total = int(MEMORY_INFO.read_text().split("MemTotal:")[1].split()[0]) * 1024
    limit = MEMORY_LIMIT.read_text().strip() if MEMORY_LIMIT.exists() else "max"
    return total if limit == "max" else min(total, int(limit))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _cpu_info() -> str:
    return CPU_INFO.read_text() if CPU_INFO.exists() else ""


def _family_model_stepping() -> list[str | None]:
    text = _cpu_info()
    return [cpu_field(text, name) for name in ("cpu family", "model", "stepping")]


def _cpu_model() -> str:
    return cpu_field(_cpu_info(), "model name") or platform.processor() or platform.machine()


def _telling_flags() -> list[str]:
    text = _cpu_info()
    flags = (cpu_field(text, "flags") or cpu_field(text, "Features") or "").split()
    return [flag for flag in TELLING_FLAGS if flag in flags]


def describe() -> dict[str, object]:
    """The properties of the machine that its figures depend on."""
    memory = memory_bytes()
    return {
        "cpu": _cpu_model(),
        "cpu_family_model_stepping": _family_model_stepping(),
        "flags": _telling_flags(),
        "cores": cores(),
        "memory_gib": None if memory is None else round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "grpcio": _version("grpcio"),
    }


def hardware() -> str:
    """The folder of this machine's results."""
    return slug(_cpu_model(), _family_model_stepping()[:2], _telling_flags(), cores())
