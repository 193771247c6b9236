"""A daemon and its standby with a real etcd, and trainers that know how many of their pushes were answered.

Every gradient is -1 and the rate 1, so each parameter counts the pushes that are in it. Each trainer writes a line for each push
that was answered: at the end every parameter is as many as all of them, so nothing was lost and nothing came twice.
"""

import os
import signal
import subprocess

import etcd
import processes

COUNTING_TRAINER = os.environ["COUNTING_TRAINER_BIN"]
SGD = '{"type":"sgd","lr":1}'
ENDLESS = 10_000_000


class CountingPairs(processes.ProcessTest):
    def setUp(self):
        self.etcd = etcd.Etcd(self)
        self.trainers = []

    def one(self, listen="tcp://127.0.0.1:0", policy="locked", optimizer=SGD, **settings):
        engine = {"type": "etcd", "endpoints": [self.etcd.endpoint], "prefix": "/psd/test"}
        return self.daemon(listen=(listen,), policy=policy, optimizer=optimizer, engine=engine, shards=3, **settings)

    def pair(self, **settings):
        """A primary and a daemon that is to follow it."""
        primary = self.one(**settings)
        primary.until_status("it is the primary", lambda status: status["group"]["role"] == "primary")
        return primary, self.one(**settings)

    def counting(self, daemons, rank=0, world_size=1, pushes=ENDLESS, inflight=2):
        ledger = self.folder / f"ledger-{rank}"
        ledger.touch()
        trainer = processes.Process(self.folder, self._name("trainer"),
                                    [COUNTING_TRAINER, ",".join(daemon.address for daemon in daemons), rank, world_size, pushes,
                                     inflight, ledger, "cpu", 1 << 20])
        self.processes.append(trainer)
        self.trainers.append((trainer, ledger))
        return trainer

    def answered(self):
        return sum(ledger.stat().st_size // 2 for _, ledger in self.trainers)

    def until_more(self, what, count=50):
        goal = self.answered() + count
        processes.until(f"{count} more pushes are answered {what}", lambda: self.answered() >= goal)

    def until_primary(self, daemon, epoch):
        daemon.until_status(f"it is the primary of epoch {epoch}",
                            lambda status: status["group"]["role"] == "primary" and status["group"]["epoch"] == epoch)

    def until_alone(self, primary):
        primary.until_status("it is alone", lambda status: status["group"]["standby"] == status["group"]["follower"] == "")

    def restarted(self, dead, **settings):
        """A daemon at the addresses of one that is dead."""
        return self.one(listen=dead.address, **settings)

    def killed_again_and_again(self, primary, standby, times, **settings):
        """Kills the primary so many times, each dead one coming back as the standby; gives the last primary."""
        for kill in range(times):
            primary.until_in_sync()
            self.until_more("before the primary is killed", 20)
            primary.kill()
            self.until_primary(standby, kill + 2)
            self.until_more("by its standby", 20)
            primary, standby = standby, self.restarted(primary, **settings)
        return primary

    def check_counts(self, daemon):
        """Ends the trainers, and compares the model with what they were answered."""
        for trainer, _ in self.trainers:
            trainer.signal(signal.SIGSTOP)  # what is under way is settled before anything is read
        for trainer, _ in self.trainers:
            trainer.signal(signal.SIGCONT)
        for trainer, _ in self.trainers:
            self.assert_ends(trainer)
        total = self.answered()
        self.assertEqual(self.values(daemon), {float(total)})

    def psd(self, *arguments):
        return subprocess.run([processes.PSD, *arguments], capture_output=True, text=True, timeout=processes.WAIT_S, check=False)

    def tables(self, daemon):
        """By table, its rows as an exported file has them, in a checkpoint that the daemon takes now."""
        done = self.psd("checkpoint", "--server", daemon.address)
        self.assertEqual(done.returncode, 0, done.stderr)
        tables = {}
        for table in daemon.status()["tables"]:
            file = self.folder / f"{daemon.name}-{table['name']}"
            exported = self.psd("export", done.stdout.strip(), "--table", table["name"], "--to", file)
            self.assertEqual(exported.returncode, 0, exported.stderr)
            tables[table["name"]] = file.read_bytes()
        return tables

    def values(self, daemon):
        """The values of all parameters."""
        path = self.folder / "model.safetensors"
        done = self.psd("export", "--server", daemon.address, "--to", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        return processes.all_values(path)
