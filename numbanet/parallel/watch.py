"""`Watch`: connections between the ranks beside MPI, by which a rank that ended, for any reason, is noticed by all others.

Rank 0 listens, and all others connect to it. If a process ends, its system closes its connection; rank 0 tells the others. MPI
itself says nothing to ranks that wait for the one that ended.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import sys
import threading
from typing import Any

SECONDS = 5.0  # to connect
ALIVE = (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 2))  # a machine that is gone is noticed after 7 seconds


class Watch:
    """The connections of one rank.

    Attributes
    ----------
    failure : str
        What has happened to another rank; "" if nothing has.
    ended : list of int
        Ranks whose programs have ended, without an error. That is none, unless this rank waits for one of them.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.failure, self.closed = rank, size, "", False
        self.ended: list[int] = []
        self.others: dict[socket.socket, int] = {}  # by connection, the rank at its other end
        self.server: socket.socket | None = None

    def listen(self) -> tuple[str, int]:
        """On rank 0: wait for connections in a thread. Return the name of the machine and the port."""
        self.server = socket.create_server(("", 0))
        self._run(self._serve)
        return socket.gethostname(), self.server.getsockname()[1]

    def connect(self, host: str, port: int) -> None:
        """On the other ranks: connect to rank 0.

        Raises
        ------
        OSError
            If that is impossible, for example because of a firewall.
        """
        there = "127.0.0.1" if host == socket.gethostname() else host
        connection = _lasting(socket.create_connection((there, port), SECONDS))
        connection.settimeout(None)
        connection.sendall(_line(rank=self.rank))
        self.others[connection] = 0
        self._run(functools.partial(self._read, connection, connection.makefile()))

    def fail(self, reason: str) -> None:
        """Tell the other ranks that this one has failed."""
        self._tell(None, failure=f"rank {self.rank} of {self.size} failed: {reason}")

    def close(self, ended: bool = True) -> None:
        """End; the other ranks do not take it for a failure. `ended`: because the program has ended."""
        self.closed = True
        for connection in list(self.others):
            with contextlib.suppress(OSError):
                connection.sendall(_line(end=self.rank) if ended else _line(leave=True))
                connection.close()
        if self.server is not None:
            self.server.close()

    # --- in threads ---------------------------------------------------------------------------------------------------
    def _run(self, work: Any) -> None:
        threading.Thread(target=work, daemon=True, name="numbanet-watch").start()

    def _serve(self) -> None:
        assert self.server is not None
        with contextlib.suppress(OSError):
            while len(self.others) < self.size - 1:
                connection = self.server.accept()[0]
                try:  # anything may connect to a port
                    connection.settimeout(SECONDS)
                    lines = _lasting(connection).makefile()
                    rank = int(json.loads(lines.readline())["rank"])
                    connection.settimeout(None)
                except (OSError, ValueError, TypeError, KeyError):
                    connection.close()
                    continue
                self.others[connection] = rank
                self._run(functools.partial(self._read, connection, lines))

    def _read(self, connection: socket.socket, lines: Any) -> None:
        """Read the messages of another rank until it ends."""
        rank = self.others[connection]
        while True:
            text = ""
            with contextlib.suppress(OSError, ValueError):
                text = lines.readline()
            message = json.loads(text) if text.endswith("\n") else {}
            if "end" in message:
                self.ended.append(message["end"])
                if self.rank == 0:
                    self._tell(connection, **message)
                continue
            if not self.closed and rank not in self.ended and "leave" not in message:
                reason = message.get("failure") or f"rank {rank} of {self.size} has ended: it was killed, or its machine failed"
                self.failure = self.failure or reason
                if "failure" not in message:  # at once, because the launcher is about to kill this process
                    print(f"numbanet: {reason}", file=sys.stderr, flush=True)
                if self.rank == 0:
                    self._tell(connection, failure=reason)
            return

    def _tell(self, but: socket.socket | None, **message: Any) -> None:
        for connection in list(self.others):
            if connection is not but:
                with contextlib.suppress(OSError):
                    connection.sendall(_line(**message))


def _line(**message: Any) -> bytes:
    return (json.dumps(message) + "\n").encode()


def _lasting(connection: socket.socket) -> socket.socket:
    """Return a connection over which the system asks whether the other machine is alive."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in ALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection
