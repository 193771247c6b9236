"""Codecs at several daemons: the residual of error feedback reaches the daemon that lacks it, once, and only pulls are
rounded."""

import itertools
import threading

import numpy as np
import processes

import psd

# Cut within a tensor.
MODEL = psd.Model("coded", {"w": (30, 211), "b": (77,)})
PUSHES, RANKS = 6, 2
RULES = {"locked": {"policy": "locked", "optimizer": '{"type":"sgd","lr":1.0}'},
         # A round is the mean of its gradients.
         "sync": {"policy": "sync", "policy__start_trainers": RANKS, "policy__round_timeout_ms": 600_000,
                  "optimizer": f'{{"type":"sgd","lr":{RANKS}.0}}'}}


def downhill(rank):
    """Whole numbers, in an order in which every block has large and small ones: the model is exact."""
    places = np.arange(MODEL.size)
    return -(1 + rank + (places * (7919 + rank)) % MODEL.size).astype(np.float32)


class PythonSeveralCodecs(processes.ProcessTest):
    def several(self, name, **settings):
        addresses = [self.unix_address(f"{name}{index}.sock") for index in range(2)]
        return [self.daemon(listen=(addresses[index],), daemons=addresses, index=index, shards=2, **settings) for index in range(2)]

    def joined(self, daemons, rank, **options):
        client = psd.Client(daemons[rank % 2].address, transport="rpc", **options)
        self.addCleanup(client.close)
        client.join(MODEL, MODEL.zeros(), rank, RANKS)
        return client

    def read(self, daemons):
        reader, values = psd.Client(daemons[0].address, transport="rpc"), MODEL.zeros()
        self.addCleanup(reader.close)
        reader.observe(MODEL)
        reader.pull(values)
        return values

    def flush_residuals(self, client, values, pushes=3):
        """Pushes zeros until every residual has been sent."""
        for _ in range(pushes):
            client.pull(values)
            self.assertEqual(client.push(MODEL.zeros()).outcome, "applied")

    def train(self, daemons, rank, codec, pull_codec, faults):
        try:
            client, values = self.joined(daemons, rank, codec=codec, pull_codec=pull_codec), MODEL.zeros()
            for _ in range(PUSHES):
                client.pull(values)
                self.assertEqual(client.push(downhill(rank)).outcome, "applied")
            self.flush_residuals(client, values)
            client.leave()
        except Exception as fault:  # pylint: disable=broad-exception-caught
            faults.append(fault)

    def test_all_that_was_pushed_arrives(self):
        whole = -PUSHES * sum(downhill(rank) for rank in range(RANKS))
        for number, (policy, codec) in enumerate(itertools.product(RULES, ("topk:fraction=0.5", "int8"))):
            with self.subTest(policy=policy, codec=codec):
                daemons, faults = self.several(f"{number}", **RULES[policy]), []
                threads = [threading.Thread(target=self.train, args=(daemons, rank, codec, "bf16", faults)) for rank in range(RANKS)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual(faults, [])
                for daemon in daemons:
                    self.assertEqual({shard["version"] for shard in daemon.status()["shards"]},
                                     {(PUSHES + 3) * (RANKS if policy == "locked" else 1)})
                left = np.abs(self.read(daemons) - whole).max()
                # A push without feedback is wrong by as much as this, each time to the same side.
                step = np.abs(downhill(1)).max() / 127
                self.assertLessEqual(left, step / 100 if codec == "int8" else 0)

    def test_a_part_that_one_daemon_has_dropped_comes_again_and_the_others_do_not(self):
        cut = self.cut()
        for late in range(2):  # the daemon whose round closes before the slow trainer's push
            daemons = self.several(f"late{late}", policy="sync", policy__backup_trainers=1, policy__round_timeout_ms=600_000,
                                   optimizer='{"type":"sgd","lr":1.0}')
            quick, slow = self.joined(daemons, 0), self.joined(daemons, 1, codec="topk:fraction=0.5")
            ones, values = -np.ones(MODEL.size, np.float32), MODEL.zeros()
            part = slice(0, cut) if late == 0 else slice(cut, MODEL.size)
            quick.pull(values)
            slow.pull(values)
            push = quick.partial_push(ones)
            push.ready(part.start, part.stop - part.start)
            daemons[late].until_status("its round is closed", lambda status: {shard["version"] for shard in status["shards"]} == {1})
            self.assertEqual(slow.push(downhill(1)).outcome, "late")
            self.flush_residuals(slow, values)
            expected = -downhill(1)
            expected[part] += 1
            np.testing.assert_array_equal(self.read(daemons), expected)
            quick.close()

    def cut(self):
        """Start of the second daemon's part."""
        daemons = self.several("cut", **RULES["locked"])
        self.joined(daemons, 0)
        return daemons[0].status()["model"]["parameters"]

    def test_a_pull_is_rounded_and_the_model_is_not(self):
        daemons = self.several("pulls", **RULES["locked"])
        client = self.joined(daemons, 0, codec="topk:fraction=0.5", pull_codec="int8")
        values = MODEL.zeros()
        for step in range(1, 4):
            client.push(downhill(0))
            self.flush_residuals(client, values)
            np.testing.assert_array_equal(self.read(daemons), -step * downhill(0))
            client.pull(values)
            off = np.abs(values + step * downhill(0))
            self.assertGreater(off.max(), 0)
            self.assertLessEqual(off.max(), np.abs(step * downhill(0)).max() / 127)


if __name__ == "__main__":
    processes.main()
