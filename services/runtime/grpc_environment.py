"""How gRPC's core reads and writes sockets in our processes.

By default an engine of its own does that: a thread waits for the sockets and hands what came to a pool of threads, one
of which wakes the thread that waits for events, which wakes the event loop. Each message so wakes four threads, on
cores that compute. Without that engine the thread that waits for events reads the sockets too, which takes a quarter to
a third less processor time a message. It does not need Python's lock, so pings are answered in a process that computes.

The engine is switched off by the core's own variable, which is read when grpc is imported. No grpc here.
"""

import os

_SWITCHES = "GRPC_EXPERIMENTS"
_WITHOUT_ENGINE = "-event_engine_client,-event_engine_listener"


def set_grpc_environment() -> None:
    """For this process and those that it starts; to be called before grpc is imported. Whoever has set the variable
    is left alone.
    """
    os.environ.setdefault(_SWITCHES, _WITHOUT_ENGINE)
