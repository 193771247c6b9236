#!/usr/bin/env python3
"""Three daemons serve one model, each with a log: killed, restarted, stopped for a while and all at once, in a seeded order.

Every gradient is -1 and the rate 1, so each parameter counts the pushes that are in it; each trainer writes a line for each push that
was answered. FAULT_SEVERAL_SECONDS makes a soak of it (as 600), FAULT_SEVERAL_SEED another order.
"""

import os
import random
import signal
import time

import processes

COUNTING_TRAINER = os.environ["COUNTING_TRAINER_BIN"]
SEED = int(os.environ.get("FAULT_SEVERAL_SEED", 1))
SECONDS = float(os.environ.get("FAULT_SEVERAL_SECONDS", 0))
DAEMONS = 3
TRAINERS = 2
PUSHES = 200  # of each trainer; then others take the ranks
FAULT_KINDS = ("kill", "kill", "restart", "stand still", "kill all")


class SeveralDaemonsFaults(processes.ProcessTest):
    def setUp(self):
        self.random = random.Random(SEED)
        self.addresses = [self.unix_address(f"{i}.sock") for i in range(DAEMONS)]
        self.ledgers = []

    def one(self, index):
        durability = {"type": "log", "path": str(self.folder / f"saved-{index}"), "every_updates": 200}
        return self.daemon(listen=(self.addresses[index],), daemons=self.addresses, index=index, policy="locked",
                           optimizer='{"type":"sgd","lr":1}', durability=durability)

    def trainer(self, rank):
        ledger = self.folder / f"ledger-{len(self.ledgers)}"
        ledger.touch()
        self.ledgers.append(ledger)
        process = processes.Process(self.folder, self._name("trainer"), [
            COUNTING_TRAINER, self.addresses[rank % DAEMONS], rank, TRAINERS, PUSHES, 2, ledger, "cpu", 1 << 18])
        self.processes.append(process)
        return process

    def answered(self):
        return [ledger.stat().st_size // 2 for ledger in self.ledgers]

    def until_all_go_on(self, what, trainers):
        before = self.answered()
        processes.until(f"each trainer is answered {what}",
                        lambda: all(now > then + 5 for now, then in list(zip(self.answered(), before))[-TRAINERS:]) or
                        not all(trainer.runs() for trainer in trainers))

    def fault(self, daemons):
        kind = self.random.choice(FAULT_KINDS)
        some = range(DAEMONS) if kind == "kill all" else [self.random.randrange(DAEMONS)]
        if kind == "stand still":
            daemons[some[0]].signal(signal.SIGSTOP)
            stood = self.answered()
            processes.until("the pushes under way wait for it", lambda: self.settled(stood))
            daemons[some[0]].signal(signal.SIGCONT)
            return kind
        for index in some:
            if kind == "restart":
                self.assert_stops(daemons[index])
            else:
                daemons[index].kill()
        for index in some:
            daemons[index] = self.one(index)
        return kind

    def settled(self, seen):
        """Whether nothing was answered since the last look."""
        now = self.answered()
        same = now == seen
        seen[:] = now
        return same

    def test_nothing_is_lost_and_nothing_comes_twice(self):
        daemons = [self.one(index) for index in range(DAEMONS)]
        end = time.monotonic() + SECONDS
        faults = []
        while not faults or time.monotonic() < end:
            trainers = [self.trainer(rank) for rank in range(TRAINERS)]
            self.until_all_go_on("at first", trainers)
            while all(trainer.runs() for trainer in trainers):
                faults.append(self.fault(daemons))
                self.until_all_go_on(f"after {faults[-1]}", trainers)
            for trainer in trainers:
                self.assert_ends(trainer)
            path = self.folder / "model.safetensors"
            self.assert_ends(self.start_psd("export", "--server", self.addresses[0], "--to", path))
            self.assertEqual(self.answered(), [PUSHES] * len(self.ledgers))
            self.assertEqual(processes.all_values(path), {float(sum(self.answered()))}, faults)
        self.assertGreater(len(faults), 2)
        print(f"{len(faults)} faults")
        for daemon in daemons:
            self.assert_stops(daemon)


if __name__ == "__main__":
    processes.main()
