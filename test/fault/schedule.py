"""One seeded schedule of faults: a daemon, its trainers, optionally a proxy between them, the events, and the
invariants that are checked when the trainers are done."""

import collections
import errno
import json
import os
import random
import signal

import faulty_machine
import ledgers
import processes

COUNTING_TRAINER = os.environ["COUNTING_TRAINER_BIN"]
# These lose nothing of a −1. A codec adds what a round drops to the next push, so none is combined with rounds.
CODECS = ["none", "none", "fp16", "topk:fraction=1"]
# Devices of the trainers' values: only the CPU for programs built without CUDA.
TRAINER_DEVICES = os.environ.get("COUNTING_TRAINER_DEVICES", "cpu").split()
FAULT_PROXY = os.environ["FAULT_PROXY_BIN"]
HOG = os.environ["HOG_BIN"]
HOGS = {"announce": 64, "half": 16, "readers": 30, "deaf": 500}  # the count for each kind
# So tight that hogs would exhaust them if the budgets were not shared fairly.
LIMITS = {"message_bytes": 1 << 20, "slice_bytes": 1 << 19, "in_flight_bytes": 2 << 20, "snapshot_bytes": 1 << 16,
          "log_pending_bytes": 1 << 16, "all_outgoing_bytes": 1 << 20, "pull_timeout_ms": 200, "drain_ms": 1000}
LEASE_MS = 500
DAY_S = 86400
# Longer than any schedule, and shorter than any jump of the clock.
SCHEDULE_S_MAX = DAY_S // 4

EVENTS = ["kill daemon", "kill daemon", "restart daemon", "kill trainer", "stop daemon", "stop trainer", "replace trainer", "hogs"]
if faulty_machine.PRELOAD:
    EVENTS += ["break disk", "break disk and mend it", "break disk and kill daemon", "move clock",
               "break reading and restart daemon", "slow disk"]
# Events that accompany others: a daemon is started with another number of shards; the disk fails before the model is
# initialized.
EVENTS_BESIDE = ["other shards", *(["break disk at first"] if faulty_machine.PRELOAD else [])]


class Trainer:
    """One rank over its lives, until it has made its pushes."""

    def __init__(self, test, rank, plan, environment):
        self.test, self.rank, self.plan, self.environment = test, rank, plan, environment
        self.file = test.folder / f"{plan['seed']}-rank-{rank}"
        self.ledger = ledgers.Ledger(rank, self.file)
        self.uncertain = 0
        self.start()

    def start(self):
        self.answered_before = self.answered()
        self.process = processes.Process(self.test.folder, self.test.name(f"trainer-{self.rank}"), [
            COUNTING_TRAINER, self.plan["address"], self.rank, self.plan["trainers"], self.left(), self.plan["inflight"],
            self.file, self.plan["trainers_on"], self.plan["chunk"], "ones"], self.environment)
        self.test.processes.append(self.process)

    def answered(self):
        return self.ledger.answered()

    def trains(self):
        """This life has been answered, and has not exited."""
        return self.answered() > self.answered_before and self.process.runs()

    def left(self):
        return max(0, self.plan["pushes"] - self.answered())

    def start_next_life(self):
        """The last pushes of the previous life may or may not be in the model: those in flight, and one whose answer it
        had no time to record."""
        self.uncertain += self.plan["inflight"] + 1
        self.start()

    def die(self):
        if not self.process.runs():
            return
        self.process.kill()
        if self.process.popen.returncode != 0:
            self.start_next_life()


class Schedule:
    def __init__(self, test, seed):
        self.test, self.random = test, random.Random(seed)
        self.folder = test.folder / f"schedule-{seed}"
        self.folder.mkdir()
        sync = self.random.random() < 0.4
        self.plan = {"seed": seed, "durability": self.random.choice(["log", "checkpoint"]), "trainers": self.random.randint(1, 3),
                     "policy": "sync" if sync else "locked", "inflight": 0 if sync else self.random.randint(1, 4),
                     "pushes": self.random.randint(30, 80), "shards": self.random.randint(1, 3),
                     "threads": self.random.randint(1, 2), "proxy": self.random.random() < 0.5,
                     "messages": self.random.randint(40, 300), "events": self.random.randint(2, 5),
                     "trainers_on": random.Random(f"{seed}, devices").choice(TRAINER_DEVICES)}
        if self.plan["policy"] == "locked" and self.plan["durability"] == "log" and self.plan["trainers"] == 1:
            # A single trainer, without concurrent pushes.
            self.plan["policy"] = random.Random(f"{seed}, policy").choice(["locked", "hogwild"])
        also = random.Random(f"{seed}, codec")
        self.plan["codec"] = "none" if sync else also.choice(CODECS)
        self.plan["chunk"] = also.choice([4096, 16384])  # bytes; the larger covers a whole shard
        self.resharding = random.Random(f"{seed}, shards")
        self.plan["reshards"] = not sync and self.plan["durability"] == "log" and self.resharding.random() < 0.5
        self.total = self.plan["pushes"] * self.plan["trainers"]
        self.machine = faulty_machine.Machine(self.folder / "machine", self.folder / "saved")
        self.happened = []
        self.hits = collections.Counter()  # events that occurred during the work, by kind
        self.lost = 0  # updates that crashes may have lost, at most
        # For a shard: the least number of updates that an unreliable log leads to; None: the log is reliable.
        self.safe = None
        self.log_is_whole = True  # and has been from the start

    def __str__(self):
        return f"FAULT_PROCESS_SEED={self.plan['seed']}: {self.plan}, {', '.join(self.happened)}"

    def draw_shards(self):
        """May change the number of shards, if the disk works: saved state is then redistributed."""
        if not self.plan["reshards"] or self.machine.calls:
            return
        before, self.plan["shards"] = self.plan["shards"], self.resharding.randint(1, 7)
        if before != self.plan["shards"]:
            self.happened[-1] += f" ({self.plan['shards']} shards)"
            self.hits["other shards"] += self.has_work_left()

    def start_daemon(self):
        durability = {"type": self.plan["durability"], "path": str(self.folder / "saved"), "every_updates": 20, "every_seconds": 0,
                      "keep": 1000}  # keeps the whole log, too
        codecs = {"push": {"default": self.plan["codec"]}}
        return self.test.daemon(listen=(f"unix://{self.folder / 'psd.sock'}",), policy=self.plan["policy"], codecs=codecs,
                                optimizer='{"type":"sgd","lr":1}', shards=self.plan["shards"], threads=self.plan["threads"],
                                save=str(self.folder / "model.safetensors"), durability=durability,
                                membership={"lease_ms": LEASE_MS, "grace_ms": self.random.choice([0, 50, 2000])}, limits=LIMITS,
                                environment=self.machine.environment)

    def start_proxy(self):
        proxy = processes.Process(self.test.folder, self.test.name("proxy"),
                                  [FAULT_PROXY, self.daemon.address, self.plan["seed"], self.plan["messages"]])
        self.test.processes.append(proxy)
        return processes.until("the proxy's address", lambda: proxy.out.strip())

    def answered(self):
        return sum(trainer.answered() for trainer in self.trainers)

    def updates(self):
        """For a shard: the least number of updates that the answered pushes made; a round takes one push of each
        trainer."""
        each = [trainer.answered() for trainer in self.trainers]
        return max(each) if self.plan["policy"] == "sync" else sum(each)

    def has_work_left(self):
        return any(trainer.process.runs() for trainer in self.trainers)

    def run(self):
        self.daemon = self.start_daemon()
        self.plan["address"] = self.start_proxy() if self.plan["proxy"] else self.daemon.address
        early = faulty_machine.PRELOAD and random.Random(f"{self.plan['seed']}, at first").random() < 0.25
        if early:
            self.happened.append("break disk at first")
            self.fail_disk()
        self.trainers = [Trainer(self.test, rank, self.plan, self.machine.environment) for rank in range(self.plan["trainers"])]
        if early and self.until_disk_fails(0):
            self.hits["break disk at first"] += 1
        for moment in sorted(self.random.randint(0, self.total * 9 // 10) for _ in range(self.plan["events"])):
            processes.until(f"{moment} answers", lambda: self.answered() >= moment, interval=0.002)
            self.run_event()
        for trainer in self.trainers:
            self.test.assertEqual(trainer.process.wait(), 0, trainer.process.err)
        self.machine.slow_down(0)
        if self.safe is not None or self.machine.calls:
            self.repair_disk()
        self.check(self.daemon.status())
        self.machine.close()

    # --- Events ---

    def run_event(self):
        """One event, which counts as a hit if it had an effect while trainers were working."""
        what = self.random.choice(EVENTS)
        trainer = self.random.choice(self.trainers)
        self.happened.append(f"{what} at {self.answered()}")
        in_the_midst = self.answered() < self.total
        events = {"kill daemon": self.kill_daemon, "restart daemon": self.restart_daemon, "hogs": self.start_hogs,
                  "slow disk": self.slow_disk, "kill trainer": trainer.die, "stop daemon": self.stop_daemon,
                  "stop trainer": lambda: self.stop_trainer(trainer), "replace trainer": lambda: self.replace_trainer(trainer),
                  "break disk": self.break_disk, "break disk and mend it": self.break_and_repair_disk,
                  "break disk and kill daemon": self.break_disk_and_kill_daemon, "move clock": self.move_clock,
                  "break reading and restart daemon": self.break_reading_and_restart}
        came_to_something = events[what]() is not False
        if in_the_midst and came_to_something:
            self.hits[what] += 1

    def manifests(self):
        return sorted((self.folder / "saved").glob("checkpoint-*/manifest.json"))

    def newest_saved(self):
        """The version that all shards have reached in the newest checkpoint."""
        if self.plan["reshards"]:  # a reassembled shard has the highest version among its sources
            return 0
        manifests = self.manifests()
        newest = json.loads(manifests[-1].read_text())["shards"] if manifests else []
        return min((shard["version"] for shard in newest), default=0)

    def kill_and_record_loss(self):
        """kill -9; records the most that it may lose."""
        told = self.daemon.status()["durability"]["last_checkpoint"]
        self.daemon.kill()
        if told:
            self.test.assertGreaterEqual(str(self.manifests()[-1].parent), told["path"], "an announced checkpoint is gone")
        if self.plan["durability"] == "checkpoint" or self.safe is not None:
            safe = max(self.safe or 0, self.newest_saved())
            # Answers may still be on their way to the trainers' files.
            under_way = self.plan["trainers"] * max(1, self.plan["inflight"])
            self.lost = max(0, self.updates() + under_way - safe)

    def kill_daemon(self):
        self.kill_and_record_loss()
        # A daemon starts on a disk that cannot be appended to, but on no other broken disk.
        if self.machine.calls & ~faulty_machine.APPENDING:
            self.machine.repair_disk()
        if not self.machine.calls:
            self.safe = None
        self.draw_shards()
        self.daemon = self.start_daemon()

    def restart_daemon(self):
        """As a service manager does: nothing is lost, whatever is in flight."""
        if self.safe is not None or self.machine.calls:
            self.repair_disk()
        self.test.assert_stops(self.daemon)
        self.draw_shards()
        self.daemon = self.start_daemon()

    def start_hogs(self):
        """Peers that hold shared resources for the rest of the schedule, or until they are dropped."""
        kind = self.random.choice([*HOGS])
        self.happened[-1] += f" ({kind})"
        hog = processes.Process(self.test.folder, self.test.name("hog"), [HOG, self.daemon.address, kind, HOGS[kind]])
        self.test.processes.append(hog)
        processes.until("the hogs are connected, or rejected", lambda: hog.out or not hog.runs(), interval=0.002)
        return hog.runs()

    def slow_disk(self):
        self.machine.slow_down(self.random.choice([5, 20, 50]))
        some = self.answered() + self.random.choice([5, 20])
        processes.until("some more work", lambda: self.answered() >= some or not self.has_work_left(), interval=0.002)
        self.machine.slow_down(self.random.choice([0, 0, 5]))

    def break_reading_and_restart(self):
        """The daemon starts with everything that exists, or exits with one line that names what it cannot read, and the
        data stays on the disk for the next start."""
        self.kill_and_record_loss()
        self.machine.repair_disk()
        self.safe, safe = None, self.updates() - self.lost
        there, failed = self.saved_files(), self.machine.failed
        self.happened[-1] += f" ({self.machine.break_reading(self.random)})"
        try:
            self.daemon = self.start_daemon()
            self.machine.repair_disk()
        except processes.NotReady as refused:
            self.machine.repair_disk()
            self.happened[-1] += ", refused"
            self.test.processes.append(refused.process)
            self.test.assert_fails(refused.process, str(self.folder / "saved"), os.strerror(errno.EIO))
            self.test.assertEqual(self.saved_files(), there, "a daemon that did not start has changed what is saved")
            self.daemon = self.start_daemon()
        status = self.daemon.status()
        for version in [shard["version"] for shard in status["shards"]] or [0]:
            self.test.assertGreaterEqual(version, safe, "something is lost that could not be read")
        if log_of(status["durability"]).get("failures"):  # it could not be created
            self.log_is_whole, self.safe = False, safe
            self.repair_disk()
        return self.machine.failed > failed

    def saved_files(self):
        return {str(path): path.read_bytes() for path in (self.folder / "saved").rglob("*") if path.is_file()}

    def stop_daemon(self):
        self.daemon.signal(signal.SIGSTOP)
        self.daemon.signal(signal.SIGCONT)

    def until_gone(self, trainer):
        self.daemon.until_status(f"rank {trainer.rank} counts as gone, or had left",
                                 lambda status: trainer.rank not in [each["rank"] for each in status["trainers"]])

    def stop_trainer(self, trainer):
        """SIGSTOP, then SIGCONT, possibly after its lease expired."""
        if not trainer.process.runs():
            return False
        trainer.process.signal(signal.SIGSTOP)
        if self.random.random() < 0.5:
            self.until_gone(trainer)
        trainer.process.signal(signal.SIGCONT)
        return True

    def replace_trainer(self, trainer):
        """Another process takes its rank while it is stopped. After SIGCONT the old process achieves nothing more:
        check_log() verifies that none of its pushes follows the first push of its replacement."""
        old = trainer.process
        processes.until("it trains, or is done", lambda: trainer.trains() or not old.runs(), interval=0.002)
        old.signal(signal.SIGSTOP)
        self.until_gone(trainer)
        if not old.runs() or trainer.left() == 0:
            old.signal(signal.SIGCONT)
            return False
        trainer.start_next_life()
        new = trainer.process
        self.daemon.until_status("the new trainer has joined, or is done", lambda status: not new.runs()
                                 or new.pid in [each["pid"] for each in status["trainers"]])
        old.signal(signal.SIGCONT)
        self.test.assertEqual(old.wait(), 1, "whose rank is another's has not noticed")
        self.test.assertIn(f"by process {new.pid} on", old.err)
        trainer.answered_before = trainer.answered()  # late answers of the old process
        return True

    def move_clock(self):
        """No time that the daemon reports or uses comes from a clock that jumps."""
        before = self.machine.shifted
        self.machine.shift_clock(self.random.choice([-1, 1]) * self.random.randint(1, 300) * DAY_S)
        self.check_times(self.daemon.status())
        return self.machine.shifted > before

    def check_times(self, status):
        for key, value in status.items():
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, dict):
                    self.check_times(part)
            if key.endswith("_seconds") and value is not None and not isinstance(value, dict):
                self.test.assertGreaterEqual(value, 0, key)
                self.test.assertLess(value, SCHEDULE_S_MAX, key)

    def break_disk(self):
        """The disk stays broken until another event, or the end, repairs it."""
        before = self.machine.failed
        self.fail_disk()
        return self.until_disk_fails(before)

    def fail_disk(self):
        if self.plan["durability"] == "log":
            self.log_is_whole = False
            if self.safe is None:
                # Without a checkpoint that the log continues from, nothing is promised.
                self.safe = self.updates() - self.lost if self.manifests() else 0
        self.happened[-1] += f" ({self.machine.break_disk(self.random)})"

    def until_disk_fails(self, before):
        processes.until("the disk fails, or the work is over", lambda: self.machine.failed > before or not self.has_work_left(),
                        interval=0.002)
        return self.machine.failed > before

    def break_and_repair_disk(self):
        failed = self.break_disk()
        if failed:
            self.daemon.until_status("it tells of the failure", lambda status: failures_to_save(status["durability"]) > 0)
        self.repair_disk()
        if self.random.random() < 0.5:  # what is promised from now on holds
            some = min(self.total, self.answered() + 5)
            processes.until("work continues", lambda: self.answered() >= some, interval=0.002)
            self.kill_daemon()
        return failed

    def break_disk_and_kill_daemon(self):
        failed = self.break_disk()
        some = self.answered() + self.random.choice([0, 0, 10, 30])
        processes.until("some more work", lambda: self.answered() >= some or not self.has_work_left(), interval=0.002)
        self.kill_daemon()
        return failed

    def repair_disk(self):
        """Waits until the death of the daemon would lose nothing."""
        # Leaves work to do for the trainers afterwards.
        paused = [trainer.process for trainer in self.trainers if self.random.random() < 0.5 and trainer.process.runs()]
        if not self.manifests():
            paused = []  # a trainer is the initializer
        for process in paused:
            process.signal(signal.SIGSTOP)
        self.machine.repair_disk()
        self.daemon.until_status("the disk is well", self.is_healthy)
        for process in paused:
            process.signal(signal.SIGCONT)
        self.safe = None

    def is_healthy(self, status):
        begun = self.plan["durability"] != "log" or self.manifests() or not status["shards"]
        return begun and not errors_of_saving(status["durability"])

    # --- Invariants ---

    def check(self, status):
        answered, uncertain = self.answered(), sum(trainer.uncertain for trainer in self.trainers)
        self.test.assertGreaterEqual(answered, self.total)
        versions = [shard["version"] for shard in status["shards"]]
        if not versions:  # killed after the trainers were done, and before the first checkpoint
            self.test.assertGreaterEqual(self.lost, self.updates(), "the model is gone")
            return
        for version in versions:
            self.test.assertGreaterEqual(version, self.updates() - self.lost, "an answered push is lost")
            if not self.plan["reshards"]:
                self.test.assertLessEqual(version, answered + uncertain, "a push came twice")
        if self.plan["policy"] == "sync":
            self.test.assertEqual(len({*versions}), 1, "a round is in some shards only")
        self.test.assert_stops(self.daemon)
        if self.plan["durability"] == "log":
            self.check_log(versions, answered, uncertain)
        for name, (_, values) in processes.safetensors(self.folder / "model.safetensors").items():
            if self.plan["reshards"]:
                self.test.assertGreaterEqual(min(values), self.updates() - self.lost, f"{name} lacks an answered push")
                self.test.assertLessEqual(max(values), answered + uncertain, f"{name} has a push twice")
                continue
            self.test.assertLessEqual({*values}, {float(version) for version in versions}, f"{name} is not what the versions say")
        if not self.manifests():  # an untrained model
            return
        inspected = self.test.start_psd("inspect", self.folder / "saved")
        self.test.assertEqual(inspected.wait(), 0, inspected.out)
        self.test.assertEqual(inspected.out.count(", whole"), len(self.manifests()), inspected.out)

    def check_log(self, versions, answered, uncertain):
        """No push is in a shard's log twice, and none of a trainer follows those of another process that took its rank.
        If the log was never broken, it holds each update, and each answered push once for each shard."""
        pushes, updates = collections.defaultdict(collections.Counter), collections.Counter()
        holders = collections.defaultdict(list)  # of each rank: incarnations in the order of their pushes
        for record in processes.read_log(self.folder / "saved"):
            pushes[record.history, record.shard].update(record.pushes.keys())
            updates[record.shard] += 1
            for rank, incarnation, _ in record.pushes:
                held = holders[record.history, record.shard, rank]
                if not held or held[-1] != incarnation:
                    self.test.assertNotIn(incarnation, held, f"rank {rank} pushed after it was replaced")
                    held.append(incarnation)
        for place, counts in pushes.items():
            self.test.assertEqual({*counts.values()}, {1}, f"a push came twice, in the log of {place}")
        if not self.log_is_whole or self.plan["reshards"]:  # the log of other shards is another log
            return
        self.test.assertEqual([updates[shard] for shard in range(len(versions))], versions)
        for place, counts in pushes.items():
            self.test.assertGreaterEqual(len(counts), answered, f"an answered push is lost, in the log of {place}")
            self.test.assertLessEqual(len(counts), answered + uncertain)


def log_of(durability):
    return durability["log"] or {}


def failures_to_save(durability):
    return durability["checkpoint_failures"] + log_of(durability).get("failures", 0)


def errors_of_saving(durability):
    return durability["error"] + log_of(durability).get("error", "")
