"""Remote learners, each in its own network namespace: a slow link that loses packets, is cut for longer than a lease,
and an address that changes; the same over TLS with tokens. PSD_FAR_ABSENCE_S: how long the link stays cut beyond the
lease, in seconds.

Needs root, ip and tc (Debian: iproute2) and nft (nftables).
"""

import json
import os
import time
import unittest

import certificates
import namespaces
import processes
from namespaces import run, within

PORT = 5500  # unused elsewhere in the namespace
LEARNERS = 2
RATE = "20mbit"
LEASE_MS = 1500
OUTER = '{"type":"sgd","lr":0.7,"momentum":0.9,"nesterov":true}'
ABSENCE_S = float(os.environ.get("PSD_FAR_ABSENCE_S", "0"))


class Far(processes.ProcessTest):
    """Learners in rounds over bad links to a daemon; `scheme` and secure() set how they authenticate."""

    scheme = "tcp"

    def secure(self):
        """Settings with which the daemon may listen for other machines, and the learners' options."""
        return {"insecure": "true"}, ()

    def setUp(self):
        homes = [f"home{rank}" for rank in range(LEARNERS)]
        self.addCleanup(namespaces.remove, ("server", *homes))
        for place in ("server", *homes):
            namespaces.make(place)
        for rank, home in enumerate(homes):
            run("ip", "-n", namespaces.name("server"), "link", "add", f"net{rank}", "type", "veth", "peer", "name", "net", "netns",
                namespaces.name(home))
            for place, device, address in (("server", f"net{rank}", 1), (home, "net", 2)):
                run("ip", "-n", namespaces.name(place), "addr", "add", f"10.78.{rank}.{address}/24", "dev", device)
                run("ip", "-n", namespaces.name(place), "link", "set", device, "up")
                run(*within(place), "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", RATE, "burst", "64kb", "latency", "100ms")
            # One packet in a hundred is lost in each direction.
            run(*within(home), "nft", "add table inet psd; add chain inet psd in { type filter hook input priority 0; }; "
                "add rule inet psd in iifname net numgen random mod 100 < 1 drop; "
                "add chain inet psd out { type filter hook output priority 0; }; add rule inet psd out oifname net numgen random mod 100 < 1 drop")
        self.listens = self.unix_address("psd.sock"), f"{self.scheme}://*:{PORT}"
        self.settings, self.options = self.secure()
        self.server = self.begin()
        self.learners = [self.train(f"{self.scheme}://10.78.{rank}.1:{PORT}", rank, LEARNERS, data="synthetic:3200", steps=10_000_000,
                                    more=("--retry-timeout", 600, "--connect-timeout", processes.WAIT_S, *self.options), within=within(home))
                         for rank, home in enumerate(homes)]
        self.until_rounds_of({0, 1})

    def begin(self):
        return self.daemon(listen=self.listens, policy="diloco", optimizer=OUTER, **self.settings, policy__period=10, policy__fragments=2,
                           policy__delay=3, policy__blend=0.5, policy__deltas="e3m0", codecs={"push": {"default": "e3m0"}}, policy__quorum=1,
                           policy__grace_ms="auto", policy__grace_max_ms=500, policy__start_trainers=LEARNERS, membership__lease_ms=LEASE_MS,
                           membership__grace_ms=500, durability={"type": "log", "path": str(self.folder / "saved")}, within=within("server"))

    def until_rounds_of(self, ranks, more=5):
        """Until `more` rounds of each fragment have closed, and the newest round of each has exactly these ranks."""
        first = [each["closed"] for each in self.server.status()["rounds"]] or [0, 0]
        self.server.until_status(f"ranks {sorted(ranks)} are in rounds", lambda status: status["rounds"] and all(
            each["closed"] >= before + more and set(each["in"]) == ranks for each, before in zip(status["rounds"], first)))

    def check_return_after_absence(self):
        run("ip", "-n", namespaces.name("server"), "link", "set", "net0", "down")
        self.server.until_status("rank 0 is lost", lambda status: [each["rank"] for each in status["trainers"]] == [1])
        self.until_rounds_of({1})
        end = time.monotonic() + ABSENCE_S
        while time.monotonic() < end:
            self.until_rounds_of({1})
        run("ip", "-n", namespaces.name("server"), "link", "set", "net0", "up")
        self.until_rounds_of({0, 1})
        self.assertTrue(all(learner.runs() for learner in self.learners))

    def check_no_answered_round_is_lost(self):
        closed = [shard["version"] for shard in self.server.status()["shards"]]
        self.server.kill()
        self.server = self.begin()
        self.assertTrue(all(now >= before for now, before in zip((shard["version"] for shard in self.server.status()["shards"]), closed)))
        self.until_rounds_of({0, 1})


class FarLearners(Far):
    def test_they_come_back_from_an_absence(self):
        self.check_return_after_absence()

    def test_they_come_back_from_another_address(self):
        home = namespaces.name("home0")
        run("ip", "-n", home, "addr", "del", "10.78.0.2/24", "dev", "net")
        run("ip", "-n", home, "addr", "add", "10.78.0.9/24", "dev", "net")
        processes.until("rank 0 has come back", lambda: "back after" in self.learners[0].err)
        self.until_rounds_of({0, 1})

    def test_no_answered_round_is_lost_with_the_daemon(self):
        self.check_no_answered_round_is_lost()


class FarLearnersOverTls(Far):
    scheme = "tls"

    def secure(self):
        authority = certificates.Authority(self.folder)
        certificate, key = authority.sign("server", "psd-server", "IP:10.78.0.1,IP:10.78.1.1")
        self.tls_ca, self.reader = authority.path, self.make_token_file("reader", "reader")
        return ({"tls": json.dumps({"certificate": str(certificate), "key": str(key)}), "auth__tokens": str(self.folder / "tokens")},
                ("--tls-ca", authority.path, "--token-file", self.make_token_file("learner", "trainer")))

    def test_they_come_back_from_an_absence_and_lose_no_round_with_the_daemon(self):
        self.check_return_after_absence()
        self.check_no_answered_round_is_lost()

    def test_a_reader_role_is_no_learner(self):
        for token, words in ((("--token-file", self.reader), ("reader",)), ((), ("token",))):
            refused = self.train(f"tls://10.78.0.1:{PORT}", 0, LEARNERS, steps=1, more=("--tls-ca", self.tls_ca, *token), within=within("home0"))
            self.assert_fails(refused, *words)
        self.until_rounds_of({0, 1})


if __name__ == "__main__":
    SKIPPED = namespaces.reason_to_skip(("tc", "iproute2"), ("nft", "nftables"))
    if SKIPPED:
        FarLearners, FarLearnersOverTls = (unittest.skip(SKIPPED)(tests) for tests in (FarLearners, FarLearnersOverTls))
    processes.main()
