#!/usr/bin/env python3
"""Daemon and trainers as processes, killed, stopped and cut off by seeded schedules.

Every gradient is -1 and the rate 1, so each parameter counts the pushes that are in it, or the rounds, and a shard's version says
how many that must be. With a log the model holds what was answered, with checkpoints at least what the last of them held.
FAULT_PROCESS_SCHEDULES and FAULT_PROCESS_SEED choose how many schedules, and from which seed on; several run at a time.
"""

import array
import collections
import concurrent.futures as futures
import json
import os
import random
import shutil
import signal
import struct
import sys

import processes

SCHEDULES = int(os.environ.get("FAULT_PROCESS_SCHEDULES", 200 if not processes.SANITIZED else 48))
FIRST_SEED = int(os.environ.get("FAULT_PROCESS_SEED", 1))
COUNTING_TRAINER = os.environ["COUNTING_TRAINER_BIN"]
FAULT_PROXY = os.environ["FAULT_PROXY_BIN"]
# Most of a schedule is waiting: for processes to start, for trainers to come back, for leases to run out.
AT_ONCE = 4
LEASE_MS = 500


class Trainer:
    """One rank over its lives, until it has made its pushes."""

    def __init__(self, test, rank, plan):
        self.test, self.rank, self.plan = test, rank, plan
        self.file = test.folder / f"{plan['seed']}-rank-{rank}"
        self.uncertain = 0
        self.start()

    def start(self):
        left = self.plan["pushes"] - self.answered()
        self.process = processes.Process(self.test.folder, self.test.name(f"trainer-{self.rank}"), [
            COUNTING_TRAINER, self.plan["address"], self.rank, self.plan["trainers"], left, self.plan["inflight"], self.file])
        self.test.processes.append(self.process)

    def answered(self):
        return self.file.stat().st_size // 2 if self.file.exists() else 0

    def die(self):
        """Its last pushes may or may not be in the model: those in flight, and one whose answer it had no time to write down."""
        if not self.process.runs():
            return
        self.process.kill()
        if self.process.popen.returncode != 0:
            self.uncertain += self.plan["inflight"] + 1
            self.start()


class Schedule:
    def __init__(self, test, seed):
        self.test, self.random = test, random.Random(seed)
        self.folder = test.folder / f"schedule-{seed}"
        self.folder.mkdir()
        sync = self.random.random() < 0.4
        self.plan = {"seed": seed, "durability": self.random.choice(["log", "checkpoint"]), "trainers": self.random.randint(1, 3),
                     "policy": "sync" if sync else "locked", "inflight": 0 if sync else self.random.randint(1, 4), "pushes": self.random.randint(30, 80), "shards": self.random.randint(1, 3),
                     "threads": self.random.randint(1, 2), "proxy": self.random.random() < 0.5,
                     "messages": self.random.randint(40, 300), "events": self.random.randint(2, 5)}
        self.hits = 0  # events in the midst of the work
        self.lost = 0  # updates that crashes have taken at most

    def __str__(self):
        return f"FAULT_PROCESS_SEED={self.plan['seed']}: {self.plan}"

    def start_daemon(self):
        durability = {"type": self.plan["durability"], "path": str(self.folder / "saved"), "every_updates": 20, "every_seconds": 0,
                      "keep": 1000}  # and with them the whole log
        return self.test.daemon(listen=(f"unix://{self.folder / 'psd.sock'}",), policy=self.plan["policy"],
                                optimizer='{"type":"sgd","lr":1}', shards=self.plan["shards"], threads=self.plan["threads"],
                                save=str(self.folder / "model.safetensors"), durability=durability,
                                membership={"lease_ms": LEASE_MS, "grace_ms": self.random.choice([0, 50, 2000])})

    def start_proxy(self):
        proxy = processes.Process(self.test.folder, self.test.name("proxy"),
                                  [FAULT_PROXY, self.daemon.address, self.plan["seed"], self.plan["messages"]])
        self.test.processes.append(proxy)
        return processes.until("the proxy's address", lambda: proxy.out.strip())

    def answered(self):
        return sum(trainer.answered() for trainer in self.trainers)

    def updates(self):
        """Of a shard, at least, that the answered pushes went into: a round takes one of each trainer."""
        each = [trainer.answered() for trainer in self.trainers]
        return max(each) if self.plan["policy"] == "sync" else sum(each)

    def kill_daemon(self):
        told = self.daemon.status()["durability"].get("last_checkpoint")
        self.daemon.kill()
        if self.plan["durability"] == "checkpoint":
            manifests = sorted((self.folder / "saved").glob("checkpoint-*/manifest.json"))
            if told:
                self.test.assertGreaterEqual(str(manifests[-1].parent), told["path"], "a checkpoint that was told of is gone")
            newest = json.loads(manifests[-1].read_text())["shards"] if manifests else []
            # Answers may still be on their way to the trainers' files.
            under_way = self.plan["trainers"] * max(1, self.plan["inflight"])
            self.lost = max(0, self.updates() + under_way - min((shard["version"] for shard in newest), default=0))
        self.daemon = self.start_daemon()

    def stop_trainer(self, trainer):
        """SIGSTOP, and on it goes, perhaps after its lease."""
        trainer.process.signal(signal.SIGSTOP)
        if self.random.random() < 0.5:
            self.daemon.until_status("it counts as gone, or had left",
                                     lambda status: trainer.rank not in [each["rank"] for each in status["trainers"]])
        trainer.process.signal(signal.SIGCONT)

    def happen(self):
        what = self.random.choice(["kill daemon", "kill daemon", "kill trainer", "stop daemon", "stop trainer"])
        trainer = self.random.choice(self.trainers)
        if what == "kill daemon":
            self.kill_daemon()
        elif what == "kill trainer":
            trainer.die()
        elif what == "stop daemon":
            self.daemon.signal(signal.SIGSTOP)
            self.daemon.signal(signal.SIGCONT)
        elif trainer.process.runs():
            self.stop_trainer(trainer)

    def run(self):
        self.daemon = self.start_daemon()
        self.plan["address"] = self.start_proxy() if self.plan["proxy"] else self.daemon.address
        self.trainers = [Trainer(self.test, rank, self.plan) for rank in range(self.plan["trainers"])]
        total = self.plan["pushes"] * self.plan["trainers"]
        for moment in sorted(self.random.randint(0, total * 9 // 10) for _ in range(self.plan["events"])):
            processes.until(f"{moment} answers", lambda: self.answered() >= moment, interval=0.002)
            self.hits += self.answered() < total
            self.happen()
        for trainer in self.trainers:
            self.test.assertEqual(trainer.process.wait(), 0, trainer.process.err)
        self.check(self.daemon.status())

    def check(self, status):
        answered, uncertain = self.answered(), sum(trainer.uncertain for trainer in self.trainers)
        self.test.assertGreaterEqual(answered, self.plan["pushes"] * self.plan["trainers"])
        versions = [shard["version"] for shard in status["shards"]]
        if not versions:  # killed after the trainers were done, and before the first checkpoint
            self.test.assertGreaterEqual(self.lost, self.updates(), "the model is gone")
            return
        for version in versions:
            self.test.assertLessEqual(version, answered + uncertain, "a push came twice")
            self.test.assertGreaterEqual(version, self.updates() - self.lost, "an answered push is lost")
        if self.plan["policy"] == "sync":
            self.test.assertEqual(len({*versions}), 1, "a round is in some shards only")
        self.test.assert_stops(self.daemon)
        if self.plan["durability"] == "log":
            self.check_log(versions, answered, uncertain)
        for name, values in read_safetensors(self.folder / "model.safetensors").items():
            self.test.assertLessEqual({*values}, {float(version) for version in versions}, f"{name} is not what the versions say")


    def check_log(self, versions, answered, uncertain):
        """Each update is in the log, each answered push in one of each shard, and none in two."""
        pushes, updates = collections.defaultdict(collections.Counter), collections.Counter()
        for record in processes.read_log(self.folder / "saved"):
            pushes[record.shard].update(record.pushes.keys())
            updates[record.shard] += 1
        self.test.assertEqual([updates[shard] for shard in range(len(versions))], versions)
        for shard in range(len(versions)):
            self.test.assertEqual({*pushes[shard].values()}, {1}, "a push came twice")
            self.test.assertGreaterEqual(len(pushes[shard]), answered, "an answered push is lost")
            self.test.assertLessEqual(len(pushes[shard]), answered + uncertain)


def read_safetensors(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = array.array("f", data[8 + length + begin:8 + length + end])
    return tensors


class Place(processes.ProcessTest):
    """Where one schedule runs: a folder and processes of its own."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.processes = folder, []
        folder.mkdir()

    def name(self, kind):
        return f"{kind}-{len(self.processes)}"


class Faults(processes.ProcessTest):
    def run_schedule(self, seed):
        """Gives how many of its events came in the midst of the work, and of how many."""
        place = Place(self.folder / str(seed))
        schedule = Schedule(place, seed)
        try:
            schedule.run()
            place.tearDown()
        except BaseException:
            print("\n".join([str(schedule), *(process.report() for process in place.processes)]), file=sys.stderr)
            raise
        finally:
            for process in place.processes:
                process.kill()
        shutil.rmtree(place.folder)
        return schedule.hits, schedule.plan["events"]

    def test_schedules(self):
        with futures.ThreadPoolExecutor(AT_ONCE) as pool:
            running = [pool.submit(self.run_schedule, seed) for seed in range(FIRST_SEED, FIRST_SEED + SCHEDULES)]
            done, _ = futures.wait(running, return_when=futures.FIRST_EXCEPTION)
            pool.shutdown(cancel_futures=True)
        hits, events = (sum(counts) for counts in zip(*(each.result() for each in done)))
        self.assertGreater(hits, events // 2, "most of what happened, happened when all was done")


if __name__ == "__main__":
    processes.main()
