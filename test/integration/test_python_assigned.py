"""psd.torch.AssignedSampler: each sample of each epoch is in one gradient, even if trainers join, stop and die."""

import collections
import sys

import processes
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import psd.torch

SAMPLES, EPOCHS = 500, 6

# Arguments: the address, a batch size. Prints "waits" with the samples of its 20th step, and waits until the file "go"
# exists.
TRAINER = f"""
import os, sys, time, torch, psd.torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
torch.set_num_threads(1)
x = torch.randn({SAMPLES}, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(8, 1)
with psd.torch.Optimizer(model, sys.argv[1]) as optimizer:
    sampler = psd.torch.AssignedSampler(optimizer, data, int(sys.argv[2]), {EPOCHS}, seed=3)
    for inputs, labels in DataLoader(data, batch_sampler=sampler):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), labels).backward()
        if optimizer.client.step == 20:
            print("waits", flush=True)
            while not os.path.exists("go"):
                time.sleep(0.01)
        optimizer.step()
    print("finished", sampler.finished, "error", (model.weight - 1).abs().max().item(), flush=True)
"""


class PythonDealt(processes.ProcessTest):
    def durable(self, **settings):
        return self.daemon(policy="locked", optimizer='{"type":"sgd","lr":0.02}', membership__grace_ms=0,
                           durability__type="log", durability__path=str(self.folder / "saved"), **settings)

    def start(self, daemon, batch=4):
        script = self.write("trainer.py", TRAINER)
        process = processes.Process(self.folder, self._name("python"), [sys.executable, script, daemon.address, batch])
        self.processes.append(process)
        return process

    def assert_each_sample_once(self, epochs=EPOCHS, samples=SAMPLES):
        trained = processes.trained_samples(self.folder / "saved")
        wanted = collections.Counter({(epoch, place): 1 for epoch in range(epochs) for place in range(samples)})
        self.assertTrue(trained)
        for shard, counted in trained.items():
            self.assertEqual(counted, wanted, f"shard {shard}")

    def test_each_sample_is_trained_once_though_a_trainer_is_killed_and_another_comes(self):
        daemon = self.durable(world_size={"min": 1, "max": 3})
        first, second = self.start(daemon), self.start(daemon)
        for each in (first, second):
            processes.until("both have samples", lambda each=each: "waits" in each.out)
        second.kill()
        third = self.start(daemon, batch=7)
        processes.until("the third has samples", lambda: "waits" in third.out)
        self.write("go", "")
        for each in (first, third):
            self.assertEqual(each.wait(), 0, each.err)
            self.assertIn("finished True", each.out)
        self.assertIn(f"all epochs are done: {SAMPLES * EPOCHS} samples", daemon.err)
        self.assertLess(float(first.out.split()[-1]), 0.05)
        self.assert_stops(daemon)
        self.assert_each_sample_once()

    def optimizer(self, daemon, model, rank=0, world_size=1, **options):
        optimizer = psd.torch.Optimizer(model, daemon.address, rank=rank, world_size=world_size, **options)
        self.addCleanup(optimizer.client.close)
        return optimizer

    def train(self, optimizer, model, sampler, data, workers=0):
        """The indices by epoch, and the number of passes."""
        seen, passes = collections.defaultdict(list), 0
        loader = DataLoader(data, batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
        while not sampler.finished:
            passes += 1
            for inputs, numbers in loader:
                optimizer.zero_grad()
                model(inputs).mean().backward()
                seen[sampler.epoch] += numbers.tolist()
                optimizer.step()
        return seen, passes

    def data(self, samples=50):
        return TensorDataset(torch.randn(samples, 4), torch.arange(samples))

    def test_workers_may_fetch_batches_beforehand(self):
        daemon, model, data = self.durable(), nn.Linear(4, 1), self.data()
        optimizer = self.optimizer(daemon, model)
        sampler = psd.torch.AssignedSampler(optimizer, data, batch_size=8, epochs=3, ahead=4)
        seen, passes = self.train(optimizer, model, sampler, data, workers=2)
        self.assertEqual(passes, 2)  # the second finds that all is done
        self.assertEqual([sorted(seen[epoch]) for epoch in range(3)], [list(range(50))] * 3)
        self.assertNotEqual(seen[0], seen[1])
        self.assertNotEqual(seen[0], list(range(50)), "they are shuffled")
        optimizer.close()
        self.assert_stops(daemon)
        self.assert_each_sample_once(3, 50)

    def test_with_overlap_and_in_order(self):
        daemon, model, data = self.durable(), nn.Linear(4, 1), self.data()
        optimizer = self.optimizer(daemon, model, overlap=True)
        sampler = psd.torch.AssignedSampler(optimizer, len(data), 8, 2, shuffle=False)
        seen, passes = self.train(optimizer, model, sampler, data)
        self.assertEqual((seen, passes), ({epoch: list(range(50)) for epoch in range(2)}, 1))
        optimizer.close()
        self.assert_stops(daemon)
        self.assert_each_sample_once(2, 50)

    def test_a_batch_that_the_scaler_skipped_comes_again(self):
        for clears_first in (True, False):
            with self.subTest(clears_first=clears_first):
                daemon, model, data = self.daemon(policy="locked"), nn.Linear(4, 1), self.data(12)
                optimizer = self.optimizer(daemon, model)
                sampler = psd.torch.AssignedSampler(optimizer, data, 4, 1, shuffle=False)
                scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
                seen = []
                for number, (inputs, places) in enumerate(DataLoader(data, batch_sampler=sampler)):
                    if clears_first:
                        optimizer.zero_grad()
                    loss = model(inputs).mean() * (1e30 if number == 1 else 1)
                    scaler.scale(loss).backward()
                    seen.append(places.tolist())
                    scaler.step(optimizer)
                    scaler.update()
                    if not clears_first:
                        optimizer.zero_grad()
                self.assertEqual(seen, [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7], [8, 9, 10, 11]])

    def test_an_abandoned_pass_resumes(self):
        daemon, model, data = self.daemon(policy="locked"), nn.Linear(4, 1), self.data(12)
        optimizer = self.optimizer(daemon, model)
        sampler = psd.torch.AssignedSampler(optimizer, data, 4, 1, shuffle=False, ahead=2)
        self.assertEqual(next(iter(sampler)), [0, 1, 2, 3])
        self.assertEqual(self.train(optimizer, model, sampler, data)[0][0], list(range(12)))

    def test_what_cannot_be_is_refused(self):
        daemon, model, data = self.daemon(policy="locked"), nn.Linear(4, 1), self.data(12)
        optimizer = self.optimizer(daemon, model, 0, 2)
        for arguments, message in (((data, 0, 1), "batch_size of at least 1, not 0"), ((0, 1, 1), "data of at least 1, not 0")):
            with self.assertRaisesRegex(psd.InvalidArgument, message):
                psd.torch.AssignedSampler(optimizer, *arguments)
        sampler = psd.torch.AssignedSampler(optimizer, data, 4, 1)
        with self.assertRaises(TypeError):  # by which frameworks find that the number of batches is unknown
            len(DataLoader(data, batch_sampler=sampler))
        batches = iter(sampler)
        next(batches)
        model(torch.randn(1, 4)).mean().backward()
        with self.assertRaisesRegex(psd.Error, r"the previous batch had no step\(\)"):
            next(batches)
        with self.assertRaisesRegex(psd.InvalidArgument, "epochs"):
            next(iter(psd.torch.AssignedSampler(self.optimizer(daemon, nn.Linear(4, 1), 1, 2), data, 4, 99)))


if __name__ == "__main__":
    processes.main()
