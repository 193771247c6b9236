"""psd-trainer under torchrun, which sets RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR."""

import os
import pathlib
import subprocess
import unittest

import processes

# In the folder of the python that has torch.
TORCHRUN = pathlib.Path(os.environ["PSD_PYTHON"]).parent / "torchrun"


def why_not():
    """The reason why torchrun cannot run here; empty if it can. A lean torch lacks Python packages that torchrun needs."""
    if not TORCHRUN.exists():
        return f"{TORCHRUN} is not there"
    trial = subprocess.run([TORCHRUN, "--help"], capture_output=True, text=True, timeout=processes.WAIT_S, check=False)
    return "" if trial.returncode == 0 else f"{TORCHRUN}: {trial.stderr.strip().splitlines()[-1]}"


WHY_NOT = why_not()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Torchrun(processes.ProcessTest):
    def launch(self, trainers, *arguments, environment=None):
        launcher = processes.Process(self.folder, "torchrun",
                                     [TORCHRUN, "--no-python", "--standalone", "--nproc-per-node", trainers, processes.TRAINER,
                                      *arguments], environment)
        self.processes.append(launcher)
        return launcher

    def train_arguments(self, *more):
        return ("train", "--model", "mlp", "--data", "synthetic:128", "--device", "cpu", *more)

    def test_two_trainers(self):
        daemon = self.daemon(exit_when_done=True, policy="locked")
        self.assert_ends(self.launch(2, *self.train_arguments("--server", daemon.address, "--steps", 5)))
        self.assert_ends(daemon)
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 joined", daemon.err)
            self.assertIn(f"rank {rank} left after 5 steps", daemon.err)

    def test_two_trainers_of_two_daemons(self):
        addresses = [self.unix_address(f"{index}.sock") for index in range(2)]
        daemons = [self.daemon(listen=(addresses[index],), daemons=addresses, index=index, exit_when_done=True, policy="locked") for index in range(2)]
        self.assert_ends(self.launch(2, *self.train_arguments("--steps", 5), environment={"PSD_SERVER": addresses[1]}))
        for daemon in daemons:
            self.assert_ends(daemon)
            for rank in range(2):
                self.assertIn(f"rank {rank} of 2 joined", daemon.err)
                self.assertIn(f"rank {rank} left after 5 steps", daemon.err)

    def test_the_server_in_the_environment_and_a_flag_that_wins(self):
        daemon = self.daemon(listen=(self.unix_address(),))
        launcher = self.launch(1, *self.train_arguments("--steps", 2, "--rank", 3, "--world-size", 4),
                               environment={"PSD_SERVER": daemon.address})
        self.assert_ends(launcher)
        self.assertIn("rank 3 of 4 joined", daemon.err)

    def test_a_failure_is_torchruns_failure(self):
        launcher = self.launch(2, *self.train_arguments("--server", self.unix_address("none.sock"), "--connect-timeout", 0.2))
        self.assertGreater(launcher.wait(), 0)
        self.assertIn("no psd daemon answered", launcher.err)


if __name__ == "__main__":
    processes.main()
