"""psd without any configuration: its address, its messages, and the peers that it serves."""

import ipaddress
import json
import pathlib
import unittest

import namespaces
import processes

REASON = namespaces.reason_to_skip()
LISTENING = "0A"  # a state of /proc/net/tcp
DEFAULT_PORT = 5500  # documented; the tests bind it in a network namespace only
DEFAULT_ADDRESS = f"tcp://localhost:{DEFAULT_PORT}"


def address_of(text):
    """0100007F:157C of /proc/net/tcp, the words of the address in the machine's byte order, as an address and a port."""
    words, port = text.split(":")
    data = b"".join(bytes.fromhex(words[at:at + 8])[::-1] for at in range(0, len(words), 8))
    return ipaddress.ip_address(data), int(port, 16)


class Defaults(processes.ProcessTest):
    def test_what_the_empty_configuration_is(self):
        """The limits among the defaults equal those of an empty file."""
        without, empty = self.start_psd("check"), self.start_psd("check", self.write("empty.json", "{}"))
        for process in (without, empty):
            self.assert_ends(process)
        effective = json.loads(without.out)
        self.assertEqual(effective, json.loads(empty.out))
        self.assertEqual(effective["listen"], [DEFAULT_ADDRESS])
        self.assertEqual(effective["durability"]["type"], "none")
        self.assertEqual((effective["save"], effective["insecure"]), ("", False))

    @unittest.skipIf(REASON, REASON)
    def test_serves_its_own_machine_alone(self):
        """In a network namespace, where the default port is free."""
        namespaces.make("alone")
        self.addCleanup(namespaces.remove, ("alone",))
        within = namespaces.within("alone")
        daemon = processes.Daemon(self.folder, "psd", [], within=within)
        self.processes.append(daemon)
        self.assertEqual({address.rpartition(":")[2] for address in daemon.addresses}, {str(DEFAULT_PORT)})
        listening = [address_of(line.split()[1])
                     for table in ("tcp", "tcp6")
                     for line in pathlib.Path(f"/proc/{daemon.pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]
                     if line.split()[3] == LISTENING]
        self.assertIn(DEFAULT_PORT, [port for _, port in listening])
        for address, _ in listening:
            self.assertTrue(address.is_loopback, listening)
        processes.until("it says that nothing is saved", lambda: "nothing is saved" in daemon.err)
        if processes.TRAINER:
            self.assert_ends(self.train(DEFAULT_ADDRESS, steps=2, within=within))
        self.assert_stops(daemon)

    def test_what_is_saved_is_not_said_to_be_lost(self):
        daemon = self.daemon(save=str(self.folder / "model.safetensors"))
        self.assert_stops(daemon)
        self.assertNotIn("nothing is saved", daemon.err)


if __name__ == "__main__":
    processes.main()
