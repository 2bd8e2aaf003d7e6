"""Addresses as operators write them, and whether one can be listened on.

A port counts as free only if it is free on every address family that would be served: a server that gets
0.0.0.0:8001 while somebody else keeps [::1]:8001 would answer half of its clients.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from urllib.parse import unquote

from reactant_node.errors import AddressInUse, ConfigError
from reactant_node.transport.interface import Address

_MAX_PORT = 65535
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""What a machine without IPv6, or with it turned off, answers (IPv4 likewise)."""


def parse_address(text: str) -> Address:
    """The address in `host:port`; an IPv6 host stands in brackets, `[::1]:8001`.

    Raises:
        ConfigError: it is no such thing.
    """
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or (":" in host) != bracketed or any(sign in host for sign in "[]/ "):
        raise ConfigError(f"got address {text!r}; use host:port, with an IPv6 host in brackets: [::1]:8001")
    if not (port.isascii() and port.isdecimal() and int(port) <= _MAX_PORT):
        raise ConfigError(f"got port {port!r} in address {text!r}; use 0 to {_MAX_PORT}")
    return Address(host, int(port))


def is_wildcard(host: str) -> bool:
    """Whether a host means every address of this machine, on both families: `0.0.0.0` or `::`."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether an address is this machine talking to itself; also where IPv6 carries an IPv4 one."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def peer_host(peer: str) -> str:
    """The host in gRPC's name of a peer: `ipv4:10.0.0.1:4711`, `ipv6:%5B::1%5D:4711`; empty for anything else."""
    family, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if family in ("ipv4", "ipv6") else ""


def check_free(address: Address) -> None:
    """Bind the address on each of its families and close it again; nothing is done for port 0.

    A family that this machine does not have is left out, as long as one remains. The port may still be lost to
    somebody faster between this and the real bind, which then fails by itself.

    Raises:
        AddressInUse: somebody listens there, on one family at least; names the address.
        ConfigError: the host is no address of this machine, or the port needs more rights.
    """
    if address.port == 0:
        return
    missing: list[OSError] = []
    targets = _bind_targets(address)
    for family, host in targets:
        try:
            _probe(family, host, address.port)
        except OSError as error:
            if error.errno not in _NO_SUCH_FAMILY:
                raise _bind_failure(address, host, error) from error
            missing.append(error)
    if len(missing) == len(targets):
        raise _bind_failure(address, targets[0][1], missing[0]) from missing[0]


def _bind_targets(address: Address) -> list[tuple[socket.AddressFamily, str]]:
    if is_wildcard(address.host):
        return [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]  # noqa: S104 - what the operator asked for
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{address}: the host cannot be resolved ({error.strerror})") from error
    return [(family, str(sockaddr[0])) for family, _, _, _, sockaddr in found]


def _probe(family: socket.AddressFamily, host: str, port: int) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the real listener binds: connections that linger after a restart are no obstacle, listeners are.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind((host, port))


def _bind_failure(address: Address, host: str, error: OSError) -> AddressInUse | ConfigError:
    if error.errno == errno.EADDRINUSE:
        taken = Address(host, address.port)
        by = "" if taken == address else f" ({taken})"
        return AddressInUse(f"{address} is in use by another program{by}; stop that one, or choose another port")
    if error.errno in _NO_SUCH_FAMILY:
        return ConfigError(f"{address}: this machine has no address {host}; use one of its own, or 0.0.0.0 for all")
    return ConfigError(f"{address} cannot be listened on: {error.strerror}")
