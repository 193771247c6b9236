"""A primary that dies while a standby is syncing, with a large model."""

import socket
import threading
import unittest

import etcd
import numpy as np
import processes

import psd

MODEL = psd.Model("large", {"w": (2 << 20,)})  # 8 MiB, in several parts of the image
HELD_AFTER = 2 << 20  # bytes of the image
PATIENT = {"silence_ms": 1000, "alone_ms": 20_000}


class Relay:
    """A relay before a daemon's Unix socket that passes at most `most` bytes from the daemon on each connection."""

    def __init__(self, path, most):
        self.path, self.most, self.held, self.sockets = str(path), most, threading.Event(), []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        try:
            while True:
                near, far = self.listening.accept()[0], socket.socket(socket.AF_UNIX)
                far.connect(self.path)
                self.sockets += [near, far]
                for pair in ((near, far, None), (far, near, self.most)):
                    threading.Thread(target=self.pump, args=pair, daemon=True).start()
        except OSError:
            return

    def pump(self, source, sink, most):
        passed = 0
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
                passed += len(data)
                if most and passed >= most:
                    return self.held.set()
        except OSError:
            return

    def close(self):
        """Like a machine failure."""
        for each in [self.listening, *self.sockets]:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class PythonStandby(processes.ProcessTest):
    def setUp(self):
        self.etcd = etcd.Etcd(self)

    def one(self, place, addresses=(), **settings):
        return self.daemon(listen=(self.unix_address(f"{place}.sock"),), policy="locked", optimizer='{"type":"sgd","lr":1.0}',
                           durability={"type": "log", "path": str(self.folder / place)},
                           engine={"endpoints": self.etcd.endpoints, "prefix": "/psd/test"},
                           replication={**PATIENT, **({"addresses": list(addresses)} if addresses else {})}, **settings)

    def until_primary(self, daemon, epoch):
        daemon.until_status(f"it is the primary of epoch {epoch}",
                            lambda status: status["replica_set"]["role"] == "primary" and status["replica_set"]["term"] == epoch)

    def test_a_primary_that_dies_while_another_is_syncing_resumes_from_its_log(self):
        relay = Relay(self.folder / "a.sock", HELD_AFTER)
        self.addCleanup(relay.close)
        primary = self.one("a", [relay.address])
        self.until_primary(primary, 1)
        client, down, pushed = psd.Client([self.unix_address("a.sock"), self.unix_address("b.sock")]), -np.ones(MODEL.size, np.float32), 0
        self.addCleanup(client.close)
        client.join(MODEL, MODEL.zeros(), 0, 1)

        def push(count):
            nonlocal pushed
            for _ in range(count):
                client.push(down)
            pushed += count

        push(2)
        reader = psd.Client([self.unix_address("a.sock"), self.unix_address("b.sock")])
        self.addCleanup(reader.close)
        reader.observe(MODEL)
        primary.until_status("it has its first checkpoint", lambda status: status["durability"]["checkpoints"] > 0)
        syncing = self.one("b")
        self.assertTrue(relay.held.wait(processes.WAIT_S), "the copy has not begun")
        push(2)  # to be sent after the image
        self.assertEqual(primary.status()["replica_set"]["standby"], "")
        primary.kill()
        relay.close()
        syncing.until_status("it says what to do", lambda status: "restart the primary" in status["replica_set"]["waits"])
        self.assertEqual(syncing.status()["replica_set"]["role"], "syncing")
        self.assertEqual(syncing.status()["replica_set"]["term"], 1)
        primary = self.one("a")
        self.until_primary(primary, 2)
        push(2)
        primary.until_in_sync()
        push(1)
        primary.kill()
        self.until_primary(syncing, 3)
        push(1)
        for each in (client, reader):
            values = MODEL.zeros()
            each.pull(values)
            self.assertEqual({*values.tolist()}, {float(pushed)})

    def test_a_client_that_finds_a_standby_changes_the_primary(self):
        primary = self.one("a")
        self.until_primary(primary, 1)
        trainer = psd.Client(primary.address)
        self.addCleanup(trainer.close)
        trainer.join(MODEL, MODEL.zeros(), 0, 1)
        standby = self.one("b")
        primary.until_in_sync()
        alone, both = psd.Client(standby.address), psd.Client([standby.address, primary.address])
        for client in (alone, both):
            self.addCleanup(client.close)
            self.assertEqual(client.status()["replica_set"]["role"], "standby")
        with self.assertRaises(psd.Standby):
            alone.set("optimizer.lr=0.5")
        alone.status()
        self.assertEqual(both.set("optimizer.lr=0.5"), "optimizer.lr: 1.0 -> 0.5")
        self.assertEqual(both.status()["replica_set"]["role"], "primary")
        self.assertIn("checkpoint-", both.checkpoint())


if __name__ == "__main__":
    processes.main()
