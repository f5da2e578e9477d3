"""A port that cannot be had is named before anything else is done."""

import socket

import pytest

from gameserver.http.listener import PortTaken, authority, bind


def test_a_taken_port_is_named_with_the_option_that_chooses_it() -> None:
    with bind("127.0.0.1", 0, "--port") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"127\.0\.0\.1:{port}.*--console-port"):
            bind("127.0.0.1", port, "--console-port")


def test_a_host_that_is_not_ours_is_an_error_of_the_same_kind() -> None:
    with pytest.raises(PortTaken):
        bind("no-such-host.invalid", 0, "--port")


def test_ipv6_addresses_stand_in_brackets() -> None:
    assert authority("::1", 80) == "[::1]:80"
    assert authority("127.0.0.1", 80) == "127.0.0.1:80"


def test_sockets_are_ordinary_listening_ones() -> None:
    with (
        bind("127.0.0.1", 0, "--port") as sock,
        socket.create_connection(sock.getsockname(), timeout=5),
    ):
        pass
