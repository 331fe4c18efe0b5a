"""A TCP proxy between a task and its source: connections can be cut in the middle of a message, or stand still."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from random import Random


class Proxy:
    """Listens on a free port of this machine and hands everything on to another one."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._cut_after: int | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, random: Random) -> int:
        """Ends all connections, each after some more bytes from the server; gives how many."""
        with self._lock:
            self._cut_after = random.randrange(1, 3000)
            there = sum(pair[0].fileno() >= 0 for pair in self._pairs)
        threading.Timer(0.5, self._end).start()
        return there

    def _end(self) -> None:
        with self._lock:
            for pair in self._pairs:
                for one in pair:
                    with suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
            self._pairs, self._cut_after = [], None

    def close(self) -> None:
        """Listens no longer."""
        self._listening.close()
        self._end()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._to), 10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)  # an idle connection stays, as it does without a proxy
            with self._lock:
                self._pairs.append((client, server))
            for one, other, counts in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=(one, other, counts), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                left = self._cut_after if counts else None
                if left is not None:
                    other.sendall(data[:left])
                    break
                other.sendall(data)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
