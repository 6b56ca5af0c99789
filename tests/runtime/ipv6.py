"""Whether this machine has IPv6: some have none, even on loopback."""

import socket


def has_ipv6() -> bool:
    """Whether a socket can be bound to ::1."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
