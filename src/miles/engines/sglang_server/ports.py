"""Ports for servers: each engine has a range of its own, below those that the system hands out."""

import socket
from collections.abc import Iterable

from miles.errors import EngineError

PORTS_PER_ENGINE = 100


def port_range(number: int, first_port: int) -> range:
    """The ports of engine ``number``."""
    begin = first_port + number * PORTS_PER_ENGINE
    return range(begin, begin + PORTS_PER_ENGINE)


def free_port(host: str, ports: Iterable[int]) -> int:
    """The first port that nobody listens on.

    Raises:
        EngineError: there is none, or the host has no such address.
    """
    words = "there is none"
    for port in ports:
        try:
            with socket.create_server((host, port)):
                return port
        except OSError as error:
            words = str(error)
    raise EngineError(f"no port of {ports} is free at {host} ({words}). End what holds them, or choose others.")
