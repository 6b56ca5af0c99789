"""Compiles the C++ beside this file, once for its text and flags. No torch here.

    python -m services.worker.kernels.cpu.compiled

The shared library is kept in `built/` beside the sources, or in ~/.cache/fastserve where that can't be written. It
holds the decoder for every instruction set, so one made in an image serves on any x86-64 processor.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

SOURCES = Path(__file__).resolve().parent
COMPILERS = ("c++", "g++", "clang++")
COMPILE_LIMIT_S = 300.0
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"),
    # Sums are rounded as they are written, so that every row of a kind has the same bits.
    *("-ffp-contract=off", "-fno-math-errno"),
    "-Wno-maybe-uninitialized",  # of the compiler's own intrinsics
)
LINK_FLAGS = ("-shared", "-static-libstdc++", "-static-libgcc")
SANITIZERS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_WIDE = ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_PROGRAMS = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": _WIDE,
    "avx512_bf16": (*_WIDE, "-mavx512bf16"),
    "amx_bf16": (*_WIDE, "-mavx512bf16", "-DWITH_TILES"),  # tiles are written for the assembler (tiles.h)
}


class CompileError(Exception):
    """The decoder can't be compiled here; the message is one line."""


EMULATED_TILES = "-DEMULATED_TILES"
"""Intel's AMX in plain C++, for tests on processors without it."""

extra_flags: tuple[str, ...] = ()
"""Tests set them."""


def library() -> Path:
    """The compiled library, made now if it is not there. Raises CompileError."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    name = f"decoder-{_digest()}.so"
    for folder in _folders():
        if (folder / name).exists():
            return folder / name
    if platform.machine() != "x86_64" or sys.platform != "linux":
        raise CompileError(f"it is written for Linux on x86-64, not {sys.platform} on {platform.machine()}")
    if compiler is None:
        raise CompileError(f"there is no C++ compiler ({', '.join(COMPILERS)})")
    writable = [folder for folder in _folders() if _writable(folder)]
    if not writable:
        raise CompileError(f"{_folders()[-1]} can't be written")
    folder = writable[0]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be making it
        if not (folder / name).exists():
            _compile(compiler, folder / name)
    return folder / name


def remove_others(made: Path) -> None:
    """Removes libraries of other sources or flags beside this one, which an image would hold too."""
    for found in made.parent.glob("decoder-*.so"):
        if found != made:
            found.unlink(missing_ok=True)


def _digest() -> str:
    """Of sources and flags. Not of the compiler: a library made in an image is used where there is none."""
    text = hashlib.sha256(repr((FLAGS, LINK_FLAGS, extra_flags, _PROGRAMS)).encode())
    for path in sorted(SOURCES.glob("*.h")) + sorted(SOURCES.glob("*.cpp")):
        text.update(path.read_bytes())
    return text.hexdigest()[:16]


def _folders() -> tuple[Path, Path]:
    return SOURCES / "built", Path.home() / ".cache" / "fastserve" / "kernels"


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _compile(compiler: str, out: Path) -> None:
    with TemporaryDirectory(dir=out.parent) as scratch:
        units: list[tuple[str, str, tuple[str, ...]]] = [
            (name, f"{name}.cpp", ()) for name in ("engine", "team", "coding")
        ]
        units += [(name, "program.cpp", (f"-DINSTRUCTION_SET={name}", *flags)) for name, flags in _PROGRAMS.items()]

        def compile_unit(unit: tuple[str, str, tuple[str, ...]]) -> str:
            name, source, flags = unit
            made = f"{scratch}/{name}.o"
            _run([compiler, *FLAGS, *extra_flags, *flags, "-c", str(SOURCES / source), "-o", made])
            return made

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            objects = list(threads.map(compile_unit, units))
        made = f"{scratch}/{out.name}"
        _run([compiler, *FLAGS, *extra_flags, *LINK_FLAGS, *objects, "-o", made])
        os.replace(made, out)


def _run(argv: list[str]) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
        raise CompileError(f"{argv[0]} fails: {first}")


if __name__ == "__main__":
    try:
        print(library())
    except CompileError as why:
        print(f"The native CPU kernels can't be compiled, so workers compute with torch: {why}")
