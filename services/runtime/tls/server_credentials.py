"""TLS for a gRPC server. It asks for its certificates at each handshake, so a new connection gets those that the files
hold now; connections that are open go on.
"""

import grpc

from services.runtime.tls.tls_files import Certificates, Pems, TlsFiles


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """For a server: TLS, and with `ca` only for peers with a certificate of it. Raises InvalidFieldError."""
    current = Certificates(files)
    given = current.pems()

    def configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], root_certificates=pems.ca)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        pems = current.pems()
        if pems is given:
            return None
        given = pems
        return configuration(pems)

    return grpc.dynamic_ssl_server_credentials(
        configuration(given),
        fetch,  # type: ignore[arg-type] # None: nothing has changed
        require_client_authentication=files.ca is not None,
    )
