"""The machine that figures were measured on, as the results name it. Figures of two machines are never compared."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
MEMORY_INFO = Path("/proc/meminfo")
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")

TELLING_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16")
"""CPU features that decide how fast a model runs."""

_NO_NAME = re.compile(r"\((r|tm)\)|@.*|\b(cpu|processor|\d+-core)\b", re.IGNORECASE)


def cpu_field(text: str, name: str) -> str | None:
    """The first value of a field of /proc/cpuinfo."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def slug(cpu_model: str, cores: int) -> str:
    """The name of a folder of results: `cpu-amd-epyc-2c`."""
    words = re.findall(r"[a-z0-9]+", _NO_NAME.sub(" ", cpu_model).lower())
    return "-".join(["cpu", *(words or ["unknown"]), f"{cores}c"])


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


def describe() -> dict[str, object]:
    """The properties of the machine that its figures depend on."""
    text = CPU_INFO.read_text() if CPU_INFO.exists() else ""
    flags = (cpu_field(text, "flags") or cpu_field(text, "Features") or "").split()
    memory = memory_bytes()
    return {
        "cpu": cpu_field(text, "model name") or platform.processor() or platform.machine(),
        "cpu_family_model_stepping": [cpu_field(text, name) for name in ("cpu family", "model", "stepping")],
        "flags": [flag for flag in TELLING_FLAGS if flag in flags],
        "cores": cores(),
        "memory_gib": None if memory is None else round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "grpcio": _version("grpcio"),
    }


def hardware() -> str:
    """The folder of this machine's results."""
    return slug(str(describe()["cpu"]), cores())
