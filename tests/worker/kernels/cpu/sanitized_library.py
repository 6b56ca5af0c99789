"""A plugin of pytest: the compiled decoder is one with address and undefined-behaviour sanitizers (`make sanitize`)."""

from services.worker.kernels.cpu import compiled

compiled.extra_flags = compiled.SANITIZERS
