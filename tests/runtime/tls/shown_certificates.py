"""What a server shows and says to callers that speak TLS, or do not."""

import socket
import ssl

from cryptography import x509

from services.runtime.settings import split_address

LIMIT_S = 60.0
PREFACE_OF_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def shown_serial(address: str, context: ssl.SSLContext) -> int:
    """The number of the certificate that a server shows a new caller."""
    host, port = split_address(address)
    with (
        socket.create_connection((host, port), timeout=LIMIT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def bytes_from(address: str, context: ssl.SSLContext | None) -> bytes:
    """What a server says to a caller that begins HTTP/2 and listens until the connection ends. None: in plain text."""
    host, port = split_address(address)
    heard = b""
    with socket.create_connection((host, port), timeout=LIMIT_S) as plain:
        try:
            connection = plain if context is None else context.wrap_socket(plain, server_hostname=host)
            connection.sendall(PREFACE_OF_HTTP2)
            while data := connection.recv(4096):
                heard += data
        except (ssl.SSLError, ConnectionError):
            return heard
    return heard
