"""psd-executor on a CUDA device, as real processes: results equal the CPU's, and crashes are handled as on the CPU."""

import functools
import json
import math
import os
import re
import subprocess
import sys

import processes
from test_executor import EXECUTOR, POINTS, ExecutorTest
from test_executor_tables import OWN

# "cpu" to try the test itself on a machine without a GPU.
DEVICE = os.environ.get("PSD_TEST_EXECUTOR_DEVICE", "cuda:0")
OTHER_DEVICE = "cuda:1"
ON_CUDA = DEVICE != "cpu"
STEPS = 12
# Tolerance of losses after a few steps, between a GPU's sums and the CPU's.
TOLERANCE = 1e-3
# LibTorch's convolutions on a GPU round their factors to 10 bits.
CONVOLUTION_TOLERANCE = 2e-2

# Ids without a declared bound, of a table of 10 rows.
IDS = """from typing import Dict

import torch
from torch import Tensor, nn


class Ids(nn.Module):
    columns = {"id": "i64", "label": "i64 below 2"}
    inputs = ["id"]

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(10, 2)

    @torch.jit.export
    def outputs(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        return {"logits": self.rows(batch["id"])}

    def forward(self, batch: Dict[str, Tensor]) -> Dict[str, Tensor]:
        return {"loss": nn.functional.cross_entropy(self.outputs(batch)["logits"], batch["label"])}
"""
# Adds a tensor that stays on the CPU wherever the module computes.
HOST = POINTS.replace("        return {\"logits\": self.net(", "        return {\"logits\": torch.zeros(1, device=\"cpu\").expand(2) + self.net(")


@functools.cache
def checked(*arguments):
    """Runs psd-executor check."""
    return subprocess.run([EXECUTOR, "check", "--module", "mlp", *arguments], capture_output=True, text=True, timeout=processes.WAIT_S,
                          check=False)


def required():
    return os.environ.get("PSD_REQUIRE_CUDA", "") not in ("", "0")


def say(text):
    print(text, file=sys.stderr, flush=True)


class CudaTest(ExecutorTest):
    def setUp(self):
        check = checked("--device", DEVICE)
        if check.returncode != 0:
            if required():
                self.fail(f"psd-executor check --device {DEVICE}: {check.returncode}: {check.stderr}")
            self.skipTest(check.stderr.strip())

    def daemon_on(self, device, **settings):
        """A daemon at a Unix socket; skips the test if the device cannot hold its parameters."""
        try:
            return self.unix_daemon(device=device, **settings)
        except processes.NotReady as error:
            if required() or device == "cpu":
                raise
            return self.skipTest(error.process.err.strip())

    def export(self, name, source, class_name):
        self.write(f"{name}.py", source)
        subprocess.run([processes.REPO / "scripts" / "export_model", f"{name}.py:{class_name}"], cwd=self.folder, check=True,
                       stdout=subprocess.DEVNULL, timeout=processes.WAIT_S)
        return self.folder / f"{name}.pt"

    def end(self, *running):
        for process in running:
            process.kill()
        for name in ("psd.sock", "executor.sock"):
            (self.folder / name).unlink(missing_ok=True)

    def losses(self, daemon_device="cpu", trainers=1, steps=STEPS, data="synthetic:512", module="mlp", daemon_settings=None, **placed):
        """The losses of each rank's steps, which are in sequence whatever device computes them."""
        rounds = {"policy": "sync", "policy__start_trainers": trainers} if trainers > 1 else {"policy": "locked"}
        daemon = self.daemon_on(daemon_device, **rounds, **(daemon_settings or {}))
        executor = self.executor(daemon, module=module, **placed)
        files = [self.folder / f"{executor.name}.{rank}.jsonl" for rank in range(trainers)]
        running = [self.remote(rank, trainers, steps=steps, data=data, more=["--seed", 1, "--metrics", files[rank]])
                   for rank in range(trainers)]
        for trainer in running:
            self.assert_ends(trainer)
        self.assertTrue(executor.runs(), executor.err)
        self.end(executor, daemon)
        losses = [[json.loads(line)["loss"] for line in path.read_text(encoding="utf-8").splitlines()] for path in files]
        for of_rank in losses:
            self.assertEqual(len(of_rank), steps)
            self.assertTrue(all(math.isfinite(loss) for loss in of_rank), of_rank)
        return losses

    def assert_near(self, what, some, others, tolerance=TOLERANCE):
        most = 0.0
        for rank, (of_rank, expected) in enumerate(zip(some, others, strict=True)):
            for step, (loss, right) in enumerate(zip(of_rank, expected, strict=True)):
                most = max(most, abs(loss - right) / abs(right))
                self.assertLessEqual(abs(loss - right), tolerance * abs(right),
                                     f"{what}: rank {rank}, step {step + 1}: {of_rank} against {expected} on the CPU")
        say(f"{what}: losses differ from those on the CPU by {most:.2g} at most")


class Losses(CudaTest):
    PLACED = ({"device": DEVICE}, {"device": DEVICE, "stages": ["fc2"], "micro_batches": 3, "workers": 1},
              {"device": "cpu", "stages": [{"layer": "fc2", "device": DEVICE}]},
              {"device": DEVICE, "stages": [{"layer": "fc2", "device": "cpu"}]})

    def compare(self, trainers):
        expected = self.losses(trainers=trainers, device="cpu")
        self.assertLess(expected[0][-1], expected[0][0])
        for daemon_device, places in (("cpu", self.PLACED), (DEVICE, (self.PLACED[0], self.PLACED[2]))):
            for placed in places:
                what = f"daemon on {daemon_device}, {trainers} trainer(s), {json.dumps(placed)}"
                with self.subTest(what):
                    self.assert_near(what, self.losses(daemon_device, trainers, **placed), expected)

    def test_of_one_trainer(self):
        self.compare(1)

    def test_of_two_trainers(self):
        self.compare(2)

    def test_of_a_stage_on_each_of_two_devices(self):
        check = checked("--device", OTHER_DEVICE)
        if check.returncode != 0:
            self.skipTest(check.stderr.strip())
        placed = {"device": DEVICE, "stages": [{"layer": "fc2", "device": OTHER_DEVICE}]}
        self.assert_near(json.dumps(placed), self.losses(**placed), self.losses(device="cpu"))

    def test_of_convolutions_in_stages(self):
        module = "resnet20:width=4"
        expected = self.losses(module=module, steps=3, device="cpu")
        for placed in ({"device": DEVICE},
                       {"device": DEVICE, "stages": ["block0", {"layer": "block5", "device": "cpu"}, {"layer": "fc", "device": DEVICE}]}):
            with self.subTest(placed):
                self.assert_near(json.dumps(placed), self.losses(module=module, steps=3, **placed), expected, CONVOLUTION_TOLERANCE)

    def test_of_models_with_tables(self):
        sgd = {"optimizer": '{"type":"sgd","lr":0.4}', "groups": '[{"match":"mean","optimizer":{"type":"sgd","lr":0.02}}]'}
        for module, data, settings in (("mf:dim=6,decay=0.002", "ratings:samples=2000,users=60,items=40,noise=0.3", sgd),
                                       ("dlrm:dim=4,hidden=8", "clicks:samples=2000", {})):
            expected = self.losses(module=module, data=data, daemon_settings=settings, device="cpu")
            for daemon_device in ("cpu", DEVICE):
                what = f"{module}, daemon on {daemon_device}"
                with self.subTest(what):
                    self.assert_near(what, self.losses(daemon_device, module=module, data=data, daemon_settings=settings, device=DEVICE),
                                     expected)

    def test_of_modules_of_ones_own(self):
        rows = [f"{x / 20},{y / 20},{int(x + y > 20)}" for x in range(20) for y in range(20)]
        points = self.write("points.csv", "\n".join(["x,y,label", *rows]) + "\n")
        rows = [f"{user},{item},{3 + (user % 3) - (item % 2) + 0.5}" for user in range(60) for item in range(10)]
        ratings = self.write("ratings.csv", "\n".join(["user,item,rating", *rows]) + "\n")
        for module, data in ((self.export("points", POINTS, "Points"), points), (self.export("ratings", OWN, "Ratings"), ratings)):
            with self.subTest(module.name):
                self.assert_near(module.name, self.losses(module=module, data=data, device=DEVICE),
                                 self.losses(module=module, data=data, device="cpu"))

    def test_of_dropout_they_fall(self):
        losses = self.losses(module="mnist_cnn", steps=40, daemon_settings={"optimizer": '{"type":"sgd","lr":0.1}'}, device=DEVICE,
                             stages=["fc1"])[0]
        say(f"mnist_cnn: {losses[0]:.3f} to {losses[-1]:.3f}")
        self.assertLess(sum(losses[-5:]), 0.7 * sum(losses[:5]), losses)


class Device(CudaTest):
    def test_status_says_where_the_stages_are(self):
        executor = self.executor(self.unix_daemon(), device=DEVICE, stages=[{"layer": "fc2", "device": "cpu"}])
        self.assertEqual(self.executor_status()["devices"], [DEVICE, "cpu"])
        self.assertIn(f" device {DEVICE},cpu,", executor.err)

    def test_auto_is_the_first_device_unless_weights_are_live(self):
        if not ON_CUDA:
            self.skipTest("auto is the GPU where there is one")
        for weights, devices in (("stashed", [DEVICE]), ("live", ["cpu"])):
            with self.subTest(weights=weights):
                daemon = self.unix_daemon()
                executor = self.executor(daemon, device="auto", weights=weights)
                self.assertEqual(self.executor_status()["devices"], devices)
                self.assert_ends(self.remote(steps=5))
                self.end(executor, daemon)

    def test_a_module_that_mixes_devices_fails_its_calls_and_nothing_else(self):
        if not ON_CUDA:
            self.skipTest("on the CPU nothing is mixed")
        self.assertNotEqual(HOST, POINTS)
        data = self.write("points.csv", "x,y,label\n" + "0.5,0.25,1\n" * 40)
        executor = self.executor(self.unix_daemon(), module=self.export("host", HOST, "Points"), device=DEVICE)
        say(self.assert_fails(self.remote(data=data), "outputs failed", "device"))
        self.assertTrue(executor.runs(), executor.err)


class Death(CudaTest):
    def test_an_executor_that_is_killed_loses_nothing_and_nothing_is_applied_twice(self):
        for daemon_device, placed in (("cpu", {"device": DEVICE}),
                                      (DEVICE, {"device": "cpu", "stages": [{"layer": "fc2", "device": DEVICE}]})):
            with self.subTest(placed=placed, daemon=daemon_device):
                self.kill_in_the_middle(daemon_device, placed)

    def kill_in_the_middle(self, daemon_device, placed, steps=120):
        saved = self.folder / f"saved-{len(self.processes)}"
        daemon = self.daemon_on(daemon_device, policy="locked", durability__type="log", durability__path=str(saved))
        executor = self.executor(daemon, **placed)
        trainers = [self.remote(rank, 2, steps=steps) for rank in range(2)]
        self.until_steps(daemon, 10)
        struck = {each["rank"] for each in daemon.status()["trainers"] if each["step"] > 0}
        executor.kill()
        self.assertTrue(daemon.status()["state"])
        executor = self.executor(daemon, **placed)
        for trainer in trainers:
            self.assert_ends(trainer)
        for rank in struck:
            self.assertIn("back after", trainers[rank].err)
        self.assertGreater(self.accuracy(trainers[0]), 80)
        executor.kill()
        self.assert_stops(daemon)
        counts = self.pushes_of(saved)
        self.assertTrue(counts)
        for shard, pushes in counts.items():
            self.assertEqual(set(pushes.values()), {1}, f"a step was applied twice in shard {shard}")
            self.assertLessEqual(len(pushes), 2 * steps)
            # A step of which one part had arrived when the executor died may count as late.
            self.assertGreaterEqual(len(pushes), 2 * steps - 2)
        self.end()

    def test_an_executor_whose_device_has_failed_ends_and_the_next_one_serves(self):
        if not ON_CUDA:
            self.skipTest("on the CPU an id that is out of range is an exception")
        module = self.export("ids", IDS, "Ids")
        wrong = self.write("wrong.csv", "id,label\n" + "1,0\n99,1\n" * 40)
        right = self.write("right.csv", "id,label\n" + "1,0\n9,1\n" * 40)
        daemon = self.unix_daemon()
        executor = self.executor(daemon, module=module, device=DEVICE)
        trainer = self.remote(data=wrong, more=["--retry-timeout", 2])
        self.assertEqual(executor.wait(), 1, executor.report())
        self.assertTrue(re.search(r" error .*CUDA error.*can compute nothing any more", executor.err), executor.report())
        say(next(line for line in executor.err.splitlines() if "can compute nothing" in line))
        self.assertNotEqual(trainer.wait(), 0)
        self.processes.remove(executor)  # CUDA itself prints the failed assertion
        (self.folder / "executor.sock").unlink(missing_ok=True)
        self.executor(daemon, module=module, device=DEVICE)
        self.assert_ends(self.remote(data=right, steps=5))


if __name__ == "__main__":
    processes.main()
