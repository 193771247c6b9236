"""Peers that do not speak the protocol, or do so with malicious intent. After each, the daemon serves as before."""

import json
import random
import re
import resource
import socket
import struct

import processes

MIB = 1 << 20
OPERATORS = 8  # connections beyond limits.connections, reserved for operators


def message(*segments):
    """Cap'n Proto's framing: the number of segments less one, their sizes in words, the segments."""
    sizes = struct.pack(f"<{1 + len(segments)}I", len(segments) - 1, *(len(segment) // 8 for segment in segments))
    return sizes + bytes(-len(sizes) % 8) + b"".join(segments)


class HostileBytes(processes.ProcessTest):
    # Memory that a peer may cost while it is connected and afterwards: buffers, nothing of the size that it announces.
    GROWTH_MAX = 8 * MIB

    def setUp(self):
        self.peers = []
        self.addCleanup(lambda: [peer.close() for peer in self.peers])

    def connect(self, daemon):
        peer = socket.create_connection(("127.0.0.1", daemon.port), timeout=processes.WAIT_S)
        self.peers.append(peer)
        return peer

    def send(self, peer, data):
        """Sends as much as the daemon accepts; it may close the connection before the end."""
        try:
            peer.sendall(data)
        except (ConnectionResetError, BrokenPipeError):
            pass

    def assert_closed(self, peer):
        """The daemon closes the connection; anything that it sends before is read."""
        try:
            while peer.recv(65536):
                pass
        except ConnectionResetError:
            pass

    def assert_dropped(self, daemon, data, *words):
        """The daemon drops a peer that sends this, counts it and logs the reason."""
        before, logged = daemon.counter("connections_dropped"), len(daemon.err)
        peer = self.connect(daemon)
        self.send(peer, data)
        self.assert_closed(peer)
        daemon.until_status("the drop is counted", lambda status: status["counters"]["connections_dropped"] == before + 1)
        for word in ("dropped 127.0.0.1", *words):
            self.assertIn(word, daemon.err[logged:])

    def assert_unharmed(self, daemon):
        # The only open connection is the one that requests the status.
        daemon.until_status("the hostile connections are gone", lambda status: status["gauges"]["connections_open"] == 1)
        self.assert_serves(daemon)

    def assert_small(self, before, daemon):
        if not processes.SANITIZED:  # freed memory is kept
            self.assertLess(daemon.status()["resident_bytes"] - before, self.GROWTH_MAX)

    def test_random_garbage(self):
        daemon = self.daemon()
        for seed in range(20):
            with self.subTest(seed=seed):
                source = random.Random(seed)
                peer = self.connect(daemon)
                self.send(peer, source.randbytes(source.choice([1, 7, 8, 64, 4096, 200_000])))
                self.send(peer, b"\0" * source.choice([0, 8, 64]))
                peer.close()
        self.assert_unharmed(daemon)

    def test_garbage_within_the_framing(self):
        daemon = self.daemon()
        for seed in range(20):
            with self.subTest(seed=seed):
                source = random.Random(seed)
                segments = [source.randbytes(8 * source.choice([0, 1, 2, 9, 600])) for _ in range(source.choice([1, 2, 3, 40]))]
                peer = self.connect(daemon)
                self.send(peer, message(*segments))
                peer.shutdown(socket.SHUT_WR)
                self.assert_closed(peer)
        self.assert_unharmed(daemon)

    def test_pointers_of_all_kinds(self):
        """Root pointers of all kinds: cyclic far pointers, structs beyond the end, lists of 2^29 elements."""
        daemon = self.daemon()
        far_in_circles = message(struct.pack("<Q", 0x2), struct.pack("<Q", 0x2))
        beyond_the_end = message(struct.pack("<Q", 0x0000FFFF_7FFFFFFC))
        huge_list = message(struct.pack("<QQ", 0x1, 0xFFFFFFFF_00000001))
        amplified = message(struct.pack("<QQ", 0x00010000_00000000, 0xFFFFFFF8_00000001))  # 2^29 void elements
        for data in (far_in_circles, beyond_the_end, huge_list, amplified, message(b"")):
            peer = self.connect(daemon)
            self.send(peer, data)
            peer.shutdown(socket.SHUT_WR)
            self.assert_closed(peer)
        self.assert_unharmed(daemon)

    def test_another_protocol(self):
        daemon = self.daemon()
        self.assert_dropped(daemon, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assert_dropped(daemon, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32))
        self.assert_unharmed(daemon)

    def test_an_abort_is_a_goodbye(self):
        """The messages that the library may send before it closes end the connection in an orderly way."""
        daemon = self.daemon()
        # Message{abort = Exception{}}: one word of data with the union's tag, one pointer, to an empty struct.
        abort = message(struct.pack("<QQQ", 0x00010001_00000000, 1, 0xFFFFFFFC))
        peer = self.connect(daemon)
        self.send(peer, abort)
        self.assert_closed(peer)
        self.assert_unharmed(daemon)
        self.assertEqual(daemon.counter("connections_dropped"), 0)
        # Message{return} for a question that was never asked.
        self.assert_dropped(daemon, message(struct.pack("<QQQQQQ", 0x00010001_00000000, 3, 0x00010002_00000000, 77, 0, 0)),
                            "violate the Cap'n Proto RPC protocol")

    def test_half_a_message_then_nothing_more(self):
        daemon = self.daemon()
        whole = message(bytes(800))
        for length in (1, 4, 8, 9, 400, len(whole) - 1):
            peer = self.connect(daemon)
            self.send(peer, whole[:length])
            peer.shutdown(socket.SHUT_WR)
            self.assert_closed(peer)
        self.assert_unharmed(daemon)

    def test_half_a_message_then_silence(self):
        daemon = self.daemon(limits__read_timeout_ms=100)
        idle = self.connect(daemon)
        whole = message(bytes(800))
        for length in (1, 8, 400):
            self.assert_dropped(daemon, whole[:length], "limits.read_timeout_ms")
        self.assertEqual(daemon.counter("connections_dropped"), 3, "a connection without any message may stay")
        idle.close()
        self.assert_unharmed(daemon)

    def test_a_byte_at_a_time(self):
        daemon = self.daemon(limits__read_timeout_ms=200)
        peer = self.connect(daemon)
        peer.settimeout(0.01)

        def trickle():
            try:
                peer.send(b"\0")
                return not peer.recv(1)
            except TimeoutError:
                return False
            except (ConnectionResetError, BrokenPipeError):
                return True

        self.send(peer, struct.pack("<II", 0, 1000))
        processes.until("the daemon loses patience", trickle)
        self.assert_unharmed(daemon)

    def test_oversized_messages_take_no_memory(self):
        daemon = self.daemon()
        before = daemon.status()["resident_bytes"]
        self.assert_dropped(daemon, struct.pack("<II", 0, 0x7FFFFFFF), "limits.message_bytes")
        self.assert_dropped(daemon, struct.pack("<II", 0, MIB + 1), str(8 * MIB + 8))
        self.assert_dropped(daemon, struct.pack("<II", 511, 1) + b"\xff" * 512 * 4, "limits.message_bytes")
        self.assert_dropped(daemon, struct.pack("<II", 512, 1), "segment count")
        self.assert_dropped(daemon, struct.pack("<II", 0xFFFFFFFF, 1), "segment count")
        self.assert_small(before, daemon)
        self.assert_unharmed(daemon)

    def test_large_messages_that_are_announced_take_no_memory(self):
        daemon = self.daemon()
        before = daemon.status()["resident_bytes"]
        for _ in range(100):
            self.send(self.connect(daemon), struct.pack("<II", 0, MIB))
        daemon.until_status("all are open", lambda status: status["gauges"]["connections_open"] == 101)
        self.assert_small(before, daemon)
        for peer in self.peers:
            peer.close()
        self.assert_unharmed(daemon)

    def test_connections_that_come_and_go(self):
        daemon = self.daemon()
        for _ in range(3):
            peers = [self.connect(daemon) for _ in range(200)]
            for peer in peers:
                peer.close()
        self.assert_unharmed(daemon)
        self.assertGreaterEqual(daemon.counter("connections_accepted"), 600)

    def test_idle_connections(self):
        daemon = self.daemon(threads=2)
        for _ in range(300):
            self.connect(daemon)
        daemon.until_status("all are open", lambda status: status["gauges"]["connections_open"] == 301)
        self.assert_serves(daemon)
        daemon.until_status("they are still open", lambda status: status["gauges"]["connections_open"] == 301)
        with open(f"/proc/{daemon.pid}/status", encoding="ascii") as status:
            threads = next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
        self.assertLess(threads, 10, "connections do not need threads")

    def test_a_trainer_trains_beside_a_thousand_idle_connections(self):
        if not processes.TRAINER:
            self.skipTest("psd-trainer is not built")
        idle, needed = 1000, 1200
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < needed:
            self.skipTest(f"{needed} open files are needed, and the hard limit is {hard}")
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        daemon = self.daemon(threads=2, policy="locked")
        before = daemon.status()["resident_bytes"]
        for _ in range(idle):
            self.connect(daemon)
        status = daemon.until_status("all are open", lambda status: status["gauges"]["connections_open"] == idle + 1)
        if not processes.SANITIZED:
            self.assertLess((status["resident_bytes"] - before) / idle, 64 << 10, "bytes of one idle connection")
        self.assert_ends(self.train(daemon.address, steps=50))
        status = daemon.until_status("it has left", lambda status: not status["trainers"])
        self.assertEqual([shard["version"] for shard in status["shards"]], [50] * 4)
        self.assertEqual(status["counters"]["connections_dropped"] + status["counters"]["connections_refused"], 0)
        self.assertGreaterEqual(status["gauges"]["connections_open"], idle + 1)
        for peer in self.peers:
            peer.close()
        self.assert_unharmed(daemon)

    def test_the_limit_of_connections(self):
        daemon = self.daemon(limits__connections=5)
        for _ in range(5):
            self.connect(daemon)
        self.assertEqual(daemon.status()["gauges"]["connections_open"], 6, "an operator is let in")
        self.assertIn("limits.connections (5) are in use; only an operator may log in", daemon.err)
        for _ in range(OPERATORS):
            self.connect(daemon)
        self.assert_closed(self.connect(daemon))
        self.assertIn("limits.connections (5) and the reserve for operators are in use", daemon.err)
        self.assert_fails(self.start_psd("status", "--server", daemon.address), daemon.address)
        for peer in self.peers:
            peer.close()

        def has_capacity():
            status = self.start_psd("status", "--server", daemon.address)
            return status.wait() == 0

        processes.until("there is room again", has_capacity)
        self.assertGreaterEqual(daemon.counter("connections_refused"), 2)
        self.assertEqual(daemon.counter("connections_dropped"), 0)
        self.assert_unharmed(daemon)

    def assert_no_more_than(self, daemon, most):
        """Of more connections than that, the last ones are closed; the others stay until this closes them all."""
        peers = [self.connect(daemon) for _ in range(most + OPERATORS + 1)]
        self.assert_closed(peers[-1])
        self.assertIn(f"limits.connections ({most}) and the reserve", daemon.err)
        for peer in peers:
            peer.close()
        processes.until("there is room again", lambda: self.start_psd("status", "--server", daemon.address).wait() == 0)

    def test_connections_leave_descriptors_for_the_daemons_own_work(self):
        config = self.write("psd.json", '{"limits": {"connections": 1000}}')
        daemon = self.daemon("--config", config, descriptors=80, threads=2)
        line = next(line for line in daemon.err.splitlines() if "limits.connections" in line)
        for word in (" warn ", "asks for 1000 ", " 80 files", "ulimit -n", "LimitNOFILE"):
            self.assertIn(word, line)
        most = int(re.search(r" gets (\d+):", line)[1])
        self.assertLess(most, 60)
        self.assert_no_more_than(daemon, most)
        for wanted, gets in ((2000, most), (5, 5), (most + 1, most)):
            with self.subTest(reloaded=wanted):
                logged = len(daemon.err)
                config.write_text(json.dumps({"limits": {"connections": wanted}}), encoding="utf-8")
                self.assert_ends(self.start_psd("reload", "--server", daemon.address))
                self.assertEqual(f"asks for {wanted} connections and gets {most}:" in daemon.err[logged:], wanted > gets)
                self.assert_no_more_than(daemon, gets)
        self.assert_unharmed(daemon)

    def test_too_few_descriptors_for_one_connection(self):
        for descriptors in (16, 40):
            with self.subTest(descriptors=descriptors):
                process = self.start_psd("--listen", "tcp://127.0.0.1:0", "--set", "threads=1", descriptors=descriptors)
                self.assert_fails(process, "limits.connections", f" {descriptors} files", "ulimit -n")

    def test_on_a_unix_socket(self):
        daemon = self.daemon(listen=(self.unix_address(), "tcp://127.0.0.1:0"))
        for data in (b"GET / HTTP/1.1\r\n\r\n", struct.pack("<II", 0, 0x7FFFFFFF)):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(processes.WAIT_S)
                peer.connect(str(self.folder / "psd.sock"))
                self.send(peer, data)
                self.assert_closed(peer)
        self.assertEqual(daemon.counter("connections_dropped"), 2)
        self.assert_unharmed(daemon)

    def test_while_a_trainer_trains(self):
        if not processes.TRAINER:
            self.skipTest("psd-trainer is not built")
        daemon = self.daemon(policy="locked")
        trainer = self.train(daemon.address, steps=100)
        source = random.Random(7)
        while trainer.runs():
            peer = self.connect(daemon)
            self.send(peer, source.randbytes(source.choice([8, 64, 4096])))
            peer.close()
        self.assert_ends(trainer)
        self.assertEqual([shard["version"] for shard in daemon.status()["shards"]], [100] * 4)
        self.assert_unharmed(daemon)


if __name__ == "__main__":
    processes.main()
