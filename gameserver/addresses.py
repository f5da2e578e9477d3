"""Where a client is: at the other end of its socket, or where a trusted proxy says that it is.

Each proxy writes the address of who connects to it at the end of `X-Forwarded-For`. So the header
is read from its end, as far as those who wrote it are trusted; what stands before that, anybody may
have written, and nobody looks at it. `Forwarded` (RFC 7239) is not read: a client's own goes
through proxies that write only the other header.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

#: How much of the header's end is looked at; an address with its port has 47 characters at most.
_MOST_CHARS = 1024
#: A host has all of such a network to choose its addresses from (RFC 4291, 2.5.4).
_HOST_BITS = 64

Address = IPv4Address | IPv6Address


class Networks:
    """A set of networks.

    Args:
        names: each as address/bits.

    Raises:
        ValueError: one of them is no network.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._networks = [ip_network(name) for name in names]

    def __contains__(self, address: Address) -> bool:
        return any(
            address in network for network in self._networks if network.version == address.version
        )


class Proxies:
    """Knows whose word on addresses counts. Raises ValueError for what is no network."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._trusted = Networks(networks)

    def client(self, peer: str, forwarded: Sequence[str]) -> str:
        """The address of a client, IPv4 always written as such.

        Args:
            peer: at the other end of the socket; "" if there is no address there.
            forwarded: the `X-Forwarded-For` headers of the request, in order.

        Returns:
            The last address in them that is no trusted proxy's, if `peer` is one; the first if all
            are; and the peer's where what a proxy has written is no address.
        """
        here = _address(peer)
        if here is None:
            return peer
        client = here
        whole = ",".join(forwarded)
        hops = whole[-_MOST_CHARS:].split(",") if whole else []
        if len(whole) > _MOST_CHARS:
            hops[0] = ""  # cut through
        while client in self._trusted and hops:
            said = _address(_without_port(hops.pop().strip()))
            if said is None:
                return str(here)
            client = said
        return str(client)


def neighbourhood(address: str) -> str:
    """What is counted as one address: for IPv6 the network that one host may have all of."""
    found = _address(address)
    if found is None or found.version == 4:
        return address
    return str(ip_network((found, _HOST_BITS), strict=False))


def contains(networks: Networks, address: str) -> bool:
    """Whether an address is in one of these; also what is none: a Unix socket or the like."""
    found = _address(address)
    return found is None or found in networks


def _address(text: str) -> Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    if found.version == 6:
        if found.scope_id is not None:  # means something on one link only
            return IPv6Address(int(found))
        return found.ipv4_mapped or found
    return found


def _without_port(hop: str) -> str:
    """Some proxies write the port too: 192.0.2.1:4711, [2001:db8::1]:4711. "" if it is none."""
    if hop.startswith("["):
        host, bracket, port = hop[1:].partition("]")
        good = bracket and (not port or _is_port(port.removeprefix(":"), port))
        return host if good and ":" in host else ""
    host, colon, port = hop.partition(":")
    if not colon or ":" in port:
        return hop
    return host if _is_port(port, ":" + port) else ""


def _is_port(digits: str, text: str) -> bool:
    return text == f":{digits}" and digits.isascii() and digits.isdigit() and len(digits) <= 5
