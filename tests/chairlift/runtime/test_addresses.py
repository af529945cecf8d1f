"""Addresses are read as every process reads them, and those that the world reaches are refused unless told."""

import pytest

from chairlift.runtime.addresses import AddressError, check_exposure, is_loopback_host, parse_address


@pytest.mark.parametrize(
    ("text", "offset", "expected"),
    [("127.0.0.1:5", 3, "127.0.0.1:8"), ("[::1]:0", 3, "[::1]:0"), ("localhost:65535", 0, "localhost:65535")],
)
def test_addresses(text: str, offset: int, expected: str) -> None:
    address = parse_address(text, "s", offset)
    assert str(address) == expected
    assert check_exposure(address, "s", allow_public=False) is address


@pytest.mark.parametrize("text", ["", "host", ":5", "::1:5", "h:x", "h:99999", "h:65535"])
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(AddressError, match=r"gateway\.listen"):
        parse_address(text, "gateway.listen", 1)


@pytest.mark.parametrize("text", ["0.0.0.0:5", "[::]:5", "example.org:5", "192.168.1.1:5"])
def test_the_world_is_kept_out_until_that_is_wanted(text: str) -> None:
    address = parse_address(text, "gateway.listen")
    with pytest.raises(AddressError, match="allow_insecure_public"):
        check_exposure(address, "gateway.listen", allow_public=False)
    assert check_exposure(address, "gateway.listen", allow_public=True) is address


@pytest.mark.parametrize("text", ["50051", "host", ":1", "::1:50051", "a:b", "a:65536", "a:-1", "a:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError, match=r"expected HOST:PORT|port must be a number"):
        parse_address(text, "s")


def test_addresses_are_written_as_they_are_read() -> None:
    for text in ("127.0.0.1:1", "[::1]:50051", "example.org:0"):
        assert str(parse_address(text, "s")) == text
    assert str(parse_address("0.0.0.0:5", "s").for_clients()) == "127.0.0.1:5"
    assert str(parse_address("[::]:5", "s").for_clients()) == "[::1]:5"


@pytest.mark.parametrize(
    ("host", "is_here"),
    [("localhost", True), ("127.9.9.9", True), ("::1", True), ("localhost.example.org", False), ("::", False)],
)
def test_only_what_cannot_be_another_machine_is_loopback(host: str, is_here: bool) -> None:
    """A name that a resolver answers may be anybody."""
    assert is_loopback_host(host) is is_here
