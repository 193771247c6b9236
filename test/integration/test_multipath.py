"""One connection over two networks (MPTCP): its throughput is that of both, and it survives the loss of one of them.

Two machines, each a network namespace, with two links between them. Needs root and ip (Debian: iproute2).
"""

import pathlib
import subprocess
import unittest

import namespaces
import processes
from namespaces import run, within

PORT = 5500  # unused elsewhere in the namespace
LINKS = 2
RATE = "200mbit"


class Multipath(processes.ProcessTest):
    def setUp(self):
        self.addCleanup(namespaces.remove, ("server", "trainer"))
        for place in ("server", "trainer"):
            namespaces.make(place)
        server, trainer = namespaces.name("server"), namespaces.name("trainer")
        for i in range(LINKS):
            run("ip", "-n", server, "link", "add", f"net{i}", "type", "veth", "peer", "name", f"net{i}", "netns", trainer)
            for number, place in enumerate((server, trainer), 1):
                run("ip", "-n", place, "addr", "add", f"10.77.{i}.{number}/24", "dev", f"net{i}")
                run("ip", "-n", place, "link", "set", f"net{i}", "up")
                run(*["ip", "netns", "exec", place], "tc", "qdisc", "add", "dev", f"net{i}", "root", "tbf", "rate", RATE,
                    "burst", "128kb", "latency", "50ms")
        for place in (server, trainer):
            run("ip", "-n", place, "mptcp", "limits", "set", "subflow", LINKS, "add_addr_accepted", LINKS)
        run("ip", "-n", server, "mptcp", "endpoint", "add", "10.77.1.1", "dev", "net1", "signal")

    def start(self, option):
        return self.daemon(listen=(self.unix_address("psd.sock"), f"tcp://*:{PORT}{option}"), insecure="true", policy="locked", membership__lease_ms=60_000,
                           within=within("server"))

    def sent(self, link):
        """Bytes that the trainer's machine has sent on the link."""
        return int(run(*within("trainer"), "cat", f"/sys/class/net/net{link}/statistics/tx_bytes"))

    def bench(self, option):
        """The share of a gradient's bytes that used the second link."""
        before = [self.sent(link) for link in range(LINKS)]
        run(*within("trainer"), processes.TRAINER, "bench", "push", "--server", f"tcp://10.77.0.1:{PORT}{option}", "--size", "8M",
            "--seconds", 1)
        first, second = (self.sent(link) - before[link] for link in range(LINKS))
        return second / (first + second)

    def test_a_connection_takes_both_networks_where_both_ends_ask_for_it(self):
        self.start("?multipath")
        self.assertGreater(self.bench("?multipath"), 0.2)
        self.assertLess(self.bench(""), 0.01)

    def test_where_one_end_does_not_it_is_tcp(self):
        self.start("")
        self.assertLess(self.bench("?multipath"), 0.01)

    def test_a_connection_survives_the_loss_of_a_network(self):
        daemon = self.start("?multipath")
        trainer = self.train(f"tcp://10.77.0.1:{PORT}?multipath", steps=10_000_000, within=within("trainer"))
        daemon.until_status("it trains", lambda status: status["counters"]["gradients"] > 20)
        run("ip", "-n", namespaces.name("server"), "link", "set", "net0", "down")
        seen = daemon.status()["counters"]
        daemon.until_status("it trains on", lambda status: status["counters"]["gradients"] > seen["gradients"] + 50)
        self.assertNotIn("again", trainer.err)


def reason_to_skip():
    enabled = pathlib.Path("/proc/sys/net/mptcp/enabled")
    if not enabled.exists() or enabled.read_text().strip() != "1":
        return "the kernel has no MPTCP"
    why = namespaces.reason_to_skip()
    if why is None and subprocess.run(["ip", "mptcp", "limits"], capture_output=True, check=False).returncode != 0:
        why = "this ip knows nothing of MPTCP"
    return why


if __name__ == "__main__":
    SKIPPED = reason_to_skip()
    if SKIPPED:
        Multipath = unittest.skip(SKIPPED)(Multipath)
    processes.main()
