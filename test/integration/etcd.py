"""A real etcd for tests, with one or several members, if Debian's etcd-server or another one is installed."""

import base64
import json
import shutil
import socket
import ssl
import urllib.error
import urllib.request

import processes

PROGRAM = shutil.which("etcd")
ATTEMPTS = 5


def free_port():
    with socket.socket() as probe:
        probe.bind((processes.LOOPBACK, 0))
        return probe.getsockname()[1]


class Member:
    """One member of an etcd cluster, with its data in the test's folder. `endpoint` is stable across restarts.
    `authority`: serves https, with a certificate of that authority."""

    def __init__(self, test, name="default", authority=None):
        self.test, self.name, self.process = test, name, None
        self.tls, self.flags, scheme = None, [], "http"
        if authority:
            certificate, key = authority.sign("etcd", alternatives=f"DNS:localhost,IP:{processes.LOOPBACK}")
            self.tls, scheme = ssl.create_default_context(cafile=authority.path), "https"
            self.flags = ["--cert-file", certificate, "--key-file", key]
        self.data = test.folder / f"etcd-{free_port()}"
        self.endpoint, self.peer = (f"{each}://{processes.LOOPBACK}:{free_port()}" for each in (scheme, "http"))
        self.cluster = f"{name}={self.peer}"

    def launch(self, empty=False):
        """`empty`: discards its data."""
        if empty:
            shutil.rmtree(self.data)
        self.process = processes.Process(self.test.folder, self.test._name("etcd"), [
            PROGRAM, "--name", self.name, "--data-dir", self.data, "--unsafe-no-fsync", "--listen-client-urls", self.endpoint,
            "--advertise-client-urls", self.endpoint, "--listen-peer-urls", self.peer,
            "--initial-advertise-peer-urls", self.peer, "--initial-cluster", self.cluster, *self.flags])
        self.test.processes.append(self.process)

    def start(self, empty=False):
        """Returns False if it ended before it answered."""
        self.launch(empty)
        processes.until("etcd answers", lambda: self.answers() or not self.process.runs())
        return self.process.runs()

    def answers(self):
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=1, context=self.tls) as answer:
                return b"true" in answer.read()
        except (OSError, urllib.error.URLError):
            return False

    def ask(self, path, **body):
        """The member's answer to a call of its API; bytes are passed as base64."""
        words = {name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in body.items()}
        with urllib.request.urlopen(f"{self.endpoint}/v3/{path}", data=json.dumps(words).encode(), timeout=processes.WAIT_S,
                                    context=self.tls) as answer:
            return json.load(answer)

    def value(self, key):
        """The value of a key; None if there is none."""
        found = self.ask("kv/range", key=key.encode()).get("kvs")
        return found and base64.b64decode(found[0]["value"])

    def put(self, key, value):
        self.ask("kv/put", key=key.encode(), value=value)

    def remove(self, key):
        """Returns the number of keys of that name that existed."""
        return int(self.ask("kv/deleterange", key=key.encode()).get("deleted", 0))

    def require_user(self, name, password, prefix):
        """Requires authentication from now on: only root and that user are accepted, and the user may read and write
        keys with that prefix."""
        behind = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        self.ask("auth/user/add", name="root", password="of root")
        self.ask("auth/role/add", name="root")
        self.ask("auth/user/grant", user="root", role="root")
        self.ask("auth/user/add", name=name, password=password)
        self.ask("auth/role/add", name="psd")
        words = {"key": prefix.encode(), "range_end": behind.encode()}
        permission = {"permType": "READWRITE", **{word: base64.b64encode(text).decode() for word, text in words.items()}}
        self.ask("auth/role/grant", name="psd", perm=permission)
        self.ask("auth/user/grant", user=name, role="psd")
        self.ask("auth/enable")

    def kill(self):
        self.process.kill()


class Etcd(Member):
    """A single member, which is ready."""

    def __init__(self, test, authority=None):
        # Another program may have taken the port in the meantime.
        for _ in range(ATTEMPTS):
            super().__init__(test, authority=authority)
            if self.start():
                return
        raise AssertionError("etcd did not start")

    @property
    def endpoints(self):
        return [self.endpoint]


class Cluster:
    """Several members that are ready, with a short election timeout."""

    def __init__(self, test, count=3):
        for _ in range(ATTEMPTS):
            self.members = [Member(test, f"m{number}") for number in range(count)]
            for member in self.members:
                member.cluster = ",".join(f"{each.name}={each.peer}" for each in self.members)
                member.flags = ["--heartbeat-interval", "30", "--election-timeout", "300"]
                member.launch()
            processes.until("etcd answers", lambda: all(member.answers() for member in self.members) or not self.runs())
            if self.runs():
                return
        raise AssertionError("etcd did not start")

    def runs(self):
        return all(member.process.runs() for member in self.members)

    @property
    def endpoints(self):
        return [member.endpoint for member in self.members]

    def leader(self):
        """The current leader."""

        def leads(member):
            told = member.ask("maintenance/status")
            return told["header"]["member_id"] == told.get("leader")

        return processes.until("one of etcd's members leads", lambda: next((each for each in self.members if leads(each)), None))
