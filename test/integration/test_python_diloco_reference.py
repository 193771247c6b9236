"""Four learners of psd.torch.DiLoCo reach the loss of a reference computed by PyTorch alone: in rounds, in fragments
whose results are late and blended in, and without rounds. PSD_REFERENCE_PERIOD sets a longer period (50, for example)."""

import os
import sys

import processes
import torch

sys.dont_write_bytecode = True
sys.path.insert(0, str(processes.REPO / "test" / "bench"))
import torch_diloco

PERIOD = int(os.environ.get("PSD_REFERENCE_PERIOD", "20"))


class Reference(processes.ProcessTest):
    def setUp(self):
        super().setUp()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self.addCleanup(torch.set_num_threads, threads)

    def assert_comes_to_the_loss(self, kind):
        policy = torch_diloco.policy_of(kind, PERIOD)
        daemon = self.daemon(policy=policy.pop("type"), optimizer=torch_diloco.optimizer_of(kind), listen=(self.unix_address(),),
                             **{f"policy__{key}": value for key, value in policy.items()})
        task = torch_diloco.Task(torch_diloco.written_text(), seed=1)
        found = torch_diloco.losses(kind, daemon.address, task, PERIOD)
        print(f"{kind}, period {PERIOD}: {found}")
        self.assertLess(abs(found["psd"] - found["torch"]), 0.001)
        self.assertLess(found["torch"], 0.6 * found["untrained"], "it learns")
        counters = daemon.status()["counters"]
        self.assertEqual((counters["late_pushes"], counters["left_out"]), (0, 0))

    def test_in_rounds(self):
        self.assert_comes_to_the_loss("rounds")

    def test_in_fragments(self):
        self.assert_comes_to_the_loss("fragments")

    def test_without_rounds(self):
        self.assert_comes_to_the_loss("arrivals")


if __name__ == "__main__":
    processes.main()
