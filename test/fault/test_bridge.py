"""Machines that average, with kill -9 of every party: each update that a machine's daemon has answered is at the root
once.

The root sums what the machines push: equal weights, as a mean, at a rate equal to their number. So it counts the pushes
of all trainers; each machine counts its own and, after an exchange, all that were exchanged.
"""

import itertools
import json
import os
import random
import subprocess
import unittest

import counting
import counting_pairs
import etcd
import processes

KILLS = int(os.environ.get("FAULT_BRIDGE_KILLS", "8" if processes.LONG else "4"))
SECONDS = 120
INFLIGHT = 2  # pushes per trainer


class Machines(counting.CountingTest):
    gradients = "ones"

    def setUp(self):
        super().setUp()
        self.random = random.Random(20)
        self.bridges = {}

    def log(self, name):
        return {"type": "log", "path": str(self.folder / name)}

    def start_root(self, machines, quorum=1, period=10, policy="diloco", listen=None, **settings):
        options = {"period": period, "inner": {"type": "sgd", "lr": 1}}
        if policy == "diloco":
            options.update(weights="equal", quorum=quorum)
        flags = [part for key, value in options.items() for part in ("--set", f"policy.{key}={json.dumps(value)}")]
        return self.daemon(*flags, listen=(listen or self.unix_address("root.sock"),), policy=policy,
                           optimizer=json.dumps({"type": "sgd", "lr": machines}), world_size=machines, **settings)

    def root(self, machines, quorum=1, **settings):
        return self.start_root(machines, quorum, durability=self.log("root"), **settings)

    def machine(self, name, policy="locked", **settings):
        settings = {"durability": self.log(name), **settings}
        return self.daemon(listen=(self.unix_address(f"{name}.sock"),), policy=policy, optimizer=counting.SGD, **settings)

    def bridge(self, name, rank, local=None, root=None):
        bridge = self.start_trainer("bridge", "--local", local or self.unix_address(f"{name}.sock"), "--server",
                                    root or self.unix_address("root.sock"), "--rank", rank, "--state",
                                    self.folder / f"{name}-bridge", "--retry-timeout", SECONDS, "--log-level", "debug")
        self.bridges[name] = bridge
        return bridge

    def value(self, daemon):
        """The value that all parameters have, or None while an update is in only some of them."""
        path = self.folder / "value.safetensors"
        done = self.psd("export", "--server", daemon.address, "--to", path)
        if done.returncode != 0:
            return None
        values = processes.all_values(path)
        return values.pop() if len(values) == 1 else None

    def tensors(self, daemon):
        """The values of the daemon's tensors, by name."""
        path = self.folder / "tensors.safetensors"
        self.assertEqual(self.psd("export", "--server", daemon.address, "--to", path).returncode, 0)
        return processes.safetensors(path)

    def rounds(self, root):
        return min((shard["version"] for shard in root.status()["shards"]), default=0)

    def until_rounds(self, root, more=2):
        goal = self.rounds(root) + more
        processes.until(f"round {goal}", lambda: self.rounds(root) >= goal, SECONDS)

    def check_all_updates(self, root, machine):
        total = float(self.answered())
        processes.until("the root has all", lambda: self.value(root) == total, SECONDS)
        processes.until("the machine has what the root has", lambda: self.value(machine) == total, SECONDS)


class OneMachine(Machines):
    """Rounds of one machine: at the end the root and the machine have all updates, exactly."""

    def check(self, policy, trainers, averages="diloco", **settings):
        def start_root():
            return self.root(1, policy=averages, **settings)

        def start_machine():
            return self.machine("one", policy, **settings)

        root, machine = start_root(), start_machine()
        bridge = self.bridge("one", 0)
        for rank in range(trainers):
            self.count(machine.address, rank, trainers)
        for kill in range(KILLS):
            self.until_rounds(root, self.random.choice([0, 1, 3]))
            who = ("bridge", "machine", "root")[kill % 3]
            if who == "bridge":
                bridge.kill()
                self.until_more("without a bridge", 5)
                bridge = self.bridge("one", 0)
            elif who == "machine":
                machine.kill()
                machine = start_machine()
            else:
                root.kill()
                root = start_root()
        self.until_rounds(root)
        self.end_trainers()
        self.check_all_updates(root, machine)
        self.assertNotIn("without updates that it had", bridge.err)

    def test_locked(self):
        self.check("locked", 2, shards=3)

    def test_a_root_without_rounds(self):
        self.check("locked", 2, averages="async_diloco")

    def test_bounded_staleness(self):
        self.check("bounded_staleness", 2)

    def test_hogwild_with_a_log(self):
        """A single trainer, without concurrent pushes."""
        self.check("hogwild", 1)

    def test_what_the_log_repeats_is_what_was_there(self):
        """Differences between gradients of an optimizer with state: the next daemon has the same bits."""
        root = self.root(1, period=3)
        adam = {"optimizer": '{"type":"adam","lr":0.25}'}
        settings = dict(listen=(self.unix_address("one.sock"),), policy="locked", durability=self.log("one"), **adam)
        machine = self.daemon(**settings)
        bridge = self.bridge("one", 0)
        self.count(machine.address)
        self.until_rounds(root, 6)
        self.end_trainers()
        machine.until_status("the bridge is at rest", lambda status: status["bridge"] is not None)
        bridge.signal(processes.signal.SIGTERM)
        self.assert_ends(bridge)
        before = self.values(machine)
        machine.kill()
        self.assertEqual(self.values(self.daemon(**settings)), before)

    def test_a_machine_that_lost_updates_has_the_common_parameters_again(self):
        root, machine = self.root(1), self.machine("one", durability={"type": "none"})
        bridge = self.bridge("one", 0)
        self.count(machine.address, inflight=INFLIGHT)
        self.until_rounds(root, 5)
        machine.kill()
        machine = self.machine("one", durability={"type": "none"})
        self.until_rounds(root, 5)
        self.end_trainers()
        self.assertIn("restarted without updates that it had", bridge.err)
        processes.until("both are at the same", lambda: self.tensors(root) == self.tensors(machine), SECONDS)
        # Of the pushes in flight some shards lost theirs, and others have it at the root and a second time.
        counts = self.values(root)
        self.assertGreater(min(counts), 0)
        self.assertLessEqual(max(counts), self.answered() + INFLIGHT)


    def test_an_operator_removes_it_and_the_next_one_resumes(self):
        root, machine = self.root(1), self.machine("one")
        bridge = self.bridge("one", 0)
        self.count(machine.address)
        self.until_rounds(root)
        removed = self.psd("trainer", "remove", 0, "--server", root.address)
        self.assertEqual(removed.returncode, 0, removed.stderr)
        self.assertNotEqual(bridge.wait(), 0)
        self.assertIn("removed by an operator", bridge.err)
        self.until_more("without a bridge", 5)
        self.bridge("one", 0)
        self.until_rounds(root)
        self.end_trainers()
        self.check_all_updates(root, machine)

    def test_a_daemon_whose_run_is_over_waits_for_its_bridge(self):
        """The period never elapses, so that everything is exchanged at the end."""
        root, machine = self.root(1, period=1_000_000), self.machine("one", exit_when_done=True)
        bridge = self.bridge("one", 0)
        self.count(machine.address)
        machine.until_status("there is a bridge", lambda status: status["bridge"] is not None)
        root.until_status("the bridge is in", lambda status: status["trainers"])
        self.until_more("with a bridge")
        self.end_trainers()
        self.assert_ends(bridge)
        self.assert_ends(machine)
        self.assertEqual(self.value(root), self.answered())

    def test_a_bridge_that_comes_when_the_trainers_have_left(self):
        root, machine = self.root(1), self.machine("one")
        self.assert_ends(self.count(machine.address, pushes=25))
        self.bridge("one", 0)
        self.check_all_updates(root, machine)
        root.until_status("no trainer is awaited", lambda status: not status["trainers"])


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class Pairs(Machines):
    """Both daemons have a standby and no log: the standbys take over."""

    def setUp(self):
        super().setUp()
        self.etcd = etcd.Etcd(self)

    def member(self, side, listen=f"tcp://{processes.LOOPBACK}:0"):
        engine = {"type": "etcd", "endpoints": [self.etcd.endpoint], "prefix": f"/psd/{side}"}
        settings = {"engine": engine, "replication": counting_pairs.PATIENT, "shards": 2}
        if side == "root":
            return self.start_root(1, listen=listen, **settings)
        return self.daemon(listen=(listen,), policy="locked", optimizer=counting.SGD, **settings)

    def test_takeovers(self):
        pairs, epochs = {}, {"root": 1, "machine": 1}
        for side in epochs:
            primary = self.member(side)
            primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
            pairs[side] = [primary, self.member(side)]
        both = {side: ",".join(daemon.address for daemon in pair) for side, pair in pairs.items()}
        bridge = self.bridge("one", 0, both["machine"], both["root"])
        for rank in range(2):
            self.count(both["machine"], rank, 2)
        for kill in range(max(3, KILLS // 2)):
            self.until_rounds(pairs["root"][0], self.random.choice([0, 1, 3]))
            side = ("machine", "root", None)[kill % 3]
            if side is None:
                bridge.kill()
                bridge = self.bridge("one", 0, both["machine"], both["root"])
                continue
            primary, standby = pairs[side]
            primary.until_in_sync()
            self.until_more("before a primary is killed", 20)
            primary.kill()
            epochs[side] += 1
            standby.until_status("it has taken over", lambda status, epoch=epochs[side]: status["replica_set"]["role"] == "primary" and
                                 status["replica_set"]["term"] == epoch)
            pairs[side] = [standby, self.member(side, primary.address)]
        self.until_rounds(pairs["root"][0])
        self.end_trainers()
        self.check_all_updates(pairs["root"][0], pairs["machine"][0])
        self.assertNotIn("without updates that it had", bridge.err)


class TwoMachines(Machines):
    def check(self, kills):
        # A round takes both: what one could not exchange at the end stays in its machine.
        root = self.root(2, quorum=2)
        machines = {name: self.machine(name) for name in ("one", "two")}
        for rank, (name, machine) in enumerate(machines.items()):
            self.bridge(name, rank)
            if rank > 0:  # otherwise what it trains before it has the root's values is lost
                machine.until_status("its bridge initialized it", lambda status: status["model"] and status["model"]["ready"])
            for trainer in range(2):
                self.count(machines[name].address, trainer, 2)
        parties = itertools.cycle([("bridge", "one"), ("machine", "two"), ("root", ""), ("bridge", "two"), ("machine", "one")])
        for (what, name), _ in zip(parties, range(kills)):
            self.until_rounds(root, self.random.choice([0, 1, 3]))
            if what == "bridge":
                self.bridges[name].kill()
                self.bridge(name, list(machines).index(name))
            elif what == "machine":
                machines[name].kill()
                machines[name] = self.machine(name)
            else:
                root.kill()
                root = self.root(2, quorum=2)
        self.until_rounds(root, 3)
        self.end_trainers()
        total = float(self.answered())

        daemons = (root, *machines.values())
        try:
            processes.until(f"all {total} are somewhere, once",
                            lambda: max(self.value(daemon) or 0 for daemon in daemons) == total, SECONDS)
        except AssertionError as failed:
            raise AssertionError(f"{failed}; there are {[self.values(daemon) for daemon in daemons]}") from None
        for daemon in daemons:
            self.assertLessEqual(max(self.values(daemon)), total)
        self.assertGreater(min(self.values(root)), total - 100)
        for bridge in self.bridges.values():
            bridge.signal(processes.signal.SIGTERM)
            self.assert_ends(bridge)
            self.assertNotIn("without updates that it had", bridge.err)

    def test_with_kills(self):
        self.check(KILLS)


class Commands(Machines):
    def refused(self, words, *flags):
        done = subprocess.run([processes.TRAINER, "bridge", *map(str, flags)], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(words, done.stderr)

    def test_what_is_missing_is_named(self):
        local = ("--local", "unix:///nowhere.sock")
        self.refused("--local is missing")
        self.refused("--rank is missing", *local)
        self.refused("--state is missing", *local, "--rank", 0)
        self.refused("is also --server", *local, "--server", local[1], "--rank", 0)
        self.refused("--rank", *local, "--rank", "auto", "--state", self.folder / "state")

    def test_two_bridges_of_a_machine(self):
        root, machine = self.root(1), self.machine("one")
        self.bridge("one", 0)
        self.count(machine.address)
        self.until_rounds(root)
        self.assert_fails(self.bridge("one", 0), "another bridge")
        self.assert_fails(self.start_trainer("bridge", "--local", machine.address, "--server", root.address, "--rank", 0, "--state",
                                             self.folder / "other"), "the bridge's place is taken")


    def test_the_model_does_not_move_while_a_bridge_is_in(self):
        root, machine = self.root(1), self.machine("one")
        self.bridge("one", 0)
        self.count(machine.address)
        self.until_rounds(root)
        two = self.machine("two", durability={"type": "none"})
        other = self.start_root(1, listen=self.unix_address("other.sock"))
        for daemon, empty, who in ((machine, two, "the bridge"), (root, other, "rank 0")):
            move = self.start_psd("move", "--server", daemon.address, "--to", empty.address)
            self.assert_fails(move, f"{who}: a bridge is bound to its two daemons")
        self.until_rounds(root)
        self.end_trainers()
        self.check_all_updates(root, machine)


class Examples(Machines):
    """configs/averaging_*.json, with the addresses and folders of the test."""

    def start(self, example, address, saved):
        daemon = processes.Daemon(self.folder, self._name("psd"), [
            "--config", processes.REPO / "configs" / example, "--listen", address, "--set", f"durability.path={self.folder / saved}"])
        self.processes.append(daemon)
        return daemon

    def test_two_machines_train(self):
        root = self.start("averaging_root.json", self.unix_address("root.sock"), "saved-root")
        trainers, machines = [], []
        for rank, name in enumerate(("one", "two")):
            machines.append(self.start("averaging_machine.json", self.unix_address(f"{name}.sock"), f"saved-{name}"))
            self.bridge(name, rank)
            trainers += [self.train(machines[-1].address, trainer, 2, data="synthetic:4096", steps=150,
                                    more=("--seed", rank + 1, "--batch-size", 16)) for trainer in range(2)]
        for trainer in trainers:
            self.assert_ends(trainer)
        self.assertGreaterEqual(self.rounds(root), 2)
        root.until_status("no trainer is awaited", lambda status: not status["trainers"])
        for daemon in (root, *machines):
            done = subprocess.run([processes.TRAINER, "eval", "--server", daemon.address, "--model", "mlp", "--data",
                                   "synthetic:1000", "--json"], capture_output=True, text=True, timeout=SECONDS, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertGreater(json.loads(done.stdout)["accuracy"], 0.9)
        for bridge in self.bridges.values():
            bridge.signal(processes.signal.SIGTERM)
            self.assert_ends(bridge)


if __name__ == "__main__":
    processes.main()
