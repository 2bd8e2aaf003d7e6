"""Addresses as operators write them, and ports that are free on every family or not at all."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.errors import AddressInUse, ConfigError
from reactant_node.transport.addresses import check_free, is_loopback, is_wildcard, parse_address, peer_host
from reactant_node.transport.interface import Address
from tests.support.wire_calls import needs_ipv6


def listener_on(family: socket.AddressFamily, host: str, port: int = 0) -> socket.socket:
    """A listening socket, IPv6 ones on that family only."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen()
    return listener


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8001", Address("127.0.0.1", 8001)),
        ("[::1]:8001", Address("::1", 8001)),
        ("worker-3.example:0", Address("worker-3.example", 0)),
        ("0.0.0.0:65535", Address("0.0.0.0", 65535)),
    ],
)
def test_an_address_is_host_and_port(text: str, expected: Address) -> None:
    """host:port is read, and written again the same way."""
    assert parse_address(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", ":8001", "host:", "host:x", "host:-1", "host:65536", "::1:8001", "[::1]", "[h]:1", "a/b:1", "h:²"],
)
def test_anything_else_is_refused_with_the_way_out(text: str) -> None:
    """What is no host:port is a ConfigError that quotes it."""
    with pytest.raises(ConfigError, match="use "):
        parse_address(text)


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    """No text raises anything but ConfigError, and what is accepted has a port in range."""
    try:
        assert 0 <= parse_address(text).port <= 65535
    except ConfigError:
        return


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_this_machine_talking_to_itself(host: str) -> None:
    """Loopback addresses of both families, and IPv4 ones that IPv6 carries."""
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1", "0.0.0.0", "localhost", ""])
def test_anybody_else(host: str) -> None:
    """Other addresses, names, and what has no address at all."""
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:51234", "127.0.0.1"),
        ("ipv6:%5B::1%5D:51234", "::1"),
        ("ipv6:[2001:db8::1]:1", "2001:db8::1"),
        ("unix:/run/127.0.0.1:80", ""),
        ("", ""),
    ],
)
def test_the_host_in_grpcs_name_of_a_peer(peer: str, host: str) -> None:
    """Only an address of the internet protocols counts."""
    assert peer_host(peer) == host


def test_wildcards() -> None:
    """Both families' unspecified addresses are wildcards; names and other addresses are not."""
    assert [host for host in ("0.0.0.0", "::", "127.0.0.1", "::1", "localhost", "") if is_wildcard(host)] == [
        "0.0.0.0",
        "::",
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_a_taken_port_is_named(host: str) -> None:
    """A listener on the loopback address takes the port from that address, from its name and from the wildcard."""
    with listener_on(socket.AF_INET, "127.0.0.1") as listener:
        port = listener.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"^{host}:{port} is in use by another program"):
            check_free(Address(host, port))
    check_free(Address(host, port))


@needs_ipv6
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_port_taken_on_one_family_is_taken(host: str) -> None:
    """A wildcard needs both families: a listener on ::1 alone takes the port, and the message says where."""
    with listener_on(socket.AF_INET6, "::1") as listener:
        port = listener.getsockname()[1]
        with pytest.raises(AddressInUse, match=r"is in use by another program.*stop that one"):
            check_free(Address(host, port))
        check_free(Address("127.0.0.1", port))


def test_connections_that_linger_are_no_obstacle() -> None:
    """A port whose listener is gone is free, though connections of it are still in TIME_WAIT."""
    with listener_on(socket.AF_INET, "127.0.0.1") as listener:
        address = Address(*listener.getsockname())
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        server.close()
        client.close()
    check_free(address)


def test_any_free_port_is_free() -> None:
    """Port 0 is not tried: the kernel chooses a free one."""
    check_free(Address("no.such.host.invalid", 0))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "localhost"])
@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL], ids=["no IPv6", "IPv6 turned off"])
def test_a_missing_family_is_left_out(host: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without IPv6 the port is judged by IPv4 alone: free if it is free there, taken if it is taken there."""
    real_bind = socket.socket.bind

    class WithoutIpv6(socket.socket):
        def bind(self, address: Any) -> None:
            if self.family == socket.AF_INET6:
                raise OSError(code, "no IPv6")
            real_bind(self, address)

    with listener_on(socket.AF_INET, "127.0.0.1") as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(socket, "socket", WithoutIpv6)
        with pytest.raises(AddressInUse):
            check_free(Address(host, port))
    check_free(Address(host, port))


def test_a_port_that_needs_more_rights_is_a_configuration_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other refusal of the kernel is a ConfigError with its words."""

    class Unprivileged(socket.socket):
        def bind(self, _address: Any) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Unprivileged)
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:80 cannot be listened on: Permission denied"):
        check_free(Address("127.0.0.1", 80))


def test_an_address_of_another_machine_is_a_configuration_mistake() -> None:
    """A host that is not ours, or no host at all, is a ConfigError that says so."""
    with pytest.raises(ConfigError, match=r"this machine has no address 192\.0\.2\.1"):
        check_free(Address("192.0.2.1", 8001))
    with pytest.raises(ConfigError, match="the host cannot be resolved"):
        check_free(Address("no.such.host.invalid", 8001))
