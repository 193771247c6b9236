"""psd-executor over several daemons, and over a model that moves: daemons die, and what trainers were answered is in the model once."""

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
        daemon.until_status("rank 0 goes on there",
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
            self.assertIn("where trainers join from now on; give an executor that is started anew this `server`", executor.err)
            self.assertIn(f"to {places[-1][0].address}, ", executor.err)
        for index in range(2):  # those of now
            self.kill_and_start(places[-1], "c", index)
            self.until_more(places[-1][0])
        newcomer = self.remote(1, 2, steps=20)
        self.assert_ends(newcomer)
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
