"""Pairs whose run has ended, or whose cluster document is gone, started again in any order: the daemon whose folder has
every answered push starts, and the others wait and say for what."""

import json
import shutil
import signal
import unittest
import urllib.error
import urllib.request

import counting_pairs
import etcd
import processes

BOTH = "standby_and_disk"
NOT_TAKEN_DOWN = "the engine has not recorded that the run is over"


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class StandbyEnds(counting_pairs.CountingPairs):
    case = 0

    def one(self, listen=f"tcp://{processes.LOOPBACK}:0", wait="standby", folder=None, **settings):
        """A daemon with a log in a folder of its own for each case; None: it saves nothing."""
        durability = {"type": "none"}
        if folder:
            durability = {"type": "log", "path": str(self.at(folder)), "every_seconds": 0, **settings.pop("durability", {})}
        engine = {"type": "etcd", "endpoints": self.etcd.endpoints, "prefix": f"/psd/case-{self.case}"}
        return self.daemon(listen=(listen,), policy="locked", optimizer=counting_pairs.counting.SGD, engine=engine, shards=2,
                           replication={**counting_pairs.PATIENT, "wait": wait}, durability=durability, **settings)

    def at(self, folder):
        return self.folder / f"{folder}-{self.case}"

    @property
    def key(self):
        return f"/psd/case-{self.case}/plan"

    def next_case(self):
        self.case += 1
        self.trainers = []

    def waits(self, daemon, *words):
        """Until its log and the overview say that it waits, with these words."""
        daemon.until_status(f"it waits: {words}", lambda status: status["state"] == "waiting"
                            and all(word in status["replica_set"]["waits"] for word in words))
        self.assertIn("WAITS: ", self.psd("status", "--server", daemon.address).stdout)

    def in_sync(self, **settings):
        """A pair in sync, whose trainer's pushes are answered."""
        old = self.one(folder="old", **settings)
        self.until_primary(old, 1)
        last = self.one(folder="last", **settings)
        self.counting((old, last))
        old.until_in_sync()
        self.until_more("before the primary is killed", 20)
        return old, last

    def taken_over(self, **settings):
        """A dead daemon, and the other one, which serves in term 2 and has answered more."""
        old, last = self.in_sync(**settings)
        old.kill()
        self.until_primary(last, 2)
        self.until_more("by the one that took over", 20)
        return old, last

    def ended(self, how="stop", **settings):
        """As taken_over(); then the run ends in an orderly way."""
        old, last = self.taken_over(**settings, **({"exit_when_done": True} if how == "done" else {}))
        self.end_trainers()
        if how == "stop":
            done = self.psd("stop", "--server", last.address)
            self.assertTrue(done.returncode == 0 or NOT_TAKEN_DOWN in done.stderr, done.stderr)
        elif how == "int":
            last.signal(signal.SIGINT)
        self.until_ended(last)
        return old, last

    def until_ended(self, last, saved=True):
        """Until the daemon has ended and the cluster document says so. If a busy machine delayed etcd, which the daemon
        reports, the test writes it as the daemon would have."""
        self.assert_ends(last)
        plan = json.loads(self.etcd.value(self.key))
        if NOT_TAKEN_DOWN in last.err:
            self.etcd.put(self.key, json.dumps({**plan, "ended": True, "saved": saved}).encode())
        else:
            self.assertEqual((plan["ended"], plan["saved"]), (True, saved))

    def recover(self, daemon):
        # Refused as long as a peer answers there that may be the primary.
        processes.until("recover is accepted", lambda: self.psd("recover", "--server", daemon.address).returncode == 0)

    def assert_resumes(self, last, old, epoch=3):
        """With all answered pushes; the other one follows."""
        self.until_primary(last, epoch)
        self.check_model(last.address)
        if old:
            old.until_status("it follows", lambda status: status["replica_set"]["role"] != "primary" and status["replica_set"]["term"] == epoch
                             and "the run is over" not in status["replica_set"]["waits"])

    def test_after_an_end_the_last_primarys_folder_resumes_and_an_older_one_waits(self):
        for how, wait in (("stop", "standby"), ("int", BOTH), ("done", "standby"), ("stop", BOTH)):
            with self.subTest(how=how, wait=wait):
                self.next_case()
                old, last = self.ended(how, wait=wait)
                older = self.one(listen=old.address, folder="old", wait=wait)
                self.waits(older, "the run is over", last.address, "of term 2", "here is the state of term 1",
                           f"psd recover --server {older.address}")
                self.assertEqual(older.status()["replica_set"]["term"], 2)
                newest = self.one(listen=last.address, folder="last", wait=wait)
                self.assert_resumes(newest, older)
                trainer = self.counting((newest, older), pushes=5, rank=1, world_size=2)
                self.assert_ends(trainer)
                newest.until_in_sync()
                older.until_status("it is the standby", lambda status: status["state"] == "standby")

    def test_after_an_end_the_last_primarys_folder_needs_no_other(self):
        old, last = self.ended()
        newest = self.one(listen=last.address, folder="last")
        older = self.one(listen=old.address, folder="old")
        self.assert_resumes(newest, older)

    def test_a_daemon_that_ends_right_after_its_takeover_has_saved_the_model(self):
        """Without an update of its own, possibly before its first checkpoint has started."""
        old, last = self.in_sync()
        self.end_trainers()
        old.until_in_sync()
        old.kill()
        self.until_primary(last, 2)
        last.signal(signal.SIGINT)
        self.until_ended(last)
        older = self.one(listen=old.address, folder="old")
        self.waits(older, last.address, "of term 2")
        self.assert_resumes(self.one(listen=last.address, folder="last"), older)

    def test_where_the_newest_folder_is_lost_an_operator_decides(self):
        old, last = self.ended()
        shutil.rmtree(self.at("last"))
        empty = self.one(listen=last.address, folder="last")
        self.waits(empty, "the run is over", "here is no state of it")
        older = self.one(listen=old.address, folder="old")
        self.waits(older, last.address, "here is the state of term 1")
        self.recover(older)
        self.until_primary(older, 3)
        empty.until_status("it follows", lambda status: not status["replica_set"]["waits"] or "no values" in status["replica_set"]["waits"])

    def test_durability_resume_is_a_decision(self):
        old, last = self.ended()
        fresh = self.one(listen=old.address, folder="old", durability={"resume": "none"})
        self.until_primary(fresh, 3)
        self.assertIn(f"the last run's state, at {last.address}, is not used", fresh.err)

    def test_a_removed_cluster_document_is_for_an_operator_to_decide(self):
        old, last = self.ended()
        self.etcd.put(self.key, b"{}")
        waiting = self.one(listen=old.address, folder="old")
        waiting.until_status("it waits", lambda status: "this is not a cluster document of psd" in status["replica_set"]["waits"])
        waiting.kill()
        self.assertEqual(self.etcd.remove(self.key), 1)
        # A daemon over an older folder does not know of a newer one until that is started.
        older = self.one(listen=old.address, folder="old")
        self.waits(older, f"there is no cluster document in the engine ({self.key})", "this one has the newest state, the state of term 1")
        empty = self.one()
        self.waits(empty, f"{older.address} has the newest state, that of term 1; here is no state of it")
        newest = self.one(listen=last.address, folder="last")
        self.waits(older, f"{newest.address} has the newest state, that of term 2", f"psd recover --server {newest.address}")
        self.waits(newest, "this one has the newest state, the state of term 2")
        self.recover(newest)
        self.assert_resumes(newest, older)

    def test_a_folder_with_updates_that_a_run_lacks_does_not_follow_it(self):
        _, last = self.ended()
        self.assertEqual(self.etcd.remove(self.key), 1)
        fresh = self.one()
        self.until_primary(fresh, 1)
        newest = self.one(listen=last.address, folder="last")
        self.waits(newest, f"the run of {fresh.address} (term 1) was started without the state in the folder here, the state of term 2")
        self.psd("stop", "--server", fresh.address)
        self.until_ended(fresh, saved=False)
        self.waits(newest, f"of term 1 at {fresh.address}, saved nothing; here is the state of term 2")
        self.recover(newest)
        self.assert_resumes(newest, None)

    def test_a_standby_on_its_disk_is_newer_once_it_has_taken_over(self):
        """Before any checkpoint of its own as the primary: its log continues, and its folder is marked before a push is
        answered."""
        old = self.one(folder="old", wait=BOTH)
        self.until_primary(old, 1)
        last = self.one(folder="last", wait=BOTH)
        self.counting((old, last))
        old.until_in_sync()
        self.until_more("before the switch-over", 20)
        self.assertEqual(self.psd("switch", "--server", old.address).returncode, 0)
        self.until_primary(last, 2)
        self.until_more("by the one that took over", 20)
        self.end_trainers()
        processes.kill_together(last, old)
        self.assertEqual(self.etcd.remove(self.key), 1)
        older = self.one(listen=old.address, folder="old", wait=BOTH)
        newest = self.one(listen=last.address, folder="last", wait=BOTH)
        self.waits(older, f"{newest.address} has the newest state, that of term 2", f"psd recover --server {newest.address}")
        self.recover(newest)
        self.assert_resumes(newest, older)

    def test_a_standbys_folder_does_not_follow_a_run_that_began_without_it(self):
        _, last = self.taken_over(wait=BOTH)
        standby = self.one(folder="again", wait=BOTH)
        last.until_in_sync()
        self.until_more("with the next standby", 20)
        self.end_trainers()
        processes.kill_together(last, standby)
        self.assertEqual(self.etcd.remove(self.key), 1)
        fresh = self.one()
        self.until_primary(fresh, 1)
        left = self.one(listen=standby.address, folder="again", wait=BOTH)
        self.waits(left, f"the run of {fresh.address} (term 1) was started without the state in the folder here, the state of term 2")

    def test_a_daemon_that_died_before_a_first_checkpoint_names_the_remaining_folder(self):
        """Its log has updates that no checkpoint leads to: no daemon may start automatically."""
        old, last = self.in_sync()
        self.at("last").mkdir(exist_ok=True)
        (self.at("last") / f"primary.json.tmp.{last.pid}").mkdir()  # so that the folder is never marked
        old.kill()
        self.until_primary(last, 2)
        last.kill()
        for trainer, _ in self.trainers:
            trainer.kill()
        shutil.rmtree(self.at("last"))
        lost = self.one(listen=last.address, folder="last")
        left = self.one(listen=old.address, folder="old")
        for daemon in (left, lost):
            self.waits(daemon, "of term 2, saved nothing before it died", f"that of term 1: psd recover --server {left.address}")
        self.recover(left)
        self.until_primary(left, 3)

    def test_a_standby_is_ready_and_one_that_waits_is_not(self):
        http = {"listen": ["tcp://127.0.0.1:0"]}
        primary = self.one(folder="old", http=http)
        self.until_primary(primary, 1)
        standby = self.one(folder="last", http=http)
        self.waits(standby, "the model has no values yet")
        self.assertEqual(self.ready(standby), (503, "waiting\n"))
        self.assert_ends(self.counting((primary, standby), pushes=1))
        primary.until_in_sync()
        standby.until_status("it is the standby", lambda status: status["state"] == "standby")
        self.assertEqual([self.ready(each) for each in (primary, standby)], [(200, "serving\n"), (200, "standby\n")])
        self.assertEqual(self.metrics(standby, "psd_serving", "psd_replica_standby", "psd_replica_waits"), [0, 1, 0])
        shown = self.psd("status", "--server", standby.address).stdout
        self.assertIn("standby of term 1", shown)
        self.assertNotIn("not initialized yet", shown)
        self.assertTrue(standby.status()["model"]["ready"])

    def ready(self, daemon):
        try:
            with urllib.request.urlopen(f"{daemon.page}/readyz", timeout=processes.WAIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self, daemon, *names):
        with urllib.request.urlopen(f"{daemon.page}/metrics", timeout=processes.WAIT_S) as answer:
            lines = dict(line.split(" ") for line in answer.read().decode().splitlines() if line[0] != "#" and " " not in line.split(" ", 1)[1])
        return [float(lines[name]) for name in names]

    def test_without_an_engine_a_folder_of_a_pair_is_reported(self):
        old, _ = self.ended()
        alone = self.daemon(listen=(old.address,), policy="locked", optimizer=counting_pairs.counting.SGD, shards=2,
                            durability={"type": "log", "path": str(self.at("old"))})
        self.assertIn("belongs to a replica set, and no engine is configured", alone.err)


if __name__ == "__main__":
    processes.main()
