"""A pair of daemons with different configurations: the primary's rules apply to the model; commands that end the run,
and readers, find the primary."""

import json
import subprocess
import unittest

import etcd
import processes

SGD = '{"type":"sgd","lr":1}'


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class StandbySettings(processes.ProcessTest):
    def setUp(self):
        self.etcd = etcd.Etcd(self)

    def one(self, listen=f"tcp://{processes.LOOPBACK}:0", **settings):
        engine = {"type": "etcd", "endpoints": [self.etcd.endpoint], "prefix": "/psd/test"}
        return self.daemon(listen=(listen,), policy="locked", optimizer=SGD, engine=engine, **settings)

    def pair(self, primarys=None, standbys=None):
        primary = self.one(**(primarys or {}))
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        return primary, self.one(**(standbys or {}))

    def until_primary(self, daemon):
        daemon.until_status("it has taken over", lambda status: status["replica_set"]["role"] == "primary")

    def psd(self, *arguments):
        return subprocess.run([processes.PSD, *map(str, arguments)], capture_output=True, text=True, timeout=processes.WAIT_S, check=False)

    def trainer(self, pair, rank=0, world_size=1, steps=10_000_000):
        return self.train(",".join(daemon.address for daemon in pair), rank, world_size, steps=steps)

    def trains(self, daemon, rank=0):
        daemon.until_status(f"rank {rank} trains", lambda status: any(
            each["rank"] == rank and each["step"] > 2 for each in status["trainers"]))

    def test_the_world_is_the_primarys(self):
        primary, standby = self.pair({"world_size": 1}, {"world_size": 9})
        pair = (primary, standby)
        self.trainer(pair)
        primary.until_in_sync()
        self.trains(primary)
        primary.kill()
        self.until_primary(standby)
        self.trains(standby)
        self.assertEqual(standby.status()["world_size"], 1)

    def test_finished_trainers_are_known_after_a_takeover(self):
        primary, standby = self.pair({"exit_when_done": "true"})
        pair = (primary, standby)
        stays = self.trainer(pair, 0, 2, steps=3_000)
        leaves = self.trainer(pair, 1, 2, steps=3)
        self.assert_ends(leaves)
        primary.until_in_sync()
        self.trains(primary)
        primary.kill()
        self.until_primary(standby)
        self.assert_ends(stays)
        self.assert_ends(standby)
        self.assertIn("all 2 trainers are done", standby.err)

    def test_a_standby_keeps_its_primarys_rules(self):
        configs = []
        for rate in (1, 3):
            configs.append(self.write(f"{rate}.json", json.dumps({"optimizer": {"type": "sgd", "lr": rate}, "policy": {"type": "locked"}, "device": "cpu",
                                                                   "engine": {"endpoints": [self.etcd.endpoint], "prefix": "/psd/test"}})))
        daemons = []
        for config in configs:
            daemon = processes.Daemon(self.folder, self._name("psd"), ["--config", config, "--listen", "tcp://127.0.0.1:0"], None, None)
            self.processes.append(daemon)
            daemons.append(daemon)
            if len(daemons) == 1:
                daemon.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        primary, standby = daemons
        trainer = self.trainer(daemons)
        primary.until_in_sync()
        for key in ("optimizer.weight_decay=0.5", "policy.type=sync"):
            refused = self.psd("set", key, "--server", standby.address)
            self.assertEqual(refused.returncode, 1, refused.stdout)
            self.assertIn("this daemon is not the primary: set the rules of the model there", refused.stderr)
        done = self.psd("set", "log.level=debug", "--server", standby.address)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.psd("reload", "--server", standby.address)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("log.level", done.stdout)
        self.assertNotIn("lr", done.stdout)
        primary.until_in_sync()
        primary.kill()
        self.until_primary(standby)
        self.trains(standby)
        self.assertIn("lr=1", standby.status()["optimizer"])
        trainer.kill()

    def test_readers_find_the_primary(self):
        primary, standby = self.pair()
        trainer = self.trainer((primary, standby))
        primary.until_in_sync()
        self.trains(primary)
        reader = self.start_trainer("eval", "--server", f"{standby.address},{primary.address}", "--model", "mlp", "--data", "synthetic:64",
                                    "--device", "cpu")
        self.assert_ends(reader)
        trainer.kill()

    def test_a_run_whose_end_the_engine_did_not_take_down(self):
        primary, standby = self.pair()
        self.assert_ends(self.trainer((primary, standby), steps=3))
        primary.until_in_sync()
        self.etcd.kill()
        done = self.psd("stop", "--discard", "--server", primary.address)
        self.assertEqual(done.returncode, 1)
        self.assertIn("the engine has not recorded that the run is over", done.stderr)
        self.assertGreaterEqual(primary.wait(), 0)


if __name__ == "__main__":
    processes.main()
