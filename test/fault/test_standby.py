"""A primary and a standby as processes with a real etcd: killed, stopped for a while, restarted, switched over."""

import json
import os
import signal
import unittest
import urllib.request

import counting_pairs
import etcd
import processes

KILLS = int(os.environ.get("FAULT_STANDBY_KILLS", "6"))


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class Standby(counting_pairs.CountingPairs):
    def test_kill_after_kill_loses_nothing(self):
        primary, standby = self.pair()
        for rank in range(2):
            self.counting((primary, standby), rank, 2)
        self.check_counts(self.killed_repeatedly(primary, standby, KILLS))

    def test_hogwild_loses_nothing(self):
        """A single trainer, without concurrent pushes."""
        primary, standby = self.pair(policy="hogwild")
        self.counting((primary, standby))
        self.check_counts(self.killed_repeatedly(primary, standby, 3, policy="hogwild"))

    def test_the_standby_has_each_push_that_raced(self):
        """Although races may lose updates in the primary, its standby applies the pushes one after the other."""
        self.races = True
        primary, standby = self.pair(policy="hogwild")
        self.assert_ends(self.counting((primary, standby), rank=2, world_size=3, pushes=1))
        primary.until_in_sync()
        for trainer in [self.counting((primary, standby), rank, 3, pushes=500) for rank in range(2)]:
            self.assert_ends(trainer)
        primary.kill()
        self.until_primary(standby, 2)
        self.assertEqual(self.answered(), 1001)
        self.check_model(standby.address)

    def test_a_primary_that_stood_still_ends_with_the_run(self):
        primary, standby = self.pair()
        self.counting((primary, standby))
        primary.until_in_sync()
        self.until_more("before the primary stands still", 20)
        primary.signal(signal.SIGSTOP)
        self.until_primary(standby, 2)
        self.end_trainers()
        self.assertEqual(self.psd("stop", "--discard", "--server", standby.address).returncode, 0)
        self.assert_ends(standby)
        primary.signal(signal.SIGCONT)
        self.assertEqual(primary.wait(), 0, primary.err)
        self.assertIn("the cluster document says that the run is over", primary.err)

    def test_a_primary_that_stood_still_becomes_the_standby(self):
        primary, standby = self.pair()
        for rank in range(2):
            self.counting((primary, standby), rank, 2)
        for freeze in range(3):
            primary.until_in_sync()
            self.until_more("before the primary stands still", 20)
            primary.signal(signal.SIGSTOP)
            self.until_primary(standby, freeze + 2)
            primary.signal(signal.SIGCONT)
            standby.until_in_sync()
            primary.until_status("it is the standby", lambda status: status["replica_set"]["role"] == "standby")
            primary, standby = standby, primary
        self.check_counts(primary)

    def test_a_checkpoint_after_a_takeover_is_announced_once_the_folder_is_marked(self):
        def saving(name):
            return {"durability": {"type": "log", "path": str(self.folder / name)}}
        primary = self.one(**saving("a"))
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        standby = self.one(**saving("b"))
        self.counting((primary, standby))
        primary.until_in_sync()
        self.until_more("before the primary is killed", 20)
        stuck = self.folder / "b" / f"primary.json.tmp.{standby.pid}"  # stands for a disk that blocks when it is written
        os.mkfifo(stuck)
        primary.kill()
        processes.until("a checkpoint is whole", lambda: list((self.folder / "b").glob("checkpoint-*/manifest.json")))
        self.until_more("by the standby", 20)
        self.assertEqual(standby.status()["durability"]["checkpoints"], 0)
        self.assertNotIn("checkpoint '", standby.err)
        os.close(os.open(stuck, os.O_RDONLY))
        stuck.unlink(missing_ok=True)
        # Once the checkpoint is announced, a daemon resumes from the folder.
        processes.until("it is announced", lambda: "bytes in" in standby.err)
        standby.kill()
        again = [self.restarted(standby, **saving("b")), self.restarted(primary, **saving("a"))]
        self.until_more("by the one that was the primary", 20)
        self.until_primary(again[0], 3)
        self.check_counts(again[0])

    def test_rounds_continue_at_the_standby(self):
        primary, standby = self.pair(policy="sync")
        for rank in range(2):
            self.counting((primary, standby), rank, 2, inflight=0)
        primary = self.killed_repeatedly(primary, standby, 3, policy="sync")
        self.end_trainers()
        # Each round counts once.
        rounds = {shard["version"] for shard in primary.status()["shards"]}
        self.assertGreaterEqual(min(rounds), max(self.answered_by_trainer()))
        self.assertEqual(self.values(primary), {float(each) for each in rounds})

    def test_a_dead_standby_delays_no_push(self):
        primary, standby = self.pair()
        self.counting((primary, standby))
        for _ in range(3):
            primary.until_in_sync()
            standby.kill()
            self.until_more("by the primary alone", 20)
            standby = self.restarted(standby)
        self.check_counts(primary)

    def stop_standby(self, wait):
        primary, standby = self.pair(replication={"wait": wait, "lag_bytes": 1 << 20})
        self.counting((primary, standby))
        primary.until_status("a standby is in sync", lambda status: status["replica_set"]["standby"])
        self.until_more("before the standby stands still", 20)
        standby.signal(signal.SIGSTOP)
        self.until_without_standby(primary)
        self.until_more("by the primary alone", 200)  # more than may be on its way to a standby
        standby.signal(signal.SIGCONT)
        primary.until_status("it is in sync again", lambda status: status["replica_set"]["standby"])
        self.check_counts(primary)

    def test_a_standby_that_stands_still_is_left_out(self):
        self.stop_standby("standby")

    def test_a_standby_that_stands_still_is_left_out_where_nothing_waits_for_it(self):
        self.stop_standby("none")

    def test_recover_is_refused_while_the_pair_lives(self):
        primary, standby = self.pair()
        self.counting((primary, standby))
        primary.until_in_sync()
        third = self.one()
        third.until_status("it waits", lambda status: "another standby" in status["replica_set"]["waits"])

        def refused(why):
            done = self.psd("recover", "--server", third.address)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(why, done.stderr)

        refused("the primary is alive")
        primary.signal(signal.SIGSTOP)  # it does not answer, and the standby takes over
        self.until_primary(standby, 2)
        primary.signal(signal.SIGCONT)
        refused("the primary is alive")
        standby.until_in_sync()
        self.assertEqual(standby.status()["replica_set"]["term"], 2)
        self.check_counts(standby)

    def test_without_etcd_training_continues(self):
        primary, standby = self.pair()
        self.counting((primary, standby))
        primary.until_in_sync()
        self.assertIn("runs on this machine: if it fails, the engine fails too", primary.err)
        self.etcd.kill()
        primary.until_status("it misses the engine", lambda status: status["replica_set"]["engine"])
        self.assertRegex(self.psd("status", "--server", primary.address).stdout, r"(?m)^ +ENGINE: .*etcd: no answer")
        self.until_more("without etcd", 100)
        self.assertEqual(primary.status()["replica_set"]["role"], "primary")
        primary.kill()
        # The standby must not take over on its own decision.
        standby.until_status("it misses the engine", lambda status: status["replica_set"]["engine"])
        self.assertNotEqual(standby.status()["replica_set"]["role"], "primary")
        self.assertTrue(self.etcd.start())
        self.until_primary(standby, 2)
        self.until_more("by the standby", 20)
        self.restarted(primary)
        standby.until_in_sync()
        self.check_counts(standby)

    def test_a_missing_cluster_document_is_written_again(self):
        primary, standby = self.pair()
        self.counting((primary, standby))
        before = primary.until_in_sync()["replica_set"]["standby"]
        self.etcd.kill()
        self.assertTrue(self.etcd.start(empty=True))
        self.until_primary(primary, 3)
        # A daemon that does not know the cluster document has no role in the replica set.
        third = self.one()
        third.until_status("it waits", lambda status: "another standby" in status["replica_set"]["waits"])
        self.assertEqual(primary.until_in_sync()["replica_set"]["standby"], before)
        standby.until_status("it is in sync", lambda status: status["replica_set"]["role"] == "standby" and not status["replica_set"]["engine"])
        self.until_more("in the new epoch", 20)
        primary.kill()
        self.until_primary(standby, 4)
        self.check_counts(standby)

    def test_a_cluster_document_lost_with_its_primary_is_for_an_operator_to_repair(self):
        primary, standby = self.pair()
        trainer = self.counting((primary, standby))
        primary.until_in_sync()
        self.until_more("before all is lost", 20)
        trainer.signal(signal.SIGSTOP)
        held = standby.status()["shards"][0]["version"]
        self.etcd.kill()
        primary.kill()
        self.assertTrue(self.etcd.start(empty=True))
        self.restarted(primary)  # with an empty folder: it must not become the primary
        standby.until_status("the cluster document exists again, and names no standby",
                             lambda status: status["replica_set"]["term"] == 1 and status["replica_set"]["role"] == "syncing")
        # Refused for a while after the primary's last heartbeat.
        processes.until("recover is accepted", lambda: self.psd("recover", "--server", standby.address).returncode == 0)
        self.until_primary(standby, 2)
        self.assertGreaterEqual(standby.status()["shards"][0]["version"], held)
        standby.until_in_sync()
        trainer.signal(signal.SIGCONT)
        self.check_counts(standby)

    def test_sigterm_hands_over(self):
        primary, standby = self.pair()
        for rank in range(2):
            self.counting((primary, standby), rank, 2)
        for handover in range(3):
            primary.until_in_sync()
            self.until_more("before the primary is to end", 20)
            self.assert_stops(primary)
            self.until_primary(standby, handover + 2)
            primary, standby = standby, self.restarted(primary)
        self.check_counts(primary)

    def test_switch_and_the_end_of_the_run(self):
        primary, standby = self.pair()
        self.counting((primary, standby))
        for switch in range(3):
            if switch == 2:
                self.end_trainers()  # a daemon outlives its trainers, and so does its standby
            primary.until_in_sync()
            self.switched(primary, standby, switch + 2)
            primary, standby = standby, primary
        self.check_counts(primary)
        primary.until_in_sync()
        both = f"{standby.address},{primary.address}"  # the command goes to the primary, whatever the order
        done = self.psd("export", "--server", both, "--to", self.folder / "whole.safetensors")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.psd("stop", "--discard", "--server", both)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{primary.address} has stopped", done.stdout)
        self.assert_ends(primary)
        self.assert_ends(standby)
        # A daemon started later starts a new run.
        fresh = self.one()
        fresh.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        self.assertIsNone(fresh.status()["model"])

    def switched(self, primary, standby, epoch):
        primary.switch_over()
        self.until_primary(standby, epoch)

    def test_a_switch_disconnects_trainers_that_the_standby_does_not_notify(self):
        primary, standby = self.pair()
        trainer = self.counting((primary,))
        primary.until_in_sync()
        self.until_more("before the switch", 20)
        self.switched(primary, standby, 2)
        processes.until("the old primary restarts", lambda: "discarding all state and restarting" in primary.err)
        told = primary.err.partition("discarding all state and restarting")[0]
        self.assertIn("rank 0 of 1 joined", told)
        self.assertIn("disconnected after", told)
        trainer.kill()

    def test_trainers_that_go_with_a_switch_are_not_lost(self):
        """Otherwise a run that ends with its trainers would end at the old primary."""
        primary, standby = self.pair(membership__grace_ms=0, exit_when_done=True)
        self.counting((primary, standby))
        for epoch in (2, 3):
            primary.until_in_sync()
            self.until_more("before the switch", 20)
            self.switched(primary, standby, epoch)
            self.until_more("after the switch", 20)
            primary, standby = standby, primary
        primary.until_in_sync()
        self.end_trainers()
        for daemon in (primary, standby):
            self.assert_ends(daemon)
        self.assertIn("all 1 trainers are done", primary.err)
        for daemon in (primary, standby):
            self.assertNotRegex(daemon.err, "is lost|lost on the way")

    def test_rounds_after_a_take_over_are_of_all_trainers(self):
        """Even though start_trainers is 0: the standby knows whose gradients made the newest round."""
        primary, standby = self.pair(policy="sync")
        for rank in range(3):
            self.counting((primary, standby), rank, 3, inflight=0)
        for epoch in (2, 3, 4):
            primary.until_in_sync()
            self.until_each_more("before the switch", 5)
            self.switched(primary, standby, epoch)
            self.until_each_more("after the switch", 5)
            primary, standby = standby, primary
            self.assertEqual(primary.counter("late_pushes"), 0)
        self.end_trainers()
        rounds = {shard["version"] for shard in primary.status()["shards"]}
        self.assertEqual(self.values(primary), {float(each) for each in rounds})

    def test_a_change_of_the_configuration_reaches_the_standby(self):
        primary, standby = self.pair()
        trainer = self.counting((primary, standby))
        before = primary.until_in_sync()["replica_set"]["standby"]
        done = self.psd("set", "optimizer.lr=2", "--server", primary.address)
        self.assertEqual(done.returncode, 0, done.stderr)
        primary.until_status("it is in sync again", lambda status: status["replica_set"]["waits_for_standby"]
                             and status["replica_set"]["standby"] not in ("", before))
        primary.kill()
        self.until_primary(standby, 2)
        self.assertIn("lr=2", standby.status()["optimizer"])
        trainer.kill()

    def test_a_change_of_the_configuration_does_not_wait_for_the_standby_to_be_missed(self):
        # Longer than any wait of this test.
        primary, standby = self.pair(replication={"alone_ms": 600_000})
        self.counting((primary, standby))
        primary.until_in_sync()
        for rate in (2, 1):
            before = primary.status()["replica_set"]["standby"]
            done = self.psd("set", f"optimizer.lr={rate}", "--server", primary.address)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.until_more("after the change", 50)
            primary.until_status("it is in sync again", lambda status: status["replica_set"]["waits_for_standby"]
                                 and status["replica_set"]["standby"] not in ("", before))

    def test_a_daemon_that_waits_for_a_dead_primary_says_what_to_do(self):
        primary, standby = self.pair()
        trainer = self.counting((primary, standby))
        primary.until_in_sync()
        trainer.kill()
        standby.kill()
        primary.kill()
        stranger = self.one(listen=primary.address)
        stranger.until_status("it waits, and says what to do",
                              lambda status: f"psd recover --server {stranger.address}" in status["replica_set"]["waits"])
        refused = self.psd("export", "--server", stranger.address, "--to", self.folder / "no.safetensors")
        self.assertIn("does not serve", refused.stderr)
        done = self.psd("recover", "--server", stranger.address)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.until_primary(stranger, 2)

    def test_a_daemon_resumes_from_a_log(self):
        folder = {"type": "log", "path": str(self.folder / "saved")}
        primary = self.one(durability=folder)
        self.counting((primary,))
        self.until_more("before the daemon is killed", 20)
        primary.kill()
        again = self.one(listen=primary.address, durability=folder)
        self.until_primary(again, 2)
        self.check_counts(again)

    def test_a_daemon_resumes_from_what_a_standby_saved_after_it_took_over(self):
        saved = [{"type": "log", "path": str(self.folder / name)} for name in ("one", "other")]
        primary = self.one(durability=saved[0])
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        standby = self.one(durability=saved[1])
        self.counting((primary, standby))
        primary.until_in_sync()
        self.until_more("before the primary is killed", 20)
        primary.kill()
        self.until_primary(standby, 2)
        mark = self.folder / "other" / "primary.json"
        processes.until("the folder is the new primary's", lambda: mark.exists() and '"epoch": 2' in mark.read_text())
        self.until_more("and saved", 20)
        standby.kill()
        # The daemon over the first folder has the state of an earlier primary.
        stale = self.one(listen=primary.address, durability=saved[0])
        stale.until_status("it waits", lambda status: status["replica_set"]["waits"])
        again = self.one(listen=standby.address, durability=saved[1])
        self.until_primary(again, 3)
        self.check_counts(again)

    def test_the_page_shows_a_standby_that_is_away(self):
        primary, standby = self.pair(http={"listen": ["tcp://127.0.0.1:0"]})
        self.assert_ends(self.counting((primary, standby), pushes=1))
        primary.until_in_sync()

        def others():
            with urllib.request.urlopen(f"{primary.page}/api/daemons.json", timeout=processes.WAIT_S) as answer:
                return [(row["answers"], row["role"]) for row in json.load(answer)["daemons"] if not row["here"]]

        self.assertEqual(others(), [(True, "standby")])
        standby.kill()
        self.until_without_standby(primary)
        processes.until("the page shows that it is away", lambda: others() == [(False, "standby")])

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_rows_of_tables_are_the_same_bits_as_without_a_death(self):
        def trained(name, die):
            def one(folder, listen=f"tcp://{processes.LOOPBACK}:0"):
                engine = {"type": "etcd", "endpoints": [self.etcd.endpoint], "prefix": f"/psd/{name}"}
                return self.daemon(listen=(listen,), policy="locked", optimizer='{"type":"adagrad","lr":0.05}', engine=engine, shards=2,
                                   row_shards=2, durability={"type": "checkpoint", "path": str(self.folder / name / folder)})

            primary = one("a")
            primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
            standby = one("b")
            trainer = self.train(f"{primary.address},{standby.address}", model="mf:dim=4", steps=1_200,
                                 data="ratings:samples=20000,users=500,items=300")
            primary.until_in_sync()
            if die:
                primary.until_status("it trains", lambda status: status["trainers"] and status["trainers"][0]["step"] > 300)
                primary.kill()
                self.until_primary(standby, 2)
                primary, standby = standby, one("c", listen=primary.address)
            self.assert_ends(trainer)
            primary.until_in_sync()
            return self.tables(primary), {(shard["id"], shard["version"]) for shard in primary.status()["row_shards"]}

        undisturbed, disturbed = trained("calm", False), trained("death", True)
        self.assertGreater(len(undisturbed[0]), 1)
        self.assertEqual(undisturbed, disturbed)


if __name__ == "__main__":
    processes.main()
