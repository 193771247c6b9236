"""Readers of the Python package: they reconnect like trainers, and reject options of trainers. Real daemons."""

import signal
import threading

import line_clients
import numpy as np
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
        for options in ({"codec": "bf16"}, {"connections": 2}, {"accept_lost_rows": True}, {"optimizer": "{}"}):
            with self.subTest(options), self.assertRaisesRegex(psd.InvalidArgument, f"client with {next(iter(options))}=…, which only a trainer uses"):
                self.client(daemon, **options).observe(LINE)
        self.client(daemon, codec="none", pull_codec="none").observe(LINE)

    def test_a_reader_chooses_the_codec_of_its_pulls(self):
        daemon = self.daemon(listen=(self.unix_address(),), policy="locked", codecs__pull__default="fp16")
        model = psd.Model("wide", {"w": (1000,)}, [psd.Table("item", 8, "uniform", 1.0)])
        trainer = self.client(daemon)
        trainer.join(model, model.flatten({"w": np.linspace(-1, 1, 1000)}), 0, 1)
        exact, read = model.zeros(), {}
        for codec in ("", "none", "bf16"):
            reader = self.client(daemon, pull_codec=codec, transport="rpc")
            self.assertEqual(reader.observe(model).pull_codec, codec or "none")
            rows, values = reader.rows(), model.zeros()
            rows.make([("item", np.arange(100, dtype=np.uint64))])
            read[codec] = reader.pull(values, rows).bytes, values, rows.values("item")
        self.assertEqual([read[codec][0] for codec in ("none", "bf16")], [read[""][0], read[""][0] // 2])
        reader = self.client(daemon)
        reader.observe(model)
        reader.pull(exact)
        np.testing.assert_array_equal(read[""][1], exact)
        for rounded, whole in zip(read["bf16"][1:], read[""][1:]):
            self.assertFalse(np.array_equal(rounded, whole))
            np.testing.assert_allclose(rounded, whole, rtol=2**-8)
        for codec, why in (("nonsense", "nonsense"), ("topk", "not allowed here")):
            with self.subTest(codec), self.assertRaisesRegex(psd.InvalidArgument, f"pulls: .*{why}"):
                self.client(daemon, pull_codec=codec).observe(model)

    def test_a_reader_with_a_codec_comes_back_with_it(self):
        address = self.unix_address()
        saved = {"listen": (address,), "durability__type": "log", "durability__path": str(self.folder / "saved")}
        daemon = self.daemon(policy="locked", **saved)
        trainer = self.joined(daemon)
        reader, values = self.client(daemon, pull_codec="bf16", transport="rpc", on_event=lambda *_: None), LINE.zeros()
        reader.observe(LINE)
        before = reader.pull(values).bytes
        daemon.kill()
        self.daemon(policy="locked", **saved)
        self.assertEqual(reader.pull(values).bytes, before)
        trainer.leave()

    def test_a_reader_takes_the_model_of_the_daemons(self):
        model = psd.Model("found", {"embed": (301, 7), "scale": (), "fc.weight": (10, 64)},
                          [psd.Table("user", 3, "normal", 0.1, 7), psd.Table("item", 2, "zero")])
        given = model.flatten({"embed": np.random.default_rng(1).random((301, 7), np.float32), "scale": 2, "fc.weight": np.ones((10, 64))})
        for count in (1, 3):
            with self.subTest(daemons=count):
                addresses = [self.unix_address(f"{count}-{i}.sock") for i in range(count)]
                daemons = [self.daemon(listen=(addresses[i],), daemons=addresses, index=i) if count > 1 else self.daemon(listen=(addresses[i],))
                           for i in range(count)]
                trainer, reader = self.client(daemons[0]), self.client(daemons[-1], pull_codec="bf16", transport="rpc")
                with self.assertRaises(psd.NotReady):
                    reader.observe()
                trainer.join(model, given, 0, 1)
                info = reader.observe()
                found = reader.model
                self.assertEqual((found.name, found.shapes, found.signature), (model.name, model.shapes, model.signature))
                self.assertEqual(repr(found.tables), repr(tuple(psd.Table(*table) for table in info.model.tables)))
                self.assertEqual(info.model.shapes, model.shapes)
                self.assertIn("'fc.weight': (10, 64)", repr(info.model))
                self.assertIs(reader.observe(model) and reader.model, model)
                values, rows = found.zeros(), reader.rows()
                rows.make([("user", np.arange(5, dtype=np.uint64))])
                reader.pull(values, rows)
                np.testing.assert_array_equal(found.views(values)["fc.weight"], np.ones((10, 64), np.float32))
                np.testing.assert_allclose(found.views(values)["embed"], model.views(given)["embed"], rtol=2**-8)
                trainer.leave()

    def test_a_reader_waits_for_a_model(self):
        daemon = self.daemon()
        reader = self.client(daemon)
        for wait in (None, 0, 0.05):
            with self.assertRaises(psd.NotReady):
                reader.observe(wait=wait)
        pending = threading.Thread(target=reader.observe, kwargs={"wait": processes.WAIT_S}, daemon=True)
        pending.start()
        self.joined(daemon)
        pending.join(processes.WAIT_S)
        self.assertEqual(reader.model.shapes, LINE.shapes)
        # The end of the client ends the wait.
        other = self.client(self.daemon())
        ended = []

        def waits():
            try:
                other.observe(wait=processes.WAIT_S)
            except psd.Error as error:
                ended.append(error)

        pending = threading.Thread(target=waits, daemon=True)
        pending.start()
        other.interrupt()
        pending.join(processes.WAIT_S)
        self.assertIsInstance(ended[0], psd.Interrupted)


if __name__ == "__main__":
    processes.main()
