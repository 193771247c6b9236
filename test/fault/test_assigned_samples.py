"""Samples that the daemon assigns to psd-trainers whose connections break."""

import collections
import os

import processes

SEED = int(os.environ.get("FAULT_PROCESS_SEED", "1"))
FAULT_PROXY = os.environ["FAULT_PROXY_BIN"]


class AssignedSamples(processes.ProcessTest):
    def test_each_is_trained_once_though_a_broken_connection_ends_the_session(self):
        epochs, samples = 40, 400
        for policy, inflight in (("sync", 1), ("locked", 4)):
            with self.subTest(policy):
                saved = self.folder / f"saved-{policy}"
                daemon = self.daemon(listen=(self.unix_address(f"{policy}.sock"),), policy=policy, shards=1,
                                     membership={"lease_ms": 60_000, "grace_ms": 0},
                                     durability={"type": "log", "path": str(saved), "every_seconds": 0, "every_bytes": 0})
                proxy = processes.Process(self.folder, f"proxy-{policy}", [FAULT_PROXY, daemon.address, SEED, 100])
                self.processes.append(proxy)
                address = processes.until("the proxy's address", lambda: proxy.out.strip())
                trainers = [self.start_trainer("train", "--server", address, "--rank", rank, "--world-size", 2, "--model", "mlp",
                                               "--data", f"synthetic:{samples}", "--threads", 1, "--device", "cpu", "--epochs",
                                               epochs, "--batch-size", 16, "--data-plan", "dynamic", "--inflight", inflight,
                                               "--transport", "rpc") for rank in range(2)]
                for trainer in trainers:
                    self.assert_ends(trainer)
                self.assertGreater(daemon.status()["trainers_lost"], 0, "no connection broke")
                daemon.kill()
                every = collections.Counter((epoch, place) for epoch in range(epochs) for place in range(samples))
                self.assertEqual(processes.trained_samples(saved), {0: every})


if __name__ == "__main__":
    processes.main()
