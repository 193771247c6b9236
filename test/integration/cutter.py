"""A relay that breaks connections within a transfer."""

import contextlib
import socket
import threading


class Cutter:
    """A relay to a daemon that breaks its first connections after these numbers of bytes to the client."""

    def __init__(self, test, address, *limits):
        self.test = test
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.target, self.limits, self.connections = (host, int(port)), list(limits), 0
        self.listening = socket.create_server(("127.0.0.1", 0))
        test.addCleanup(self.listening.close)
        self.address = f"tcp://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):  # the test has ended
            while True:
                client = self.listening.accept()[0]
                self.connections += 1
                daemon = socket.create_connection(self.target)
                left = self.limits.pop(0) if self.limits else None
                for each in (client, daemon):
                    self.test.addCleanup(each.close)
                for come, go, most in ((client, daemon, None), (daemon, client, left)):
                    threading.Thread(target=self.relay, args=(come, go, most), daemon=True).start()

    @staticmethod
    def relay(come, go, left):
        with contextlib.suppress(OSError):
            while data := come.recv(65536 if left is None else min(left, 65536)):
                go.sendall(data)
                if left is not None:
                    left -= len(data)
                    if left == 0:
                        break
        for each in (come, go):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
