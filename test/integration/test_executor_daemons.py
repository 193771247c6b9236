"""psd-executor over several daemons, and over a model that moves: daemons die, and what trainers got acknowledged is in
the model once."""

import re
import signal
import subprocess

import processes
from test_executor import ExecutorTest


class SeveralDaemonsTest(ExecutorTest):
    def several(self, count=2, name="d", **settings):
        addresses = [self.unix_address(f"{name}{index}.sock") for index in range(count)]
        return [self.member(addresses, name, index, **settings) for index in range(count)]

    def member(self, addresses, name, index, **settings):
        """One of several(), or one alone, over its folder."""
        own = {"durability__type": "log", "durability__path": str(self.folder / f"{name}-{index}")}
        if len(addresses) > 1:
            own.update(daemons=addresses, index=index)
        return self.daemon(listen=(addresses[index],), policy="locked", **own, **settings)

    def kill_and_start(self, daemons, name, index, **settings):
        addresses = [daemon.address for daemon in daemons]
        daemons[index].kill()
        daemons[index] = self.member(addresses, name, index, **settings)

    def assert_each_once(self, name, count, steps, ranks=1):
        """The logs of all daemons have each step of each rank once in each shard."""
        for index in range(count):
            counts = self.pushes_of(self.folder / f"{name}-{index}")
            self.assertTrue(counts)
            for shard, pushes in counts.items():
                self.assertEqual(set(pushes.values()), {1}, f"a step was applied twice in shard {shard} of daemon {index}")
                self.assertEqual(len(pushes), ranks * steps, f"shard {shard} of daemon {index}")


class Death(SeveralDaemonsTest):
    def test_a_daemon_of_two_that_is_killed_again_and_again_has_no_step_applied_twice(self):
        for killed in (1, 0):
            with self.subTest(killed=killed):
                name = f"kills{killed}-"
                daemons = self.several(name=name)
                executor = self.executor(daemons[0])
                trainer = self.remote(steps=400)
                for kill in range(1, 5):
                    self.until_steps(daemons[1 - killed], 40 * kill)
                    self.kill_and_start(daemons, name, killed)
                self.assert_ends(trainer)
                self.assertEqual(trainer.err.count("back after"), 4, trainer.err)
                executor.kill()
                # The trainer left once, when it was done; earlier its connection broke.
                self.assertEqual(daemons[1 - killed].err.count("rank 0 left after"), 1, daemons[1 - killed].err)
                for daemon in daemons:
                    self.assert_stops(daemon)
                self.assert_each_once(name, 2, 400)
                (self.folder / "executor.sock").unlink(missing_ok=True)

    def test_a_trainer_that_dies_while_a_daemon_is_away_is_lost_to_the_other(self):
        daemons = self.several(membership__grace_ms=50)
        executor = self.executor(daemons[0], connect_timeout_ms=200, silence_ms=1000)
        trainer = self.remote(steps=10_000_000)
        self.until_steps(daemons[0], 20)
        daemons[1].kill()
        processes.until("the trainer has tried to come back", lambda: executor.err.count("rank 0 was rejected") >= 2)
        trainer.kill()
        daemons[0].until_status("rank 0 is lost", lambda status: status["trainers"] == [])
        processes.until("nothing is kept of it", lambda: self.executor_status()["ending"] == 0)

    def test_a_daemon_of_two_that_is_killed_does_not_end_the_run_of_the_other(self):
        settings = {"exit_when_done": "true", "membership__grace_ms": 50}
        daemons = self.several(**settings)
        executor = self.executor(daemons[0], connect_timeout_ms=200)
        trainer = self.remote(steps=300)
        self.until_steps(daemons[0], 40)
        daemons[1].kill()
        # Each attempt takes longer than the grace.
        processes.until("the trainer has tried to come back", lambda: executor.err.count("rank 0 was rejected") >= 3)
        self.assertEqual([each["rank"] for each in daemons[0].status()["trainers"]], [0])
        daemons[1] = self.member([daemon.address for daemon in daemons], "d", 1, **settings)
        self.assert_ends(trainer)
        for daemon in daemons:
            self.assert_ends(daemon)
            self.assertIn("all 1 trainers are done", daemon.err)
        self.assertIn("rank 0 is back after", re.sub(r" \(process [^)]*\)", "", daemons[0].err))
        self.assert_each_once("d", 2, 300)


class Moves(SeveralDaemonsTest):
    def move(self, old, new):
        done = subprocess.run([processes.PSD, "move", "--server", old[0].address, "--to", new[0].address], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for daemon in old:
            self.assert_ends(daemon)

    def until_more(self, daemon):
        daemon.until_status("rank 0 trains there", lambda status: any(each["rank"] == 0 for each in status["trainers"]))
        goal = max(each["step"] for each in daemon.status()["trainers"] if each["rank"] == 0) + 20
        daemon.until_status("rank 0 continues there",
                            lambda status: any(each["rank"] == 0 and each["step"] >= goal for each in status["trainers"]))

    def test_an_executor_remembers_where_the_model_has_moved_to(self):
        places = [self.several(1, "a")]
        executor = self.executor(places[0][0])
        trainer = self.remote(0, 2, steps=10_000_000)
        self.until_more(places[0][0])
        for name, count in (("b", 1), ("c", 2)):
            places.append(self.several(count, name))
            self.move(places[-2], places[-1])
            self.until_more(places[-1][0])
            self.assertIn("where trainers join from now on; set `server` to that address before the executor restarts", executor.err)
            self.assertIn(f"to {places[-1][0].address}, ", executor.err)
        for index in range(2):  # the current ones
            self.kill_and_start(places[-1], "c", index)
            self.until_more(places[-1][0])
        late = self.remote(1, 2, steps=20)
        self.assert_ends(late)
        self.assertEqual(executor.err.count("the model has moved from"), 2, executor.err)
        trainer.signal(signal.SIGINT)
        self.assert_ends(trainer, 128 + signal.SIGINT)
        self.assertEqual(trainer.err.count("back after"), 2, trainer.err)
        for daemon in places[-1]:
            self.assert_stops(daemon)
        for index in range(2):
            for shard, pushes in self.pushes_of(self.folder / f"c-{index}").items():
                self.assertEqual(set(pushes.values()), {1}, f"shard {shard}")


if __name__ == "__main__":
    processes.main()
