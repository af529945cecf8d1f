"""Certificates of a port by files. A new connection gets what the files hold now; open ones keep theirs."""

import ssl

import grpc
import msgspec

from chairlift.runtime.watched_file import WatchedFile

CLIENT_CA = "gateway.tls_client_ca_file"
"""The setting that names the roots of client certificates, where a port has none of its own."""


class TlsError(ValueError):
    """Files that make no server certificate. The message names them and says why; no key is in it."""


class Contents(msgspec.Struct, frozen=True):
    """What the files held at one time."""

    cert: bytes
    key: bytes
    roots: bytes | None


class CertificateFiles:
    """Certificate chain, key and, for mTLS, the roots of client certificates. Keeps none of their content."""

    def __init__(self, cert_file: str, key_file: str, client_ca_file: str | None, ca_setting: str = CLIENT_CA) -> None:
        """`ca_setting` is the setting that `client_ca_file` comes from."""
        self._cert = WatchedFile(cert_file, "gateway.tls_cert_file")
        self._key = WatchedFile(key_file, "gateway.tls_key_file")
        self._ca = WatchedFile(client_ca_file, ca_setting) if client_ca_file is not None else None

    @property
    def asks_for_certificates(self) -> bool:
        """Whether clients prove who they are (mTLS)."""
        return self._ca is not None

    def read(self) -> Contents:
        """What they hold now. Raises WatchedFileError."""
        return Contents(self._cert.read(), self._key.read(), self._ca.read() if self._ca is not None else None)

    def changed(self, before: Contents, now: Contents) -> tuple[str, ...]:
        """The settings whose files hold something else than before."""
        files = (
            (self._cert, before.cert, now.cert),
            (self._key, before.key, now.key),
            (self._ca, before.roots, now.roots),
        )
        return tuple(file.setting for file, old, new in files if file is not None and old != new)

    def make_context(self, contents: Contents) -> ssl.SSLContext:
        """A server's context of `contents`, which are what the files hold still. Raises TlsError, WatchedFileError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            # From the files, since nothing else in the standard library reads a pair; a key is never copied elsewhere.
            context.load_cert_chain(self._cert.path, self._key.path, password=_no_passphrase)
        except (ssl.SSLError, OSError) as error:
            raise TlsError(
                f"{_named(self._cert)} and {_named(self._key)}: no certificate with its key: {_why(error)}"
            ) from None
        if self._ca is not None and contents.roots is not None:
            try:
                context.load_verify_locations(cadata=contents.roots.decode("ascii"))
            except (ssl.SSLError, ValueError) as error:
                raise TlsError(f"{_named(self._ca)}: no PEM certificates: {_why(error)}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        if self.read() != contents:
            raise TlsError(f"{_named(self._cert)}: is being replaced")
        return context


class ServerTls:
    """TLS of a gRPC port. Not thread-safe but for the fetcher."""

    def __init__(self, files: CertificateFiles) -> None:
        """Reads the files. Raises TlsError and WatchedFileError."""
        self._files = files
        self._contents = files.read()
        self._configuration = self._configure(self._contents)

    def reload(self) -> tuple[str, ...]:
        """The settings whose files held something new, which new connections get from now on.

        Raises TlsError and WatchedFileError; what was in force stays so then.
        """
        contents = self._files.read()
        changed = self._files.changed(self._contents, contents)
        if changed:
            self._configuration = self._configure(contents)
            self._contents = contents
        return changed

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
            require_client_authentication=self._files.asks_for_certificates,
        )

    def _configure(self, contents: Contents) -> grpc.ServerCertificateConfiguration:
        # gRPC tells of a bad pair by failing handshakes only.
        self._files.make_context(contents)
        return grpc.ssl_server_certificate_configuration(
            [(contents.key, contents.cert)], root_certificates=contents.roots
        )


def _named(file: WatchedFile) -> str:
    return f"{file.setting} = {file.path}"


def _no_passphrase() -> str:
    raise TlsError("the private key is encrypted; a server cannot be asked for its passphrase")


def _why(error: Exception) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else None) or type(error).__name__
