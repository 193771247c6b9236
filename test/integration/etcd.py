"""A real etcd of one member for tests, where Debian's etcd-server or another one is installed."""

import base64
import json
import shutil
import socket
import urllib.error
import urllib.request

import processes

PROGRAM = shutil.which("etcd")
ATTEMPTS = 5


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Etcd:
    """A member that answers, with its data in the test's folder. `endpoint` stays over restarts."""

    def __init__(self, test):
        self.test = test
        # Another program may be quicker at a port that was free.
        for _ in range(ATTEMPTS):
            self.data = test.folder / f"etcd-{free_port()}"
            self.endpoint, self.peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
            if self.start():
                return
        raise AssertionError("etcd did not start")

    def start(self, empty=False):
        """False: it ended before it answered. `empty`: without what it held."""
        if empty:
            shutil.rmtree(self.data)
        self.process = processes.Process(self.test.folder, self.test._name("etcd"), [
            PROGRAM, "--data-dir", self.data, "--unsafe-no-fsync", "--listen-client-urls", self.endpoint,
            "--advertise-client-urls", self.endpoint, "--listen-peer-urls", self.peer,
            "--initial-advertise-peer-urls", self.peer, "--initial-cluster", f"default={self.peer}"])
        self.test.processes.append(self.process)
        processes.until("etcd answers", lambda: self.answers() or not self.process.runs())
        return self.process.runs()

    def answers(self):
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=1) as answer:
                return b"true" in answer.read()
        except (OSError, urllib.error.URLError):
            return False

    def remove(self, key):
        """Gives how many keys of that name there were."""
        body = json.dumps({"key": base64.b64encode(key.encode()).decode()}).encode()
        with urllib.request.urlopen(f"{self.endpoint}/v3/kv/deleterange", data=body, timeout=processes.WAIT_S) as answer:
            return int(json.load(answer).get("deleted", 0))

    def kill(self):
        self.process.kill()
