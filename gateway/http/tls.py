"""TLS of the HTTP port: by the same files as the gRPC ports', read again when they change."""

import ssl

import structlog

from chairlift.runtime.watched_file import WatchedFileError
from gateway.security.tls import CertificateFiles, TlsError

_PORT = "gateway.http_listen"


class HttpTls:
    """A context that follows the files. Connections that are open keep theirs."""

    def __init__(self, files: CertificateFiles) -> None:
        """Reads the files. Raises TlsError and WatchedFileError."""
        self._files = files
        self._contents = files.read()
        self._problem = ""
        self._log = structlog.get_logger()
        self.context = _NewestContext(files.make_context(self._contents))
        """For the port; it stays the same."""

    def reload(self) -> None:
        """New connections get what the files hold now. Files that do not fit leave what was in force, and are told."""
        try:
            contents = self._files.read()
            changed = self._files.changed(self._contents, contents)
            if not changed:
                return
            # A fresh one: a context forgets neither a root nor the sessions of whom it let in.
            self.context.newest = self._files.make_context(contents)
        except (TlsError, WatchedFileError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._log.error("secrets_not_reloaded", port=_PORT, reason=str(error))
            return
        self._contents, self._problem = contents, ""
        for setting in changed:
            self._log.info("secrets_reloaded", setting=setting, port=_PORT)


class _NewestContext(ssl.SSLContext):
    """What a port is opened with; each connection is made of `newest`. asyncio asks a context for nothing else."""

    newest: ssl.SSLContext

    def __new__(cls, newest: ssl.SSLContext) -> "_NewestContext":
        self = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        self.newest = newest
        return self

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """The TLS of one connection."""
        return self.newest.wrap_bio(incoming, outgoing, server_side, server_hostname, session)
