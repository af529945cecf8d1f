"""Where a gateway may listen: on loopback, or where callers must prove who they are, or where the settings say so."""

import msgspec

from chairlift.runtime.addresses import Address, check_exposure, parse_address
from chairlift.runtime.settings import GatewaySettings


class GatewayAddresses(msgspec.Struct, frozen=True):
    """Addresses of one gateway's ports: two for gRPC, and HTTP's where there is one."""

    public: Address
    ops: Address
    http: Address | None = None


def gateway_addresses(settings: GatewaySettings) -> GatewayAddresses:
    """All of them, the operator's with the gateway's index. Raises AddressError for one that is open to the world
    and asks for no credentials.
    """
    public = parse_address(settings.listen, "gateway.listen")
    ops = parse_address(settings.ops_listen, "gateway.ops_listen", settings.index)
    allow, has_tokens = settings.allow_insecure_public, settings.auth_file is not None
    is_public_guarded = has_tokens or settings.tls_client_ca_file is not None
    is_ops_guarded = has_tokens or ops_client_ca(settings) is not None
    http = None
    if settings.http_listen:
        http = parse_address(settings.http_listen, "gateway.http_listen")
        check_exposure(http, "gateway.http_listen", allow_public=allow or is_public_guarded)
    return GatewayAddresses(
        check_exposure(public, "gateway.listen", allow_public=allow or is_public_guarded),
        check_exposure(ops, "gateway.ops_listen", allow_public=allow or is_ops_guarded),
        http,
    )


def ops_client_ca(settings: GatewaySettings) -> str | None:
    """The file with the roots of the operators' certificates."""
    return settings.ops_tls_client_ca_file or settings.tls_client_ca_file
