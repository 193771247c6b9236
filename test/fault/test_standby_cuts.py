#!/usr/bin/env python3
"""A daemon, its standby, etcd and a trainer, each in a network namespace of its own: cut off from one another, one way and both ways.

Every gradient is -1 and the rate 1, so each parameter counts the pushes that are in it; the trainer writes a line for each push that
was answered. Needs root, ip (Debian: iproute2) and nft (nftables).
"""

import os
import unittest

import etcd
import namespaces
import processes
from namespaces import run, within

COUNTING_TRAINER = os.environ["COUNTING_TRAINER_BIN"]
PORT = 5500  # of a namespace that nobody else has
PLACES = {"etcd": "10.77.0.1", "a": "10.77.0.2", "b": "10.77.0.3", "trainer": "10.77.0.4"}


class Network:
    """A namespace for each place, all on one bridge."""

    def __init__(self):
        namespaces.make("hub")
        hub = namespaces.name("hub")
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        for place, address in PLACES.items():
            namespaces.make(place)
            name = namespaces.name(place)
            run("ip", "-n", name, "link", "add", "net0", "type", "veth", "peer", "name", f"to-{place}", "netns", hub)
            run("ip", "-n", hub, "link", "set", f"to-{place}", "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "net0")
            run("ip", "-n", name, "link", "set", "net0", "up")
            self.mend(place)

    def cut(self, sender, receiver):
        """Nothing that `sender` sends to `receiver` leaves it any more."""
        run(*within(sender), "nft", "add", "rule", "inet", "psd", "out", "ip", "daddr", PLACES[receiver], "drop")

    def mend(self, sender):
        run(*within(sender), "nft", "add table inet psd; flush table inet psd; "
            "add chain inet psd out { type filter hook output priority 0; }")

    def close(self):
        namespaces.remove((*PLACES, "hub"))


class StandbyCuts(processes.ProcessTest):
    def setUp(self):
        self.network = Network()
        self.addCleanup(self.network.close)
        self.start_etcd()
        self.daemons = {}
        for place in "ab":
            self.daemons[place] = self.daemon(
                listen=(self.unix_address(f"{place}.sock"), f"tcp://{PLACES[place]}:{PORT}"), policy="locked", insecure="true",
                optimizer='{"type":"sgd","lr":1}', shards=3, within=within(place),
                # Not by the Unix socket, which is this test's way past all cuts.
                replication={"addresses": [f"tcp://{PLACES[place]}:{PORT}"]},
                engine={"type": "etcd", "endpoints": [f"http://{PLACES['etcd']}:2379"], "prefix": "/psd/test"})
            processes.until("there is a primary", self.primary)

    def start_etcd(self):
        client, peer = f"http://{PLACES['etcd']}:2379", f"http://{PLACES['etcd']}:2380"
        member = processes.Process(self.folder, "etcd", [
            *within("etcd"), etcd.PROGRAM, "--data-dir", self.folder / "etcd-data", "--unsafe-no-fsync",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"])
        self.processes.append(member)
        processes.until("etcd serves", lambda: "serving client requests" in member.err or "serving insecure client requests" in member.err
                        or not member.runs())
        self.assertTrue(member.runs(), member.err)

    def primary(self):
        """The place of the primary of the newest epoch."""
        groups = {place: daemon.status()["group"] for place, daemon in self.daemons.items()}
        primaries = [place for place, group in groups.items() if group["role"] == "primary"]
        return max(primaries, key=lambda place: groups[place]["epoch"], default=None)

    def count(self, pushes):
        self.ledger = self.folder / "ledger"
        self.ledger.touch()
        servers = ",".join(f"tcp://{PLACES[place]}:{PORT}" for place in "ab")
        trainer = processes.Process(self.folder, "trainer", [
            *within("trainer"), COUNTING_TRAINER, servers, 0, 1, pushes, 2, self.ledger, "cpu", 1 << 18])
        self.processes.append(trainer)
        return trainer

    def answered(self):
        return self.ledger.stat().st_size // 2

    def until_more(self, what, count=30):
        goal = self.answered() + count
        processes.until(f"{count} more pushes are answered {what}", lambda: self.answered() >= goal)

    def in_sync(self):
        self.daemons[self.primary()].until_in_sync()
        return self.primary()

    def test_cuts_lose_nothing(self):
        pushes = 20_000
        trainer = self.count(pushes)
        for what in ("both ways", "from the primary", "from the standby", "the primary from all"):
            primary = self.in_sync()
            standby = "ab".replace(primary, "")
            self.until_more("before the cut")
            cuts = {"both ways": [(primary, standby), (standby, primary)], "from the primary": [(primary, standby)],
                    "from the standby": [(standby, primary)],
                    "the primary from all": [(primary, place) for place in PLACES if place != primary]}[what]
            with self.subTest(what):
                for sender, receiver in cuts:
                    self.network.cut(sender, receiver)
                self.until_more(f"while cut: {what}")
                if what == "the primary from all":
                    self.assertEqual(self.primary(), standby)
                for place in "ab":
                    self.network.mend(place)
        self.in_sync()
        self.assertTrue(trainer.runs(), "the trainer was done before the last cut")
        self.assertEqual(trainer.wait(), 0, trainer.err)
        self.assertEqual(self.answered(), pushes)
        path = self.folder / "model.safetensors"
        self.assert_ends(self.start_psd("export", "--server", self.daemons[self.primary()].address, "--to", path))
        self.assertEqual(processes.all_values(path), {float(pushes)})


if __name__ == "__main__":
    SKIPPED = namespaces.reason_to_skip((etcd.PROGRAM or "etcd", "etcd-server"), ("nft", "nftables"))
    if SKIPPED:
        StandbyCuts = unittest.skip(SKIPPED)(StandbyCuts)
    processes.main()
