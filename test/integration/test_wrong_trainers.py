"""Mistakes with a trainer: one clear line, a non-zero exit, and a daemon that is unharmed."""

import gzip
import signal
import socket
import struct
import subprocess

import processes


class WrongArguments(processes.ProcessTest):
    def refuse(self, arguments, *words):
        with self.subTest(arguments=arguments):
            self.assert_fails(self.start_trainer(*arguments), *words)

    def train_arguments(self, **changes):
        values = {"server": self.unix_address("none.sock"), "data": "synthetic:64", "rank": 0, "world-size": 1}
        values.update({key.replace("_", "-"): value for key, value in changes.items()})
        return ["train", *(part for key, value in values.items() for part in ("--" + key, value))]

    def test_flags(self):
        self.refuse(["trian"], "trian")
        self.refuse([], "a command is missing, as in 'psd-trainer train")
        self.refuse(["train", "--sever", "tcp://localhost", "--data", "synthetic"], "--sever", "did you mean --server?")
        self.refuse(self.train_arguments(steps="many"), "--steps", "'many'")
        self.refuse(self.train_arguments(batch_size=0), "--batch-size", "'0'")
        self.refuse(self.train_arguments(steps=1, epochs=1), "--steps and --epochs")
        self.refuse(self.train_arguments(server="localhost:5500"), "--server", "localhost:5500", "tcp://")
        self.refuse(self.train_arguments(log_level="loud"), "--log-level", "'loud'")
        self.refuse(self.train_arguments(micro_batches=2), "--micro-batches: requires --execute")
        self.refuse(["train", "--execute", self.unix_address(), "--data", "synthetic:64", "--micro-batches", 0], "--micro-batches", "'0'")
        self.refuse(self.train_arguments(metrics="no/such/folder/metrics"), "--metrics", "no/such/folder")

    def test_ranks(self):
        self.refuse(self.train_arguments(rank=2, world_size=2), "rank 2", "world size 2")
        self.refuse(["train", "--server", "tcp://localhost", "--data", "synthetic:64", "--world-size", 2], "--rank")

    def test_models_and_devices(self):
        self.refuse(self.train_arguments(model="mnist_cn"), "--model", "mnist_cn", "mnist_cnn")
        self.refuse(self.train_arguments(device="cuda:63"), "--device", "cuda:63")
        self.refuse(self.train_arguments(device="tpu"), "--device", "'tpu'", "cuda:N")

    def test_exit_statuses(self):
        """2: wrong usage; 1: it failed."""
        for status, changes in ((2, {"model": "foo"}), (2, {"data": "foo"}), (2, {"device": "foo"}), (2, {"data": "synthetic:0"}),
                                (2, {"steps": 0}), (1, {"metrics": "no/such/folder/metrics"}), (1, {"connect_timeout": 0.1})):
            with self.subTest(changes=changes):
                trainer = self.start_trainer(*self.train_arguments(**changes))
                self.assert_fails(trainer)
                self.assertEqual(trainer.wait(), status)

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            end = subprocess.run([processes.TRAINER, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((end.returncode, end.stderr), (1, "psd-trainer: standard output: No space left on device\n"))

    def test_no_daemon_at_the_address(self):
        with socket.socket() as bound:  # bound and not listening, so that connections fail
            bound.bind(("127.0.0.1", 0))
            for server in (f"tcp://127.0.0.1:{bound.getsockname()[1]}", self.unix_address("none.sock")):
                self.refuse(self.train_arguments(server=server, connect_timeout=0.3), "no psd daemon answered", "300 ms", server)

    def test_a_silent_server_at_the_address(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
            self.refuse(self.train_arguments(server=address, connect_timeout=0.3), "no psd daemon answered", f"{address}: no answer in time")

    def test_somebody_else_at_the_address(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
            trainer = self.start_trainer(*self.train_arguments(server=address, connect_timeout=0.3))
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n" * 4)
            other.close()
            self.assert_fails(trainer, address)


class WrongData(processes.ProcessTest):
    """A folder of small complete MNIST files, one of which is wrong."""

    NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    SAMPLES = 8

    def images(self, side=28):
        return struct.pack(">IIII", 0x803, self.SAMPLES, side, side) + bytes(self.SAMPLES * side * side)

    def labels(self, label=3):
        return struct.pack(">II", 0x801, self.SAMPLES) + bytes([label] * self.SAMPLES)

    def make_data(self, **replaced):
        """replaced: images and labels of the training set; None omits the file."""
        contents = (replaced.get("images", self.images()), replaced.get("labels", self.labels()), self.images(), self.labels())
        for name, content in zip(self.NAMES, contents):
            (self.folder / name).unlink(missing_ok=True)
            if content is not None:
                (self.folder / name).write_bytes(content)

    def refuse(self, *words, **replaced):
        self.make_data(**replaced)
        trainer = self.train(self.unix_address("none.sock"), data=str(self.folder))
        with self.subTest(words=words):
            self.assert_fails(trainer, "--data", *words)

    def test_whole_files_are_taken(self):
        self.make_data()
        self.assert_ends(self.train(self.daemon().address, data=str(self.folder)))

    def test_wrong_files(self):
        images, labels = self.images(), self.labels()
        self.refuse("train-images-idx3-ubyte", "neither", images=None)
        self.refuse("train-images-idx3-ubyte", "6271 of 6272", images=images[:-1])
        self.refuse("train-images-idx3-ubyte", images=images[:3])
        self.refuse("train-images-idx3-ubyte", images=b"")
        self.refuse("train-images-idx3-ubyte", "0x89504e47", "0x00000803", images=b"\x89PNG\r\n\x1a\n" + images)
        self.refuse("train-images-idx3-ubyte", "0x00000801", "0x00000803", images=labels)
        self.refuse("train-images-idx3-ubyte", "14x14", "28x28", images=self.images(side=14))
        self.refuse("train-labels-idx1-ubyte", "label 10", labels=self.labels(label=10))
        self.refuse("train-labels-idx1-ubyte", "7 labels", labels=struct.pack(">II", 0x801, 7) + bytes(7))

    def test_wrong_compressed_file(self):
        self.make_data(images=None)
        (self.folder / (self.NAMES[0] + ".gz")).write_bytes(gzip.compress(self.images())[:-20])
        self.assert_fails(self.train(self.unix_address("none.sock"), data=str(self.folder)), self.NAMES[0] + ".gz")

    def test_folders_and_names(self):
        for data, words in (("no/such/folder", "'no/such/folder': no such file, folder or data set"), ("synthetic:0", "synthetic:0"),
                            ("cifar:10", "cifar:10")):
            self.assert_fails(self.train(self.unix_address("none.sock"), data=data), "--data", words)


class Disagreements(processes.ProcessTest):
    """Trainers that do not match the daemon or each other."""

    def test_a_rank_that_is_taken(self):
        daemon = self.daemon()
        holder = self.endless_trainer(daemon, 0, 2)
        self.assert_fails(self.train(daemon.address, 0, 2), "rank 0 is taken", str(holder.pid))
        self.assertTrue(holder.runs())
        self.assertEqual(daemon.counter("joins_refused"), 1)

    def test_world_sizes_that_disagree(self):
        daemon = self.daemon()
        holder = self.endless_trainer(daemon, 0, 2)
        self.assert_fails(self.train(daemon.address, 1, 3), "world size", "3", "2")
        self.assertTrue(holder.runs())

    def test_a_world_size_that_the_config_fixes(self):
        daemon = self.daemon(world_size=2)
        self.assert_fails(self.train(daemon.address, 0, 3), "world size of 3", "config", "2")
        self.assertNotIn("serving model", daemon.err, "of a trainer that was refused")
        for trainer in [self.train(daemon.address, rank, 2, steps=2) for rank in range(2)]:
            self.assert_ends(trainer)

    def test_models_that_disagree(self):
        daemon = self.daemon()
        holder = self.endless_trainer(daemon, 0, 2)
        line = self.assert_fails(self.train(daemon.address, 1, 2, "mnist_cnn"), "does not match", "conv1.weight f32[32,1,3,3]")
        self.assertRegex(line, r"fc1\.weight f32\[256,784\]")
        evaluation = self.start_trainer("eval", "--server", daemon.address, "--model", "mnist_cnn", "--data", "synthetic:64")
        self.assert_fails(evaluation, "does not match", "conv1.weight f32[32,1,3,3]")
        self.assertTrue(holder.runs())
        holder.signal(signal.SIGTERM)
        self.assertGreater(holder.wait(), 0)
        self.assert_serves(daemon)

    def test_a_model_that_is_too_large(self):
        daemon = self.daemon(limits__model_bytes=1_000_000)
        self.assert_fails(self.train(daemon.address, 0, 1, "mnist_cnn"), "limits.model_bytes", "1000000")
        self.assert_serves(daemon)

    def test_gradients_that_are_not_finite(self):
        daemon = self.daemon(optimizer='{"type":"sgd","lr":1000000}', policy="locked", membership__grace_ms=86_400_000)
        trainer = self.train(daemon.address, steps=1000)
        self.assert_fails(trainer, "gradient of", "lower learning rate")
        self.assertGreater(daemon.counter("refused_non_finite"), 0)
        self.assert_has_left(daemon)

    def test_memory_that_the_policy_does_not_share(self):
        daemon = self.daemon(policy="locked", listen=(self.unix_address(),), membership__grace_ms=86_400_000)
        self.assert_fails(self.train(daemon.address, more=("--transport", "shm")), "transport shm", "locked")
        self.assert_has_left(daemon)

    def assert_has_left(self, daemon):
        """It left in an orderly way: the daemon does not wait for it."""
        status = daemon.status()
        self.assertEqual((status["trainers"], status["trainers_lost"]), ([], 0))
        self.assertIn("rank 0 left after", daemon.err)


if __name__ == "__main__":
    processes.main()
