"""Trainers that record how many of their pushes were answered.

Gradients are whole numbers and the learning rate is 1, so the parameters show which pushes are in them. Each trainer
keeps a ledger: at the end every answered push is in every part of the model exactly once, and every other one at most
once.
"""

import os
import signal
import subprocess

import ledgers
import processes

COUNTING_TRAINER = os.environ["COUNTING_TRAINER_BIN"]
COUNTING_READER = os.environ["COUNTING_READER_BIN"]
SGD = '{"type":"sgd","lr":1}'
ENDLESS = 10_000_000


class CountingTest(processes.ProcessTest):
    gradients = "cells"  # or "ones", which trainers outside of rounds may use

    races = False  # whether updates may overwrite one another, so that pulls may miss some

    def setUp(self):
        self.trainers = []  # (trainer, ledger)

    def count(self, addresses, rank=0, world_size=1, pushes=ENDLESS, inflight=2, chunk_bytes=1 << 20, within=()):
        """A trainer that pushes until SIGTERM. `inflight` 0: in rounds."""
        path = self.folder / f"ledger-{len(self.processes)}"
        trainer = processes.Process(self.folder, self._name("trainer"), [
            *within, COUNTING_TRAINER, addresses, rank, world_size, pushes, inflight, path, "cpu", chunk_bytes,
            self.gradients if inflight else "ones"])
        self.processes.append(trainer)
        self.trainers.append((trainer, ledgers.Ledger(rank, path)))
        return trainer

    def read(self, addresses, when):
        """A reader: it pulls on request ("asked", by asked()) or continuously ("always")."""
        reader = processes.Process(self.folder, self._name("reader"), [COUNTING_READER, addresses, when])
        self.processes.append(reader)
        processes.until("it has read the model", lambda: reader.out or not reader.runs())
        self.assertTrue(reader.runs(), reader.err)
        return reader

    def pulls(self, reader):
        """The least and the greatest parameter of each finished pull."""
        return [tuple(map(int, line.split())) for line in reader.out.splitlines() if line.count(" ") == 1]

    def until_pulls(self, reader, what, count=1, ask=lambda: None):
        """Waits for `count` more pulls after the request, and returns the last one."""
        goal = len(self.pulls(reader)) + count
        ask()
        processes.until(f"{count} more pulls {what}", lambda: len(self.pulls(reader)) >= goal or not reader.runs())
        self.assertTrue(reader.runs(), reader.err)
        return self.pulls(reader)[-1]

    def asked(self, reader, what):
        """The pull that a reader makes on request."""
        return self.until_pulls(reader, what, ask=lambda: reader.signal(signal.SIGUSR1))

    @property
    def ledgers(self):
        return [ledger for _, ledger in self.trainers]

    def answered_by_trainer(self):
        return [ledger.answered() for ledger in self.ledgers]

    def answered(self):
        return sum(self.answered_by_trainer())

    def epochs(self):
        """The epochs in which pushes were answered."""
        return {epoch for ledger in self.ledgers for push in ledger.read_new_lines().all_answered() for _, epoch in push.by}

    def until_more(self, what, count=30):
        goal = self.answered() + count

        def more():
            self.assertTrue(any(trainer.runs() for trainer, _ in self.trainers), "all trainers have ended")
            return self.answered() >= goal

        processes.until(f"{count} more pushes are answered {what}", more)

    def until_each_more(self, what, count=30, ranks=None):
        """Waits for `count` more answers for each trainer; `ranks`: only these, if trainers were started in rank order."""
        before = self.answered_by_trainer()
        goals = {rank: before[rank] + count for rank in (range(len(before)) if ranks is None else ranks)}

        def more():
            now = self.answered_by_trainer()
            return all(now[rank] >= goal for rank, goal in goals.items())

        processes.until(f"{count} more pushes of each trainer are answered {what}", more)

    def until_taken_over(self, daemon):
        return daemon.until_status("it has taken over", lambda status: status["replica_set"]["role"] == "primary")

    @staticmethod
    def versions(daemon):
        """The versions of its shards."""
        return {shard["version"] for shard in daemon.status()["shards"]}

    def end_trainers(self):
        """The trainers finish their pushes in flight and leave."""
        for trainer, _ in self.trainers:
            trainer.signal(signal.SIGTERM)
        for trainer, _ in self.trainers:
            self.assert_ends(trainer)
        self.check_ledgers()

    def psd(self, *arguments):
        return subprocess.run([processes.PSD, *map(str, arguments)], capture_output=True, text=True, timeout=processes.WAIT_S, check=False)

    def model_tensors(self, address):
        """The values of each tensor, by name, of the model that the daemon at that address serves, alone or with
        others."""
        path = self.folder / "model.safetensors"
        done = self.psd("export", "--server", address, "--to", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {name: values for name, (_, values) in processes.safetensors(path).items()}

    def values(self, daemon):
        """The values of all parameters, for trainers whose gradients are ones."""
        return {value for values in self.model_tensors(daemon.address).values() for value in values}

    def check_ledgers(self):
        """Checks that hold for any model."""
        self.assertEqual(ledgers.findings(self.ledgers, self.races), [])

    def check_model(self, address, after=None):
        """Every answered push is in every part of the model once, every other one at most once. Requires that no push
        is in flight."""
        self.check_ledgers()
        self.assertEqual(ledgers.count_findings(self.ledgers, self.model_tensors(address)), [], after)

    def check_counts(self, daemon):
        """Ends the trainers, and compares the model with their ledgers."""
        self.end_trainers()
        self.check_model(daemon.address)
