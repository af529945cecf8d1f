"""Certificates of a gRPC port by files. A new connection gets what the files hold now; open ones keep theirs."""

import ssl

import grpc

from chairlift.runtime.watched_file import WatchedFile


class TlsError(ValueError):
    """Files that make no server certificate. The message names them and says why; no key is in it."""


class ServerTls:
    """Certificate chain, key and, for mTLS, the roots of client certificates. Not thread-safe but for the fetcher."""

    def __init__(self, cert_file: str, key_file: str, client_ca_file: str | None) -> None:
        """Reads the files. Raises TlsError and WatchedFileError."""
        self._cert = WatchedFile(cert_file, "gateway.tls_cert_file")
        self._key = WatchedFile(key_file, "gateway.tls_key_file")
        self._ca = WatchedFile(client_ca_file, "gateway.tls_client_ca_file") if client_ca_file is not None else None
        self._contents = self._read_pair()
        self._configuration = self._configure(self._contents)

    @property
    def asks_for_certificates(self) -> bool:
        """Whether clients prove who they are (mTLS)."""
        return self._ca is not None

    def reload(self) -> bool:
        """Whether the files held something new, which new connections get from now on.

        Raises TlsError and WatchedFileError; what was in force stays so then.
        """
        contents = self._read_pair()
        if contents == self._contents:
            return False
        self._configuration = self._configure(contents)
        self._contents = contents
        return True

    def credentials(self) -> grpc.ServerCredentials:
        """For one port."""
        told = self._configuration

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """Called for each new connection, on a thread of grpc's: what is new since the last time."""
            nonlocal told
            current = self._configuration
            if current is told:
                return None
            told = current
            return current

        return grpc.dynamic_ssl_server_credentials(
            told,
            fetch,  # type: ignore[arg-type]  # None says that nothing is new, which the stub does not know
            require_client_authentication=self.asks_for_certificates,
        )

    def _read_pair(self) -> tuple[bytes, bytes, bytes | None]:
        return self._cert.read(), self._key.read(), self._ca.read() if self._ca is not None else None

    def _configure(self, contents: tuple[bytes, bytes, bytes | None]) -> grpc.ServerCertificateConfiguration:
        cert, key, roots = contents
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # From the files, since nothing else in the standard library reads a pair; a key is never copied elsewhere.
            context.load_cert_chain(self._cert.path, self._key.path, password=_no_passphrase)
        except (ssl.SSLError, OSError) as error:
            raise TlsError(
                f"{self._cert.path} and {self._key.path}: no certificate with its key: {_why(error)}"
            ) from None
        if roots is not None:
            _check_roots(roots, context, self._ca)
        if self._read_pair() != contents:
            raise TlsError(f"{self._cert.path}: is being replaced")
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=roots)


def _check_roots(roots: bytes, context: ssl.SSLContext, file: WatchedFile | None) -> None:
    try:
        context.load_verify_locations(cadata=roots.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        where = file.path if file is not None else ""
        raise TlsError(f"{where}: no PEM certificates: {_why(error)}") from None


def _no_passphrase() -> str:
    raise TlsError("the private key is encrypted; a server cannot be asked for its passphrase")


def _why(error: Exception) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else None) or type(error).__name__
