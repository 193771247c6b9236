"""Two operators move a model, or two models to one daemon, at the same time: one of the commands succeeds, the other
changes nothing."""

import signal

import counting
import processes


class TwoOperators(counting.CountingTest):
    def one(self, name):
        return self.daemon(listen=(self.unix_address(f"{name}.sock"),), policy="locked", optimizer=counting.SGD)

    def move(self, old, new):
        return self.start_psd("move", "--server", old.address, "--to", new.address)

    def assert_refused(self, move, words):
        line = self.assert_fails(move, words)
        self.assertIn("trainers continue at the source daemons", line)

    def test_the_second_command_is_refused_and_the_first_continues(self):
        old, new, other, elsewhere = (self.one(name) for name in ("old", "new", "other", "elsewhere"))
        trainer = self.count(old.address)
        self.until_more("before the move")
        trainer.signal(signal.SIGSTOP)  # so that the first move waits for it
        first = self.move(old, new)
        processes.until("the first move has begun", lambda: "is about to move" in old.err)
        self.assert_refused(self.move(old, other), "another move of the model is in progress")
        self.assert_refused(self.move(old, new), "another move of the model is in progress")
        self.assertEqual(other.status()["state"], "waiting for a model")
        # Another model, to the target of the first one.
        self.assert_ends(self.count(elsewhere.address, pushes=3))
        self.assert_refused(self.move(elsewhere, new), "another move to this daemon is in progress")
        self.assertEqual({shard["version"] for shard in elsewhere.status()["shards"]}, {3})
        self.assertTrue(first.runs())
        trainer.signal(signal.SIGCONT)
        self.assert_ends(first)
        self.assert_ends(old)
        self.until_more("after the move")
        self.trainers.pop()  # the other model's
        self.check_counts(new)

    def test_of_two_commands_at_once_one_wins(self):
        old, targets = self.one("old"), [self.one(name) for name in ("new", "other")]
        self.count(old.address)
        self.until_more("before the move")
        moves = [self.move(old, target) for target in targets]
        ends = [move.wait() for move in moves]
        self.assertEqual(sorted(end == 0 for end in ends), [False, True], [move.err for move in moves])
        winner = ends.index(0)
        self.assert_ends(old)
        self.until_more("after the move")
        self.assertEqual(targets[1 - winner].status()["state"], "waiting for a model")
        self.check_counts(targets[winner])


if __name__ == "__main__":
    processes.main()
