"""A plugin of pytest: the compiled decoder is one with address and undefined-behaviour sanitizers (`make sanitize`).
AMX's tiles are there in plain C++, so that the sanitizers see what these read and write.
"""

from services.worker.kernels.cpu import compiled

compiled.extra_flags = (*compiled.SANITIZERS, compiled.EMULATED_TILES)
