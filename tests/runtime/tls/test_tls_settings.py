"""The flags of TLS: all of a set or none, and files that can't be used are refused by the flag that names them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from services.domain.errors import InvalidFieldError
from services.gateway.settings import GatewaySettings
from services.kvmanager.settings import KvManagerSettings
from services.runtime.settings import load
from services.runtime.tls.tls_files import TlsFiles, read_pems
from tests.builders.certificates import CertificateAuthority, IssuedFiles

PEERS = ("--scheduler", "127.0.0.1:1", "--model", "m")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> IssuedFiles:
    return CertificateAuthority().issue(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (("cert",), ("--tls-key", "--tls-ca")),
        (("key",), ("--tls-cert", "--tls-ca")),
        (("cert", "key"), ("--tls-ca",)),
        (("key", "ca"), ("--tls-cert",)),
        (("peer-name",), ("--tls-cert", "--tls-key", "--tls-ca")),
    ],
)
def test_half_a_set_of_flags_is_refused_and_what_is_missing_is_named(
    given: Sequence[str], missing: Sequence[str]
) -> None:
    argv = [word for name in given for word in (f"--tls-{name}", "x")]
    with pytest.raises(InvalidFieldError, match="must be given too") as refused:
        load(KvManagerSettings, "kvmanager", argv, {})
    named = str(refused.value).partition(" must be given")[0]
    assert [word.strip(",") for word in named.split() if word.startswith("--tls")] == list(missing)


def test_half_of_the_public_flags_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="--public-tls-key must be given too"):
        load(GatewaySettings, "gateway", [*PEERS, "--public-tls-cert", "x"], {})


def test_clients_see_the_certificate_of_the_service_unless_there_is_one_for_them(files: IssuedFiles) -> None:
    plain = load(GatewaySettings, "gateway", PEERS, {})
    assert (plain.tls, plain.public_tls) == (None, None)
    one_set = load(GatewaySettings, "gateway", [*PEERS, *files.flags], {})
    assert one_set.tls == files.tls
    assert one_set.public_tls == TlsFiles(files.cert, files.key)
    own = load(GatewaySettings, "gateway", [*PEERS, "--public-tls-cert", "c", "--public-tls-key", "k"], {})
    assert own.tls is None
    assert own.public_tls == TlsFiles(Path("c"), Path("k"), flags="--public-tls")


def test_files_that_can_not_be_used_are_refused_by_their_flag(files: IssuedFiles, tmp_path: Path) -> None:
    nothing, text = tmp_path / "nothing", tmp_path / "text"
    text.write_text("no PEM")
    other = CertificateAuthority().issue(tmp_path, "other")
    secret = CertificateAuthority().issue(tmp_path, "secret", password=b"some word")
    for used, words in [
        (TlsFiles(nothing, files.key), ("--tls-cert: can't read", "No such file")),
        (TlsFiles(files.cert, nothing), ("--tls-key: can't read",)),
        (TlsFiles(files.cert, files.key, nothing), ("--tls-ca: can't read",)),
        (TlsFiles(files.cert, files.key, text), ("--tls-ca: ", "no certificates in PEM format")),
        (TlsFiles(text, files.key, flags="--public-tls"), ("--public-tls-cert and --public-tls-key: ",)),
        (TlsFiles(files.cert, other.key), ("--tls-cert and --tls-key: ", "mismatch")),
        (TlsFiles(secret.cert, secret.key), ("--tls-cert and --tls-key: ", "without a password")),
    ]:
        with pytest.raises(InvalidFieldError) as refused:
            read_pems(used)
        assert all(word in str(refused.value) for word in words), refused.value
        assert "\n" not in str(refused.value)
