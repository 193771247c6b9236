"""A pair whose etcd fails at the same time as one of the daemons, or whose cluster document is damaged."""

import unittest

import counting
import counting_pairs
import etcd
import processes

DEATHS = 3


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class StandbyEngine(counting_pairs.CountingPairs):
    def pair_at_work(self):
        primary, standby = self.pair()
        self.counting((primary, standby))
        primary.until_in_sync()
        self.until_more("at first")
        return primary, standby

    def test_a_switch_without_etcd_is_refused_at_once(self):
        primary, standby = self.pair_at_work()
        self.etcd.kill()
        primary.until_status("it misses the engine", lambda status: status["replica_set"]["engine"])
        done = self.psd("switch", "--server", primary.address)
        self.assertEqual(done.returncode, 1)
        self.assertIn("the cluster document cannot be changed now: etcd", done.stderr)
        self.until_more("by the primary that serves on")
        self.assertTrue(self.etcd.start())
        primary.until_status("it reaches the engine", lambda status: not status["replica_set"]["engine"])
        primary.switch_over()
        self.until_primary(standby, 2)
        self.check_counts(standby)

    def test_without_etcd_a_dead_standby_makes_pushes_wait_and_pulls_continue(self):
        self.gradients = "ones"  # so that every value counts the pushes
        primary, standby = self.pair_at_work()
        self.etcd.kill()
        primary.until_status("it misses the engine", lambda status: status["replica_set"]["engine"])
        self.until_more("without etcd")
        standby.kill()
        primary.until_status("it misses the standby", lambda status: status["replica_set"]["follower"] == "")
        self.values(primary)
        answered = self.answered()
        for _ in range(3):
            # Pushes without an answer may be in a pull.
            values = self.values(primary)
            self.assertTrue(answered <= min(values) <= max(values) <= answered + 2, (answered, values))
        self.assertEqual(self.answered(), answered)
        group = primary.status()["replica_set"]
        self.assertTrue(group["waits_for_standby"] and group["engine"], group)
        self.assertTrue(self.etcd.start())
        self.until_more("by the primary alone, once etcd is back")
        self.until_without_standby(primary)
        standby = self.restarted(standby)
        primary.until_in_sync()
        primary.kill()
        self.until_primary(standby, 2)
        self.until_more("by the standby")
        self.end_trainers()
        self.assertEqual(self.values(standby), {float(self.answered())})

    def test_a_damaged_cluster_document_is_reported_until_it_is_repaired(self):
        primary, standby = self.pair_at_work()
        key, third = "/psd/test/plan", None

        def damage(text):
            plan = self.etcd.value(key)
            self.etcd.put(key, text(plan.decode()).encode())
            return plan

        before = damage(lambda plan: plan)
        for text, place in ((lambda plan: "garbage", "the cluster document"), (lambda plan: plan.replace('"primary"', '"primarius"'), "groups[0].prim"),
                            (lambda plan: plan.replace('"psd plan"', '"a shopping list"'), "format: must be"), (lambda plan: "", "the cluster document")):
            with self.subTest(place):
                damage(text)
                for daemon in (primary, standby):
                    daemon.until_status(f"it names {place}", lambda status, place=place: place in status["replica_set"]["engine"])
                self.until_more("while the cluster document is damaged")
                third = self.one()
                third.until_status(f"it waits and names {place}", lambda status, place=place: place in status["replica_set"]["waits"])
                self.assertIn("waiting for the cluster document", third.err)
                self.etcd.put(key, before)
                for daemon in (primary, standby):
                    daemon.until_status("it has the cluster document again", lambda status: status["replica_set"]["engine"] == "")
                third.until_status("it has read the cluster document", lambda status: "another standby" in status["replica_set"]["waits"])
                third.kill()
        self.assertEqual(primary.until_in_sync()["replica_set"]["term"], 1)
        # No daemon takes over with a cluster document that cannot be read.
        damage(lambda plan: "garbage")
        primary.kill()
        standby.until_status("it names the place", lambda status: "the cluster document" in status["replica_set"]["engine"])
        self.assertEqual(standby.status()["replica_set"]["role"], "standby")
        self.etcd.put(key, before)
        self.until_primary(standby, 2)
        self.restarted(primary)
        standby.until_in_sync()
        self.check_counts(standby)


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
class StandbyOfThreeMembers(counting_pairs.CountingPairs):
    def setUp(self):
        counting.CountingTest.setUp(self)
        self.etcd = etcd.Cluster(self)

    def test_the_leader_of_etcd_dies_with_the_primary(self):
        primary, standby = self.pair()
        self.counting((primary, standby))
        for death in range(DEATHS):
            primary.until_in_sync()
            self.until_more("before both die")
            leader = self.etcd.leader()
            leader.kill()
            primary.kill()
            self.until_primary(standby, death + 2)
            self.until_more("by the standby")
            self.assertTrue(leader.start())
            primary, standby = standby, self.restarted(primary)
        primary.until_in_sync()
        self.check_counts(primary)


if __name__ == "__main__":
    processes.main()
