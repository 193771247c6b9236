"""Several daemons that hold different parts of a push, of the initial values, or of the updates after a checkpoint."""

import signal
import subprocess
import sys

import numpy as np
import processes

import psd

COUNTING = {"policy": "locked", "optimizer": '{"type":"sgd","lr":1.0}', "membership__grace_ms": 0}
SAMPLES = 48  # tensors start at multiples of 16 values
# Of two daemons the first has `a`, and the second the others; of three each has one.
ASSIGNED = psd.Model("dealt", {"a": (SAMPLES, 2), "b": (SAMPLES,), "c": (SAMPLES,)})
THREE = psd.Model("three", {"a": (96,), "b": (96,), "c": (96,)})

# Programs of trainers that are killed. Each reports its progress in a line, and waits.
BEGINNING = """
import os, time
import psd
model = psd.Model({name!r}, {tensors!r})
client = psd.Client({address!r}, transport="rpc")

def done(what):
    print(what, flush=True)
    time.sleep(3600)
"""
BRINGS_VALUES = BEGINNING + """
print("connected", flush=True)
while not os.path.exists("continue"):
    time.sleep(0.01)
client.join(model, model.zeros(), 0, 1)
done("joined")
"""
PUSHES_IN_PART = BEGINNING + """
client.join(model, model.zeros(), 0, 1)
assigned = client.take_samples(5, {samples}, 1)
gradient = model.zeros()
for view in model.views(gradient).values():
    view[assigned.begin:assigned.begin + assigned.count] = -1
push = client.partial_push(gradient, assigned.count)
push.ready({begin}, {count})
done(f"pushed the samples from {{assigned.begin}} on")
"""


class Trainer(processes.Process):
    """A trainer in Python."""

    def __init__(self, test, script, model, daemon, **words):
        text = script.format(name=model.name, tensors=model.shapes, address=daemon.address, **words)
        super().__init__(test.folder, f"trainer-{len(test.processes)}", [sys.executable, "-c", text])
        test.processes.append(self)

    def until(self, words):
        processes.until(f"{self.name} says: {words}", lambda: words in self.out or not self.runs())
        assert words in self.out, self.err


class PythonHalf(processes.ProcessTest):
    def several(self, count, settings=lambda index: COUNTING):
        self.addresses = [self.unix_address(f"{index}.sock") for index in range(count)]
        return [self.one(index, **settings(index)) for index in range(count)]

    def one(self, index, **settings):
        return self.daemon(listen=(self.addresses[index],), daemons=self.addresses, index=index, **settings)

    def joined(self, daemon, model):
        client = psd.Client(daemon.address)
        self.addCleanup(client.close)
        client.join(model, model.zeros(), 0, 1)
        return client

    def pulled(self, client, model):
        values = model.zeros()
        client.pull(values)
        return {name: view.copy() for name, view in model.views(values).items()}

    def until_lost(self, daemons):
        for daemon in daemons:
            daemon.until_status("the trainer is lost", lambda status: status["trainers_lost"] > 0 and status["trainers"] == [])

    def test_a_daemon_goes_back_to_its_checkpoint_and_the_others_do_not(self):
        def settings(index):
            return {**COUNTING, "durability": {"type": "checkpoint", "path": str(self.folder / f"saved-{index}"), "every_seconds": 0}}

        daemons = self.several(3, settings)
        client = self.joined(daemons[0], THREE)
        down, expected = -np.ones(THREE.size, np.float32), np.zeros(3)

        def push(count):
            for _ in range(count):
                client.push(down)
            expected[:] += count
            for (name, values), count in zip(self.pulled(client, THREE).items(), expected):
                np.testing.assert_array_equal(values, np.full(96, count, np.float32), name)

        for index in (1, 0, 2):  # a member, the lead, and another member
            push(10)
            saved = subprocess.run([processes.PSD, "checkpoint", "--server", daemons[2].address], capture_output=True, text=True,
                                   timeout=processes.WAIT_S, check=False)
            self.assertEqual(saved.returncode, 0, saved.stderr)
            push(5)
            daemons[index].kill()
            daemons[index] = self.one(index, **settings(index))
            self.assertEqual({shard["version"] for shard in daemons[index].status()["shards"]}, {int(expected[index]) - 5})
            expected[index] -= 5
            push(3)

    def test_the_initializer_dies_when_some_daemons_are_initialized(self):
        daemons = self.several(3)
        dies = Trainer(self, BRINGS_VALUES, THREE, daemons[0])
        dies.until("connected")
        daemons[2].signal(signal.SIGSTOP)
        self.write("continue", "")
        daemons[1].until_status("it has values", lambda status: status["shards"])
        dies.kill()
        daemons[2].signal(signal.SIGCONT)
        self.until_lost(daemons[1:2])
        self.assertEqual(daemons[0].status()["shards"], [])
        for _ in range(2):  # the next one does not mix its own values with them either
            client = psd.Client(daemons[0].address)
            self.addCleanup(client.close)
            with self.assertRaisesRegex(psd.ModelMismatch, "daemon 1 of 3, unix://.* has values, and the lead has none"):
                client.join(THREE, np.ones(THREE.size, np.float32), 0, 1)
            client.close()
        for daemon in daemons:
            daemon.kill()
        again = self.joined([self.one(index, **COUNTING) for index in range(3)][0], THREE)
        again.push(-np.ones(THREE.size, np.float32))
        np.testing.assert_array_equal(np.concatenate(list(self.pulled(again, THREE).values())), np.ones(THREE.size, np.float32))

    def test_a_trainer_dies_in_the_midst_of_a_push(self):
        """Samples whose gradient only the lead has are done; those that only another daemon has are assigned again."""
        daemons = self.several(2)
        cut = 2 * SAMPLES
        self.assertEqual(ASSIGNED.size, 2 * cut)
        versions = [0, 0]
        for index, first in ((0, 0), (1, 5), (1, 5), (0, 5)):
            dies = Trainer(self, PUSHES_IN_PART, ASSIGNED, daemons[1], samples=SAMPLES, begin=cut * index, count=cut)
            dies.until(f"pushed the samples from {first} on")
            versions[index] += 1
            daemons[index].until_status("it has its part", lambda status, index=index: {
                shard["version"] for shard in status["shards"]} == {versions[index]})
            dies.kill()
            self.until_lost(daemons)
            for daemon, version in zip(daemons, versions):
                self.assertEqual({shard["version"] for shard in daemon.status()["shards"]}, {version})

        client, down = self.joined(daemons[0], ASSIGNED), ASSIGNED.zeros()
        while (assigned := client.take_samples(5, SAMPLES, 1)).what == "range":
            down[:] = 0
            for view in ASSIGNED.views(down).values():
                view[assigned.begin:assigned.begin + assigned.count] = -1
            client.push(down, assigned.count)
        values = self.pulled(client, ASSIGNED)
        np.testing.assert_array_equal(values["a"], np.ones((SAMPLES, 2), np.float32))
        # 0 … 4 and then 5 … 9 went to the lead alone, the latter twice to the other one alone.
        others = np.concatenate([np.zeros(5), np.full(5, 2), np.ones(SAMPLES - 10)]).astype(np.float32)
        for name in "bc":
            np.testing.assert_array_equal(values[name], others)


if __name__ == "__main__":
    processes.main()
