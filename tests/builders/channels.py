"""Channels of the tests' own clients."""

import grpc

from services.runtime.channel import channel_options, open_channel
from services.runtime.tls.tls_files import Certificates
from tests.builders.waits import LIMIT_S


def patient_channel(address: str, tls: Certificates | None = None) -> grpc.aio.Channel:
    """A channel as the links' own, but for the time of an attempt to connect: those that dial again when a busy machine
    takes longer are the services, not a test's client.
    """
    return open_channel(address, channel_options(attempt_limit_s=LIMIT_S), tls)
