"""Trainers under allreduce that are killed and frozen at random moments, with tables beside the tensors: the log shows
whose gradients each average has and which rows each trainer pushed.

FAULT_AVERAGES_EVENTS and FAULT_AVERAGES_SEED set the number of events and the seed.
"""

import collections
import json
import os
import random
import signal

import processes

EVENTS = int(os.environ.get("FAULT_AVERAGES_EVENTS", "6"))
SEED = int(os.environ.get("FAULT_AVERAGES_SEED", "1"))
TRAINERS = 3
SHARDS, ROW_SHARDS = 2, 2
GROUPS = json.dumps([{"match": "category*", "policy": {"type": "hogwild"}, "optimizer": {"type": "adagrad", "lr": 0.05}}])


class Averages(processes.ProcessTest):
    def start(self, rank):
        return self.start_trainer("train", "--server", self.server.address, "--rank", rank, "--world-size", TRAINERS, "--model",
                                  "dlrm:dim=4,hidden=8", "--data", "clicks:samples=4000,scale=100000", "--threads", 1, "--batch-size", 32,
                                  "--steps", 10_000_000)

    def closed(self, status):
        return max((group["closed"] for group in status["rounds"]), default=0)

    def until_more(self, what, count):
        """Until `count` more averages are in the model, whatever their group."""
        seen = self.closed(self.server.status())
        self.server.until_status(f"{count} more averages {what}", lambda status: self.closed(status) >= seen + count)

    def test_rows_and_tensors_agree(self):
        chance = random.Random(SEED)
        saved = self.folder / "saved"
        # Keeps the whole log, and loses no frozen trainer: only the timeout lets the others continue.
        durability = {"type": "log", "path": str(saved), "every_seconds": 0, "keep": 1000}
        self.server = self.daemon(policy="allreduce", optimizer='{"type":"adam","lr":0.01}', shards=SHARDS, row_shards=ROW_SHARDS,
                                  policy__timeout_ms=1000, policy__start_trainers=TRAINERS, groups=GROUPS,
                                  membership__lease_ms=600_000, durability=json.dumps(durability),
                                  listen=(self.unix_address(),))
        trainers = [self.start(rank) for rank in range(TRAINERS)]
        deaths = 0
        for _ in range(EVENTS):
            self.until_more("are made", chance.randint(2, 20))
            rank, kills = chance.randrange(TRAINERS), chance.random() < 0.5
            trainer = trainers[rank]
            self.assertTrue(trainer.runs(), trainer.err)
            if kills:
                trainer.kill()
                deaths += 1
                self.until_more(f"without rank {rank}, which was killed", 2)
                trainers[rank] = self.start(rank)
            else:
                trainer.signal(signal.SIGSTOP)
                self.until_more(f"without rank {rank}, which is frozen", 2)
                trainer.signal(signal.SIGCONT)
            self.server.until_status("all are together again", lambda status: any(
                group["in"] == list(range(TRAINERS)) for group in status["rounds"] if group["generation"] is not None))
        self.until_more("of all", 3)
        for trainer in trainers:
            trainer.signal(signal.SIGTERM)
        for trainer in trainers:
            trainer.wait()
        self.assert_stops(self.server)
        self.check_log(saved, deaths)

    def check_log(self, saved, deaths):
        averages = collections.defaultdict(collections.Counter)  # by shard: for each process the number of averages that include it
        rows = collections.defaultdict(collections.Counter)  # by row shard: the number of times that each push of a process occurs
        members = {}
        for record in processes.read_log(saved):
            processes_of = sorted((rank, incarnation) for rank, incarnation, _ in record.pushes)
            if record.shard >= SHARDS:
                (push,) = record.pushes
                rows[record.shard][push] += 1
                continue
            self.assertEqual(len({rank for rank, _ in processes_of}), len(processes_of), "a rank is twice in an average")
            self.assertEqual([step > 0 for _, _, step in record.pushes].count(True), 1, "one pushes")
            averages[record.shard].update(processes_of)
            self.assertEqual(members.setdefault(record.number, processes_of), processes_of, "shards do not agree")
        self.assertEqual(len(averages), SHARDS)
        self.assertEqual(len(rows), ROW_SHARDS)
        self.assertEqual(sorted(members), list(range(1, len(members) + 1)))
        for shard, pushes in rows.items():
            self.assertEqual({*pushes.values()}, {1}, f"a push of rows came twice, in row shard {shard}")
            pushed = collections.Counter((rank, incarnation) for rank, incarnation, _ in pushes)
            took_part = averages[0]
            self.assertLessEqual({*pushed}, {*took_part}, "rows of who is in no average")
            missing = {process: took_part[process] - pushed[process] for process in took_part}
            self.assertGreaterEqual(min(missing.values()), 0, "rows of a step that is in no average")
            self.assertLessEqual(sum(missing.values()), deaths, f"rows are missing, in row shard {shard}: {missing}")
            self.assertLessEqual(max(missing.values()), 1, "a trainer dies once")


if __name__ == "__main__":
    processes.main()
