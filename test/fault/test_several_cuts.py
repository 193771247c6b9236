"""Two daemons that serve one model, and trainers, each in its own network namespace: a trainer is cut off from one of
the daemons.

Needs root, ip (Debian: iproute2) and nft (nftables).
"""

import subprocess
import unittest

import counting
import namespaces
import processes
from namespaces import within

PORT = 5500  # unused elsewhere in the namespace
PLACES = {"lead": "10.78.0.1", "other": "10.78.0.2", "near": "10.78.0.3", "far": "10.78.0.4"}
DAEMONS = ("lead", "other")
LEASE_MS = 1000


class SeveralCuts(counting.CountingTest):
    gradients = "ones"

    def setUp(self):
        super().setUp()
        self.network = namespaces.Network(PLACES)
        self.addCleanup(self.network.close)
        addresses = [f"tcp://{PLACES[place]}:{PORT}" for place in DAEMONS]
        # The test reaches the daemons by Unix sockets, whatever is cut.
        self.daemons = {place: self.daemon(
            listen=(self.unix_address(f"{place}.sock"), addresses[index]), policy="locked", insecure="true", optimizer=counting.SGD,
            daemons=addresses, index=index, membership={"lease_ms": LEASE_MS}, within=within(place)) for index, place in enumerate(DAEMONS)}
        for rank, place in enumerate(("near", "far")):
            self.count(",".join(addresses), rank, 2, chunk_bytes=1 << 18, within=within(place))

    def psd(self, *arguments):
        """Runs psd where all daemons are reachable."""
        return subprocess.run([*within("near"), processes.PSD, *map(str, arguments)], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)

    def ranks(self, place):
        return [each["rank"] for each in self.daemons[place].status()["trainers"]]

    def test_a_trainer_that_reaches_some_daemons_and_not_others(self):
        for cut in DAEMONS:
            reached = next(place for place in DAEMONS if place != cut)
            with self.subTest(cut=cut):
                self.until_each_more("before the cut")
                self.network.part("far", cut)
                self.daemons[cut].until_status("it counts the trainer as lost", lambda status: [
                    each["rank"] for each in status["trainers"]] == [0])
                waits = self.answered_by_trainer()[1]
                self.until_each_more("while the other one waits", ranks=(0,))
                self.assertEqual(self.answered_by_trainer()[1], waits)
                self.assertIn(1, self.ranks(reached))
                self.network.restore()
                self.until_each_more("once the network is mended")
        self.end_trainers()
        self.assertEqual(self.values(self.daemons["lead"]), {float(self.answered())})


if __name__ == "__main__":
    SKIPPED = namespaces.reason_to_skip(("nft", "nftables"))
    if SKIPPED:
        SeveralCuts = unittest.skip(SKIPPED)(SeveralCuts)
    processes.main()
