# SPDX-License-Identifier: Apache-2.0
"""A listening socket for each server process, so that the kernel spreads connections evenly over the processes."""

import socket
import sys
from contextlib import suppress

MAX_ACCEPTED = 16  # connections that a server process accepts in one iteration of its event loop


def duplicate(listener: socket.socket) -> list[socket.socket]:
    """The listener MAX_ACCEPTED times, itself included. The caller closes all of them.

    uvloop accepts one connection of each socket in an iteration. Iterations are long while the loop sends audio to many
    clients, and a connection would wait for as many of them as there are connections before it.
    """
    return [listener, *(listener.dup() for _ in range(MAX_ACCEPTED - 1))]


class Listeners:
    """The listeners of all server processes, on one address.

    On Linux each process has its own (SO_REUSEPORT), and the kernel chooses one by a hash of a connection's addresses.
    On a listener that all share, the processes that happen to be awake accept most connections. The first listener
    accepts connections from the start, the others once their process listens. It is bound without SO_REUSEPORT, so an
    address that another program uses is still an error.
    """

    def __init__(self, first: socket.socket, count: int) -> None:
        self._shared = sys.platform != "linux" or first.family not in (socket.AF_INET, socket.AF_INET6)
        self._address, self._family = first.getsockname(), first.family
        self._sockets = [first] * count
        if self._shared:
            return
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._sockets = [first, *(self._bind() for _ in range(1, count))]
        except OSError:  # a kernel without it
            self._shared = True

    def __getitem__(self, index: int) -> socket.socket:
        """The listener of a process by its number."""
        return self._sockets[index]

    def replace(self, index: int) -> None:
        """Closes the listener of a process that died, so that new connections go to the others at once."""
        if self._shared:
            return
        old, self._sockets[index] = self._sockets[index], self._bind()
        with suppress(OSError):  # not listening
            old.shutdown(socket.SHUT_RDWR)
        old.close()

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def _bind(self) -> socket.socket:
        """A socket that its process listens on."""
        bound = socket.socket(self._family)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if self._family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(self._address)
        except BaseException:
            bound.close()
            raise
        return bound
