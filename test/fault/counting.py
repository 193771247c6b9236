"""Trainers that know how many of their pushes were answered.

Every gradient is -1 and the rate 1, so each parameter counts the pushes that are in it. Each trainer writes a line for each push
that was answered: at the end every parameter is as many as all of them, so nothing was lost and nothing came twice.
"""

import os
import signal
import subprocess

import processes

COUNTING_TRAINER = os.environ["COUNTING_TRAINER_BIN"]
COUNTING_READER = os.environ["COUNTING_READER_BIN"]
SGD = '{"type":"sgd","lr":1}'
ENDLESS = 10_000_000


class CountingTest(processes.ProcessTest):
    def setUp(self):
        self.trainers = []  # with the ledger of each

    def count(self, addresses, rank=0, world_size=1, pushes=ENDLESS, inflight=2, chunk_bytes=1 << 20, within=()):
        """A trainer that pushes until it is told to end."""
        ledger = self.folder / f"ledger-{len(self.trainers)}"
        ledger.touch()
        trainer = processes.Process(self.folder, self._name("trainer"), [
            *within, COUNTING_TRAINER, addresses, rank, world_size, pushes, inflight, ledger, "cpu", chunk_bytes])
        self.processes.append(trainer)
        self.trainers.append((trainer, ledger))
        return trainer

    def read(self, addresses, when):
        """Who observes: `when` it is "asked" to pull, by asked(), or "always"."""
        reader = processes.Process(self.folder, self._name("reader"), [COUNTING_READER, addresses, when])
        self.processes.append(reader)
        processes.until("it has read the model", lambda: reader.out or not reader.runs())
        self.assertTrue(reader.runs(), reader.err)
        return reader

    def pulls(self, reader):
        """Of each pull that is over, the least and the greatest parameter."""
        return [tuple(map(int, line.split())) for line in reader.out.splitlines() if line.count(" ") == 1]

    def until_pulls(self, reader, what, count=1):
        """Waits for so many more pulls; gives the last one."""
        goal = len(self.pulls(reader)) + count
        processes.until(f"{count} more pulls {what}", lambda: len(self.pulls(reader)) >= goal or not reader.runs())
        self.assertTrue(reader.runs(), reader.err)
        return self.pulls(reader)[-1]

    def asked(self, reader, what):
        """What a reader pulls that is asked to now."""
        reader.signal(signal.SIGUSR1)
        return self.until_pulls(reader, what)

    def answered_each(self):
        return [ledger.stat().st_size // 2 for _, ledger in self.trainers]

    def answered(self):
        return sum(self.answered_each())

    def until_more(self, what, count=30):
        goal = self.answered() + count
        processes.until(f"{count} more pushes are answered {what}", lambda: self.answered() >= goal)

    def end_trainers(self):
        """They finish what is under way and leave."""
        for trainer, _ in self.trainers:
            trainer.signal(signal.SIGTERM)
        for trainer, _ in self.trainers:
            self.assert_ends(trainer)

    def psd(self, *arguments):
        return subprocess.run([processes.PSD, *map(str, arguments)], capture_output=True, text=True, timeout=processes.WAIT_S, check=False)

    def values(self, daemon):
        """The values of all parameters."""
        path = self.folder / "model.safetensors"
        done = self.psd("export", "--server", daemon.address, "--to", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        return processes.all_values(path)

    def check_counts(self, daemon):
        """Ends the trainers, and compares the model with what they were answered."""
        self.end_trainers()
        self.assertEqual(self.values(daemon), {float(self.answered())})
