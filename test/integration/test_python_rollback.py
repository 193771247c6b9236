"""psd rollback: the model and its optimizer become those of a published version again, while trainers work."""

import json
import threading
import unittest

import etcd
import numpy as np
import processes

import psd

MODEL = psd.Model("wide", {"w": (1000, 3), "b": (17,)})
ADAM = '{"type":"adam","lr":0.01}'


def gradient(step):
    return np.random.default_rng(step).standard_normal(MODEL.size).astype(np.float32)


class RollbackTest(processes.ProcessTest):
    def serving(self, place="saved", **settings):
        settings.setdefault("policy", "locked")
        settings.setdefault("durability", {"type": "log", "path": str(self.folder / place)})
        settings.setdefault("publish", {"keep": 10})
        settings.setdefault("optimizer", ADAM)
        return self.daemon(listen=(self.unix_address(f"{place}.sock"),), **settings)

    def joined(self, servers):
        client = psd.Client(servers, retry_timeout=processes.WAIT_S)
        self.addCleanup(client.close)
        client.join(MODEL, MODEL.zeros(), 0, 1)
        return client

    def trained(self, client, steps):
        """The values after pushes of these steps' gradients, each computed from the values before."""
        values = MODEL.zeros()
        for step in steps:
            client.pull(values)
            self.assertEqual(client.push(gradient(step)).outcome, "applied")
        client.pull(values)
        return np.array(values)

    def tensors(self, daemon, number):
        path = self.folder / f"version-{number}.safetensors"
        self.psd("export", "--server", daemon.address, "--published", number, path)
        data = path.read_bytes()
        return data[8 + int.from_bytes(data[:8], "little"):]

    def test_values_and_optimizer(self):
        for policy in ("locked", "sync", "hogwild"):
            with self.subTest(policy):
                daemon = self.serving(policy, policy=policy)
                client = self.joined(daemon.address)
                at = self.trained(client, range(3))
                self.psd("publish", "--server", daemon.address)
                expected = self.trained(client, range(3, 6))
                self.psd("checkpoint", "--server", daemon.address)
                self.trained(client, range(100, 104))
                self.psd("publish", "--server", daemon.address)
                said = self.psd("rollback", 1, "--server", daemon.address)
                self.assertIn("the model is that of version 1 again, published as version 3", said)
                self.assertEqual(self.tensors(daemon, 3), self.tensors(daemon, 1))
                self.assertNotEqual(self.tensors(daemon, 2), self.tensors(daemon, 1))
                values = MODEL.zeros()
                client.pull(values)
                np.testing.assert_array_equal(values, at)
                # The optimizer continues as it did then.
                np.testing.assert_array_equal(self.trained(client, range(3, 6)), expected)
                self.assertIn("rollback", self.psd("events", "--server", daemon.address))

    def test_gradients_of_later_versions_are_stale(self):
        daemon = self.serving()
        client = self.joined(daemon.address)
        self.trained(client, range(2))
        self.psd("publish", "--server", daemon.address)
        self.trained(client, range(2, 5))  # ends with a pull
        self.psd("rollback", 1, "--server", daemon.address)
        self.assertEqual(client.push(gradient(5)).outcome, "stale")
        after = self.trained(client, [6])
        self.psd("publish", "--server", daemon.address)
        self.psd("rollback", 1, "--server", daemon.address)
        daemon.kill()
        again = self.serving()
        # From before the rollback, at a daemon that has restarted.
        self.assertEqual(client.push(gradient(7)).outcome, "stale")
        np.testing.assert_array_equal(self.trained(client, [6]), after)
        versions = json.loads(self.psd("versions", "--json", "--server", again.address))["versions"]
        self.assertEqual([each["number"] for each in versions], [1, 2, 3, 4])

    def test_while_trainers_push(self):
        # Each rollback takes a checkpoint.
        daemon = self.serving(durability={"type": "log", "path": str(self.folder / "saved"), "keep": 10})
        client = self.joined(daemon.address)
        self.trained(client, range(3))
        self.psd("publish", "--server", daemon.address)
        outcomes, ended = [], threading.Event()

        def push():
            values = MODEL.zeros()
            while not ended.is_set():
                client.pull(values)
                outcomes.append(client.push(gradient(len(outcomes))).outcome)

        thread = threading.Thread(target=push, daemon=True)
        thread.start()
        try:
            for number in range(2, 6):
                count = len(outcomes)
                processes.until("the trainer pushes", lambda least=count + 3: len(outcomes) > least)
                said = self.psd("rollback", 1, "--server", daemon.address)
                self.assertIn(f"published as version {number}", said)
                # No gradient came in between.
                self.assertEqual(self.tensors(daemon, number), self.tensors(daemon, 1))
        finally:
            ended.set()
            thread.join(processes.WAIT_S)
        self.assertEqual(set(outcomes) - {"applied", "stale"}, set())
        self.assertGreater(outcomes.count("applied"), outcomes.count("stale"))

    def test_a_gradient_that_waits_for_its_round_is_answered(self):
        daemon = self.serving(policy="sync")
        clients = [psd.Client(daemon.address, retry_timeout=processes.WAIT_S) for _ in range(2)]
        for rank, client in enumerate(clients):
            self.addCleanup(client.close)
            client.join(MODEL, MODEL.zeros(), rank, 2)
        values, outcomes = MODEL.zeros(), []

        def push(client):
            own = MODEL.zeros()
            client.pull(own)
            outcomes.append(client.push(gradient(1)).outcome)

        def push_both():
            threads = [threading.Thread(target=push, args=(client,), daemon=True) for client in clients]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(processes.WAIT_S)
                self.assertFalse(thread.is_alive(), "a push was not answered")

        push_both()
        clients[0].pull(values)
        self.psd("publish", "--server", daemon.address)
        push_both()
        waits = threading.Thread(target=push, args=(clients[0],), daemon=True)
        waits.start()
        daemon.until_status("rank 0 waits for its round", lambda status: any(trainer["waits_for"] for trainer in status["trainers"]))
        self.psd("rollback", 1, "--server", daemon.address)
        waits.join(processes.WAIT_S)
        self.assertFalse(waits.is_alive(), "the push was not answered")
        self.assertEqual(self.tensors(daemon, 2), self.tensors(daemon, 1))
        push_both()
        self.assertEqual(outcomes[-2:], ["applied", "applied"])

    def test_updates_that_a_crash_has_lost_are_not_taken_for_others(self):
        settings = {"durability": {"type": "checkpoint", "path": str(self.folder / "saved"), "every_seconds": 3600, "keep": 10}}
        daemon = self.serving(**settings)
        client = self.joined(daemon.address)
        self.psd("checkpoint", "--server", daemon.address)
        self.trained(client, range(2))
        self.psd("publish", "--server", daemon.address)
        daemon.kill()
        client.close()
        daemon = self.serving(**settings)  # without the two updates
        client = self.joined(daemon.address)
        self.trained(client, range(10, 12))
        self.psd("checkpoint", "--server", daemon.address)
        self.assertIn("is not that of version 1", self.refused("rollback", 1, "--server", daemon.address))

    def test_refusals(self):
        live = self.serving("live", policy="hogwild", durability={"type": "checkpoint", "path": str(self.folder / "live")})
        self.joined(live.address)
        self.psd("publish", "--server", live.address)
        self.assertIn("version 1 is live", self.refused("rollback", 1, "--server", live.address))
        daemon = self.serving("plain", durability={"type": "none"})
        client = self.joined(daemon.address)
        self.psd("publish", "--server", daemon.address)
        self.assertIn("this daemon keeps no checkpoints", self.refused("rollback", 1, "--server", daemon.address))
        daemon = self.serving("sparse", durability={"type": "checkpoint", "path": str(self.folder / "sparse"), "every_seconds": 3600})
        client = self.joined(daemon.address)
        self.trained(client, range(2))
        self.psd("publish", "--server", daemon.address)
        self.assertIn("version 7 does not exist yet", self.refused("rollback", 7, "--server", daemon.address))
        self.assertIn("version 1 cannot be rebuilt", self.refused("rollback", 1, "--server", daemon.address))
        self.psd("checkpoint", "--server", daemon.address)
        self.trained(client, range(2, 4))
        self.assertIn("published as version 2", self.psd("rollback", 1, "--server", daemon.address))
        self.assertIn("VERSION", self.refused("rollback", "x", "--server", daemon.address))
        daemon = self.daemon(policy="locked", listen=(self.unix_address("none.sock"),))
        self.assertIn("its configuration has no `publish`", self.refused("rollback", 1, "--server", daemon.address))

    @unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
    def test_a_standby_takes_over_with_the_model_rolled_back(self):
        engine = {"endpoints": etcd.Etcd(self).endpoints, "prefix": "/psd/test"}
        servers = [self.unix_address("a.sock"), self.unix_address("b.sock")]
        pair = {"engine": engine, "replication": {"silence_ms": 1000, "alone_ms": 20_000}}
        primary = self.serving("a", **pair)
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        client = self.joined(servers)
        standby = self.serving("b", **pair)
        primary.until_in_sync()
        at = self.trained(client, range(3))
        self.psd("publish", "--server", primary.address)
        self.trained(client, range(3, 6))
        self.psd("rollback", 1, "--server", primary.address)
        primary.until_in_sync()
        primary.kill()
        standby.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        self.assertEqual(client.push(gradient(6)).outcome, "stale")
        values = MODEL.zeros()
        client.pull(values)
        np.testing.assert_array_equal(values, at)


if __name__ == "__main__":
    processes.main()
