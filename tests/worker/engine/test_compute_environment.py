"""What glibc does with freed memory in a worker."""

import subprocess
import sys

import pytest

PROGRAM = """
from services.worker.engine.compute_environment import return_freed_memory, set_compute_environment

def resident_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) >> 10

set_compute_environment()
before = resident_mib()
pieces = [bytes(1 << 20) for _ in range(100)]
pieces = [piece.replace(b"\\0", b"1") for piece in pieces]
del pieces
kept = resident_mib()
return_freed_memory()
print(kept - before, resident_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told what to keep")
def test_freed_memory_is_kept_for_the_next_iteration_until_it_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    assert kept > 90, "MiB of 100 that were used"
    assert left < 10
