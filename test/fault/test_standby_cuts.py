"""A primary, its standby, etcd and a trainer, each in its own network namespace: cut off from one another, in one or
both directions.

Needs root, ip (Debian: iproute2) and nft (nftables).
"""

import unittest

import counting
import etcd
import namespaces
import processes
from counting_pairs import PATIENT
from namespaces import within

PORT = 5500  # unused elsewhere in the namespace
LEASE_MS = 3000
PLACES = {"etcd": "10.77.0.1", "a": "10.77.0.2", "b": "10.77.0.3", "trainer": "10.77.0.4"}


class StandbyCuts(counting.CountingTest):
    def setUp(self):
        super().setUp()
        self.network = namespaces.Network(PLACES)
        self.addCleanup(self.network.close)
        self.start_etcd()
        self.daemons = {}
        for place in "ab":
            self.daemons[place] = self.daemon(
                listen=(self.unix_address(f"{place}.sock"), f"tcp://{PLACES[place]}:{PORT}"), policy="locked", insecure="true",
                optimizer=counting.SGD, shards=3, within=within(place), membership={"lease_ms": LEASE_MS},
                # Without the Unix socket, by which the test reaches the daemons whatever is cut.
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
        """The place of the primary with the highest epoch."""
        groups = {place: daemon.status()["replica_set"] for place, daemon in self.daemons.items()}
        primaries = [place for place, group in groups.items() if group["role"] == "primary"]
        return max(primaries, key=lambda place: groups[place]["term"], default=None)

    def in_sync(self):
        self.daemons[self.primary()].until_in_sync()
        return self.primary()

    def in_sync_with_trainers(self):
        """The primary's place, once a trainer pushes there and its standby holds the pushes."""
        self.count(",".join(f"tcp://{PLACES[place]}:{PORT}" for place in "ab"), chunk_bytes=1 << 18, within=within("trainer"))
        self.until_more("at first")
        return self.in_sync()

    def test_cuts_lose_nothing(self):
        self.in_sync_with_trainers()
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
                self.network.restore()
        self.in_sync()
        self.check_counts(self.daemons[self.primary()])

    def test_a_trainer_that_reaches_the_standby_alone_is_lost_and_rejoins(self):
        primary = self.in_sync_with_trainers()
        daemon, standby = (self.daemons[place] for place in (primary, "ab".replace(primary, "")))
        self.network.part("trainer", primary)
        daemon.until_status("the trainer is lost", lambda status: status["trainers_lost"] == 1)
        answered = self.answered()
        self.assertEqual(standby.until_status("it follows", lambda status: status["replica_set"]["role"] == "standby")["replica_set"]["term"], 1)
        self.assertEqual((self.primary(), self.answered()), (primary, answered))
        self.network.restore()
        self.until_more("once it reaches the primary again")
        self.assertEqual(daemon.until_in_sync()["replica_set"]["term"], 1)
        self.check_counts(daemon)


if __name__ == "__main__":
    SKIPPED = namespaces.reason_to_skip((etcd.PROGRAM or "etcd", "etcd-server"), ("nft", "nftables"))
    if SKIPPED:
        StandbyCuts = unittest.skip(SKIPPED)(StandbyCuts)
    processes.main()
