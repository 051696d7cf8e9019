"""Ports for servers: each engine has a range of its own, below those that the system hands out."""

import socket
from collections.abc import Sequence

from miles.errors import EngineError

PORTS_PER_ENGINE = 100


def port_range(number: int, first_port: int) -> range:
    """The ports of engine ``number``."""
    begin = first_port + number * PORTS_PER_ENGINE
    return range(begin, begin + PORTS_PER_ENGINE)


def free_port(host: str, ports: Sequence[int]) -> int:
    """The first port that nobody listens on.

    Raises:
        EngineError: there is none, or the host has no such address.
    """
    words = ""
    for port in ports:
        try:
            with socket.create_server((host, port)):
                return port
        except OSError as error:
            words = str(error)
    raise EngineError(
        f"none of the ports {ports[0]} to {ports[-1]} is free at {host} (the last: {words}). End what holds them, or choose "
        "others with --engine-first-port."
    )
