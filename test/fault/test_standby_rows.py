"""Pairs whose tables admit and evict rows: the daemon that serves after a fault has the rows and admission filters of
the previous primary, bit for bit, whatever its own limits are; and the model equals that of a daemon without faults.

FAULT_ROWS_SCHEDULES=200 FAULT_ROWS_SEED=17 test_standby_rows.py runs 200 seeded schedules, starting at seed 17.
"""

import json
import os
import pathlib
import random
import subprocess
import threading
import unittest

import etcd
import numpy as np
import processes

import psd

SCHEDULES = int(os.environ.get("FAULT_ROWS_SCHEDULES", "20" if processes.LONG else "8"))
FIRST_SEED = int(os.environ.get("FAULT_ROWS_SEED", "1"))
PATIENT = {"silence_ms": 1000, "alone_ms": 2000}
SIZE = 40
MODEL = psd.Model("rows", {"w": (SIZE,)}, [psd.Table("item", 4, "zero"), psd.Table("user", 2, "uniform", 0.5, 7)])
EVICT = ({"by": "age", "updates": 40}, {"by": "norm", "below": 3.0}, {"by": "least_recent"}, None)
ADMIT = ({"after_pushes": 3, "counters": 4096}, {"after_pushes": 2, "counters": 256}, {"probability": 0.5}, None)


def arrays(path):
    """All tensors of a file, by name."""
    return {name: np.array(values).reshape(shape) for name, (shape, values) in processes.safetensors(path).items()}


def contents(checkpoint):
    """All tensors, rows and filters of a checkpoint, by file and name; rows in the order of their ids."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    found = {"versions": [block["version"] for block in manifest["shards"] + manifest["row_shards"]]}
    for path in sorted(checkpoint.glob("*.safetensors")):
        tensors = arrays(path)
        pieces = {}
        for name, values in tensors.items():
            parts = name.split("/")
            # "item/0/keys": a piece of a table; pieces may be cut at other boundaries.
            if len(parts) == 3:
                pieces.setdefault(parts[0], {}).setdefault(parts[1], {})[parts[2]] = values
            else:
                found[f"{path.name}:{name}"] = values.tobytes()
        for table, of_table in pieces.items():
            rows = {}
            for piece in of_table.values():
                for i, key in enumerate(piece["keys"].tolist()):
                    rows[key] = tuple(values[i].tobytes() for _, values in sorted(piece.items()))
            found[f"{path.name}:{table}"] = rows
    return found


def only_rows_of(before, after):
    """`after` without the rows that `before` does not have."""
    rows = {name: {key: value for key, value in of.items() if key in before.get(name, {})} for name, of in after.items() if isinstance(of, dict)}
    return {name: value for name, value in {**after, **rows}.items() if value or name in before}


def gradients(i):
    """Gradients of step i: of the tensor, and for each table ids with one value each. Ids recur often at first, then
    ever more rarely."""
    chance = random.Random(i)
    items = sorted({int(chance.expovariate(1 / 60)) + i // 3 for _ in range(6)})
    return -float(i % 7), {"item": [(each, -1.0 - each % 3) for each in items], "user": [(each, -1.0) for each in items[:3]]}


class Trainer:
    """Rank 0 of 1, whose steps are the same in every run."""

    def __init__(self, addresses, room=True):
        """`room`: rows of every step are accepted."""
        self.client, self.step, self.room, self.refused = psd.Client(list(addresses)), 0, room, False
        self.values, self.gradient = MODEL.zeros(), MODEL.zeros()
        self.client.join(MODEL, self.values, 0, 1)
        self.rows = self.client.rows()

    def steps(self, count):
        for _ in range(count):
            dense, tables = gradients(self.step)
            self.rows.make([(table, np.array([key for key, _ in of_table], np.uint64)) for table, of_table in tables.items()])
            self.client.pull(self.values, self.rows)
            self.gradient[:] = dense
            for i, (table, of_table) in enumerate(tables.items()):
                places, into = self.rows.places(i), self.rows.gradients(table)
                into[:] = 0
                for place, (_, value) in zip(places, of_table):
                    into[place] = value
            self.step += 1
            self.refused = False
            try:
                self.client.push(self.gradient, samples=1, rows=self.rows)
            except psd.Error as error:
                if self.room or "limits.table_bytes" not in str(error):
                    raise
                self.refused = True


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class StandbyRows(processes.ProcessTest):
    def setUp(self):
        self.etcd = etcd.Etcd(self)
        self.runs = 0

    def one(self, place, prefix=None, listen=f"tcp://{processes.LOOPBACK}:0", wait="standby", **settings):
        """A daemon with its log in that folder of the test's; with a prefix, one of a pair."""
        if prefix:
            settings["engine"] = {"endpoints": self.etcd.endpoints, "prefix": prefix}
            settings["replication"] = {**PATIENT, "wait": wait}
        return self.daemon(listen=(listen,), optimizer={"type": "sgd", "lr": 1, "momentum": 0.5}, shards=2,
                           durability={"type": "log", "path": str(self.folder / place), "every_seconds": 0, "full_every": 1}, **settings)

    def saved(self, daemon):
        """The contents of a checkpoint that the daemon takes now."""
        done = subprocess.run([processes.PSD, "checkpoint", "--server", daemon.address], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return contents(pathlib.Path(done.stdout.strip()))

    def assert_same(self, what, before, after):
        self.assertEqual(before.keys(), after.keys(), what)
        for name, value in before.items():
            if value == after[name]:
                continue
            if isinstance(value, dict):
                other = after[name]
                lost, more = sorted(value.keys() - other.keys()), sorted(other.keys() - value.keys())
                changed = [key for key in value.keys() & other.keys() if value[key] != other[key]]
                self.fail(f"{what}: {name}: of {len(value)} rows {lost} are missing, {more} too many, and {changed} others")
            self.fail(f"{what}: {name} differs")

    def until_primary(self, daemons):
        def primary():
            for daemon in daemons:
                try:
                    if daemon.status()["replica_set"]["role"] == "primary":
                        return daemon
                except AssertionError:
                    continue  # it is restarting
            return None

        return processes.until("one of them is the primary", primary)

    def pair(self, prefix, primarys, standbys, **both):
        primary = self.one(f"{prefix[1:]}-0", prefix, **both, **primarys)
        self.until_primary([primary])
        standby = self.one(f"{prefix[1:]}-1", prefix, **both, **standbys)
        return primary, standby

    def check_take_over(self, name, steps, primarys=None, standbys=None, **both):
        """After `steps` steps the primary dies: its standby has its state, and its status and log name the limits that
        are lower."""
        daemons = self.pair(f"/{name}", primarys or {}, standbys or {}, **both)
        trainer = Trainer(daemon.address for daemon in daemons)
        self.addCleanup(trainer.client.close)
        primary, standby = daemons
        primary.until_in_sync()
        trainer.steps(steps)
        before = self.saved(primary)
        group = standby.status()["replica_set"]
        primary.kill()
        self.until_primary([standby])
        self.assert_same("after the take-over", before, self.saved(standby))
        trainer.steps(20)
        return standby, group

    def test_a_standby_admits_by_record_alone(self):
        tables = [{"match": "item", "admit": {"after_pushes": 3, "counters": 1024}, "max_rows": 60, "evict": {"by": "age", "updates": 60}},
                  {"match": "user", "admit": {"after_pushes": 2, "counters": 64}}]
        standby, group = self.check_take_over("admit", 300, policy="locked", row_shards=2, tables=tables)
        self.assertEqual(group["lower_limits"], [])
        self.assertNotIn("lower limits", standby.err)

    def test_a_standby_with_less_room_has_all_rows_and_says_so(self):
        for name, evict in (("less", None), ("less-evict", {"by": "least_recent"})):
            with self.subTest(evict=evict):
                tables = [{"match": "*", **({"evict": evict} if evict else {})}]
                standby, group = self.check_take_over(name, 300, {"limits__table_bytes": 4 << 20}, {"limits__table_bytes": 60_000}, policy="locked",
                                                      row_shards=1, tables=tables) if evict else self.check_without_room(name, tables)
                self.assertEqual(group["lower_limits"], ["limits.table_bytes 60000 (primary: 4194304)"])
                self.assertEqual(standby.err.count("lower limits"), 1, standby.err)

    def check_without_room(self, name, tables):
        """If no row can be evicted, the standby keeps all rows, updates them while it serves, and refuses new ones."""
        daemons = self.pair(f"/{name}", {"limits__table_bytes": 4 << 20}, {"limits__table_bytes": 60_000}, policy="locked", row_shards=1,
                            tables=tables)
        trainer = Trainer(daemon.address for daemon in daemons)
        self.addCleanup(trainer.client.close)
        primary, standby = daemons
        primary.until_in_sync()
        trainer.steps(200)
        before = self.saved(primary)
        group = standby.status()["replica_set"]
        primary.kill()
        self.until_primary([standby])
        self.assert_same("after the take-over", before, self.saved(standby))
        with self.assertRaisesRegex(psd.Error, "limits.table_bytes is 60000"):
            trainer.steps(200)
        return standby, group

    def schedule(self, seed):
        chance = random.Random(seed)
        evict, admit = chance.choice(EVICT), chance.choice(ADMIT)
        narrow = chance.random() < 0.3 and evict is not None
        settings = {
            "policy": chance.choice(("locked", "hogwild", "sync")), "row_shards": chance.choice((1, 2, 3)),
            "tables": [{"match": "item", "max_rows": 120, **({"evict": evict} if evict else {"max_rows": 5000}), **({"admit": admit} if admit else {})},
                       {"match": "user", "evict": {"by": "least_recent"}, "max_rows": 60, "admit": {"after_pushes": 2, "counters": 128}}],
        }
        steps = 240
        place = f"s{seed}"
        alone = self.one(f"{place}-alone", **settings)
        trainer = Trainer([alone.address])
        trainer.steps(steps)
        undisturbed = self.saved(alone)
        trainer.client.close()
        alone.kill()

        settings["wait"] = chance.choice(("standby", "standby_and_disk"))
        limits = [{}, {"limits__table_bytes": 60_000} if narrow else {}]
        daemons = list(self.pair(f"/{place}", *limits, **settings))
        addresses = [daemon.address for daemon in daemons]
        trainer = Trainer(addresses, room=not narrow)
        trouble = []

        def disturb(fault):
            """Kills a daemon and starts it again, or makes the pair switch."""
            primary = self.until_primary(daemons)
            at = daemons.index(primary)
            if fault == "switch":
                subprocess.run([processes.PSD, "switch", "--server", primary.address], capture_output=True, timeout=processes.WAIT_S, check=False)
                return
            dead = 1 - at if fault == "the standby" else at
            daemons[dead].kill()
            if dead == at:
                self.until_primary([daemons[1 - at]])
            daemons[dead] = self.one(f"{place}-{dead}", f"/{place}", listen=addresses[dead], **limits[dead], **settings)

        def disturb_later(fault):
            try:
                disturb(fault)
            except BaseException as error:  # raised in another thread
                trouble.append(error)

        while trainer.step < steps:
            self.until_primary(daemons).until_in_sync()
            fault = chance.choice(("the primary", "the primary", "the standby", "switch"))
            some = min(chance.randint(20, 80), steps - trainer.step)
            if chance.random() < 0.5:
                beside = threading.Thread(target=disturb_later, args=(fault,))
                beside.start()
                trainer.steps(some)
                beside.join(processes.WAIT_S)
                self.assertFalse(beside.is_alive() or trouble, trouble)
            else:
                trainer.steps(some)
                before = self.saved(self.until_primary(daemons))
                disturb(fault)
                self.until_primary(daemons).until_in_sync()
                after = self.saved(self.until_primary(daemons))
                if trainer.refused:  # rows that a refused push evicted are in no record yet
                    after = only_rows_of(before, after)
                self.assert_same(f"seed {seed}, {settings}, {fault} at step {trainer.step}", before, after)
        if not narrow:  # if space is short, earlier memory use decides which rows are evicted
            self.assert_same(f"seed {seed}, {settings}, at the end", undisturbed, self.saved(self.until_primary(daemons)))
        trainer.client.close()
        for daemon in daemons:
            daemon.kill()

    def test_schedules(self):
        for seed in range(FIRST_SEED, FIRST_SEED + SCHEDULES):
            with self.subTest(f"FAULT_ROWS_SEED={seed} FAULT_ROWS_SCHEDULES=1"):
                self.schedule(seed)


if __name__ == "__main__":
    processes.main()
