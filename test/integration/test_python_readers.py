"""Readers of the Python package: they reconnect like trainers, and reject options of trainers. Real daemons."""

import signal
import threading

import line_clients
import processes
from line_clients import LINE

import psd


class PythonReaders(line_clients.LineTest):
    def test_a_reader_comes_back_as_a_trainer_does(self):
        address = self.unix_address()

        def started(*folder, **options):
            durable = {"durability__type": "log", "durability__path": str(self.folder.joinpath(*folder))}
            return self.daemon(listen=(address,), policy="locked", optimizer='{"type":"sgd","lr":1.0}', **durable, **options)

        daemon = started("saved")
        trainer, gradient, values = self.joined(daemon), LINE.flatten({"weight": [-1], "bias": 0}), LINE.zeros()
        events = []
        reader = self.client(daemon, on_event=lambda what, line: events.append((what, line)))
        reader.observe(LINE)
        for kill in (True, False, True):
            trainer.push(gradient)
            before = reader.pull(values).versions
            if kill:
                daemon.kill()
            else:
                daemon.signal(signal.SIGTERM)
                self.assert_ends(daemon)
            daemon = started("saved")
            self.assertEqual(reader.pull(values).versions, before)
            self.assertEqual({what for what, _ in events}, {"broke", "back"})
            self.assertIn("reads continue", events[-1][1])
            events.clear()
        # A daemon that resumed without a model has one again when a trainer has sent its values.
        newest = LINE.zeros()
        trainer.pull(newest)
        daemon.kill()
        daemon = started("lost")
        pending = threading.Thread(target=reader.pull, args=(values,), daemon=True)
        pending.start()
        trainer.pull(newest)
        pending.join(processes.WAIT_S)
        self.assertFalse(pending.is_alive())
        self.assertEqual(float(LINE.views(values)["weight"][0]), 3)

    def test_a_reader_that_gave_up_may_observe_again(self):
        address = self.unix_address()
        saved = {"listen": (address,), "durability__type": "log", "durability__path": str(self.folder / "saved")}
        daemon = self.daemon(policy="locked", **saved)
        self.joined(daemon).leave()
        reader = self.client(daemon, retry_timeout=0.2)
        reader.observe(LINE)
        daemon.kill()
        for _ in range(2):
            with self.assertRaises(psd.Unavailable):
                reader.pull(LINE.zeros())
            with self.assertRaisesRegex(psd.Unavailable, "could not reconnect within"):
                reader.observe(LINE)
        self.daemon(policy="locked", **saved)
        processes.until("the reader is back", lambda: self.observes(reader))
        reader.pull(LINE.zeros())

    @staticmethod
    def observes(reader):
        try:
            return reader.observe(LINE)
        except psd.Unavailable:  # the daemon is not running yet
            return None

    def test_what_only_trainers_use_is_refused_to_a_reader(self):
        daemon = self.daemon()
        self.joined(daemon)
        for options in ({"pull_codec": "nonsense"}, {"pull_codec": "bf16"}, {"codec": "bf16"}, {"connections": 2}, {"accept_lost_rows": True}):
            with self.subTest(options), self.assertRaisesRegex(psd.InvalidArgument, f"client with {next(iter(options))}=…, which only a trainer uses"):
                self.client(daemon, **options).observe(LINE)
        self.client(daemon, codec="none", pull_codec="none").observe(LINE)


if __name__ == "__main__":
    processes.main()
