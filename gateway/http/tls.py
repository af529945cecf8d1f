"""The certificate of the HTTP port: the same files as the gRPC ports', read again when they change."""

import ssl

import structlog

from chairlift.runtime.watched_file import WatchedFile, WatchedFileError
from gateway.security.tls import TlsError


class HttpTls:
    """A context whose certificate follows the files. Connections that are open keep theirs."""

    def __init__(self, cert_file: str, key_file: str, client_ca_file: str | None) -> None:
        """Reads the files. Raises TlsError and WatchedFileError."""
        self._cert = WatchedFile(cert_file, "gateway.tls_cert_file")
        self._key = WatchedFile(key_file, "gateway.tls_key_file")
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._contents = self._load()
        self._problem = ""
        if client_ca_file is not None:
            try:
                self.context.load_verify_locations(cafile=client_ca_file)
            except (ssl.SSLError, OSError) as error:
                raise TlsError(f"{client_ca_file}: no PEM certificates: {type(error).__name__}") from None
            self.context.verify_mode = ssl.CERT_REQUIRED

    def reload(self) -> None:
        """New connections get what the files hold now. Files that are no pair leave what was in force, and are told."""
        try:
            if (self._cert.read(), self._key.read()) != self._contents:
                self._contents = self._load()
                self._problem = ""
        except (TlsError, WatchedFileError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                structlog.get_logger().error("secrets_not_reloaded", setting="gateway.http_listen", reason=str(error))

    def _load(self) -> tuple[bytes, bytes]:
        contents = self._cert.read(), self._key.read()
        # A pair that does not fit must not leave the context without one: it is tried on another first.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
            try:
                context.load_cert_chain(self._cert.path, self._key.path, password=_no_passphrase)
            except (ssl.SSLError, OSError) as error:
                why = f"no certificate with its key: {type(error).__name__}"
                raise TlsError(f"{self._cert.path} and {self._key.path}: {why}") from None
        return contents


def _no_passphrase() -> str:
    raise TlsError("the private key is encrypted; a server cannot be asked for its passphrase")
