#!/usr/bin/env python3
"""A daemon, its standby, etcd and a trainer, each in a network namespace of its own: cut off from one another, one way and both ways.

Needs root, ip (Debian: iproute2) and nft (nftables).
"""

import unittest

import counting
import etcd
import namespaces
import processes
from counting_pairs import PATIENT
from namespaces import run, within

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


class StandbyCuts(counting.CountingTest):
    def setUp(self):
        super().setUp()
        self.network = Network()
        self.addCleanup(self.network.close)
        self.start_etcd()
        self.daemons = {}
        for place in "ab":
            self.daemons[place] = self.daemon(
                listen=(self.unix_address(f"{place}.sock"), f"tcp://{PLACES[place]}:{PORT}"), policy="locked", insecure="true",
                optimizer=counting.SGD, shards=3, within=within(place),
                # Not by the Unix socket, which is this test's way past all cuts.
                replication={**PATIENT, "addresses": [f"tcp://{PLACES[place]}:{PORT}"]},
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

    def in_sync(self):
        self.daemons[self.primary()].until_in_sync()
        return self.primary()

    def test_cuts_lose_nothing(self):
        self.count(",".join(f"tcp://{PLACES[place]}:{PORT}" for place in "ab"), chunk_bytes=1 << 18, within=within("trainer"))
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
        self.check_counts(self.daemons[self.primary()])


if __name__ == "__main__":
    SKIPPED = namespaces.reason_to_skip((etcd.PROGRAM or "etcd", "etcd-server"), ("nft", "nftables"))
    if SKIPPED:
        StandbyCuts = unittest.skip(SKIPPED)(StandbyCuts)
    processes.main()
