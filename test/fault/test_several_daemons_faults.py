"""Three daemons serve one model, each with a log: killed, restarted, stopped for a while and all at once, in a seeded
order.

FAULT_SEVERAL_SECONDS makes it a soak (600, for example); FAULT_SEVERAL_SEED sets the order.
"""

import os
import random
import signal
import time

import counting
import processes

SEED = int(os.environ.get("FAULT_SEVERAL_SEED", "1"))
SECONDS = float(os.environ.get("FAULT_SEVERAL_SECONDS", "0"))
DAEMONS = 3
TRAINERS = 2
FAULTS = 6  # while the same trainers push; then others take the ranks
FAULT_KINDS = ("kill", "kill", "restart", "stand still", "kill all")


class SeveralDaemonsFaults(counting.CountingTest):
    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)
        self.addresses = [self.unix_address(f"{i}.sock") for i in range(DAEMONS)]

    def one(self, index):
        durability = {"type": "log", "path": str(self.folder / f"saved-{index}"), "every_updates": 200}
        return self.daemon(listen=(self.addresses[index],), daemons=self.addresses, index=index, policy="locked",
                           optimizer=counting.SGD, durability=durability)

    def until_all_continue(self, what):
        before = self.answered_by_trainer()
        processes.until(f"each trainer is answered {what}",
                        lambda: all(now > then + 5 for now, then in list(zip(self.answered_by_trainer(), before))[-TRAINERS:]))

    def fault(self, daemons):
        kind = self.random.choice(FAULT_KINDS)
        some = range(DAEMONS) if kind == "kill all" else [self.random.randrange(DAEMONS)]
        if kind == "stand still":
            daemons[some[0]].signal(signal.SIGSTOP)
            stood = self.answered_by_trainer()
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
        """Whether no push was answered since the last call."""
        now = self.answered_by_trainer()
        same = now == seen
        seen[:] = now
        return same

    def test_nothing_is_lost_and_nothing_comes_twice(self):
        daemons = [self.one(index) for index in range(DAEMONS)]
        end = time.monotonic() + SECONDS
        faults = []
        while not faults or time.monotonic() < end:
            for rank in range(TRAINERS):
                self.count(self.addresses[rank % DAEMONS], rank, TRAINERS, chunk_bytes=1 << 18)
            self.until_all_continue("at first")
            for _ in range(FAULTS):
                faults.append(self.fault(daemons))
                self.until_all_continue(f"after {faults[-1]}")
            self.end_trainers()
            self.check_model(self.addresses[0], faults)
        print(f"{len(faults)} faults")
        for daemon in daemons:
            self.assert_stops(daemon)


if __name__ == "__main__":
    processes.main()
