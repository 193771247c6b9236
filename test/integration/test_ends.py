"""The end of a daemon or of a trainer in the middle of the work: by request, or by kill -9."""

import fcntl
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import processes


class OrderlyEnd(processes.ProcessTest):
    def train_until(self, end, **settings):
        """Two working trainers, then end(daemon); returns the daemon after the checks of every orderly end."""
        path = self.folder / "model.safetensors"
        daemon = self.daemon(save=str(path), **settings)
        trainers = [self.endless_trainer(daemon, 0, 2), self.endless_trainer(daemon, 1, 2)]
        end(daemon)
        self.assert_ends(daemon)
        for trainer in trainers:
            self.assert_fails(trainer, "shutting down")
        self.assertIn("saved the model", daemon.err)
        self.assertEqual(self.daemon(model__file=str(path)).status()["state"], "serving")
        return daemon

    def test_sigterm(self):
        for policy in ("hogwild", "locked"):
            with self.subTest(policy=policy):
                daemon = self.train_until(lambda daemon: daemon.signal(signal.SIGTERM), policy=policy)
                self.assertIn("stopping: SIGTERM", daemon.err)

    def test_sigint_and_unix_socket(self):
        daemon = self.train_until(lambda daemon: daemon.signal(signal.SIGINT), listen=(self.unix_address("ends.sock"),))
        self.assertIn("stopping: SIGINT", daemon.err)
        self.assertFalse((self.folder / "ends.sock").exists(), "the socket's file goes with the daemon")

    def test_psd_stop(self):
        def stop(daemon):
            done = self.start_psd("stop", "--discard", "--server", daemon.address)
            self.assert_ends(done)
            self.assertIn("has stopped", done.out)
            self.assertTrue((self.folder / "model.safetensors").exists(), "stop returns once the model is saved")

        self.assertIn(": psd stop", self.train_until(stop).err)

    def test_an_idle_daemon(self):
        path = self.folder / "model.safetensors"
        daemon = self.daemon(save=str(path))
        self.assert_stops(daemon)
        self.assertIn("no model was trained", daemon.err)
        self.assertFalse(path.exists())

    def test_a_second_signal_hurries(self):
        # A trainer that is stopped in the middle of its work keeps the daemon waiting for a day.
        daemon = self.daemon(limits__drain_ms=86_400_000)
        trainer = self.endless_trainer(daemon, more=("--retry-timeout", 0))
        trainer.signal(signal.SIGSTOP)
        daemon.signal(signal.SIGTERM)
        processes.until("the daemon is stopping", lambda: "stopping: SIGTERM" in daemon.err)
        self.assertTrue(daemon.runs())
        daemon.signal(signal.SIGTERM)
        self.assert_ends(daemon)
        trainer.signal(signal.SIGCONT)
        self.assertGreater(trainer.wait(), 0)

    def test_what_cannot_be_saved(self):
        folder = self.folder / "for a while"
        folder.mkdir()
        daemon = self.daemon(save=str(folder / "model"))
        self.assert_ends(self.train(daemon.address, steps=1))
        folder.rmdir()
        daemon.signal(signal.SIGTERM)
        self.assert_fails(daemon, "for a while/model")

    def test_a_trainer_that_is_interrupted_leaves(self):
        daemon = self.daemon()
        trainer = self.endless_trainer(daemon)
        trainer.signal(signal.SIGINT)
        self.assertGreater(trainer.wait(), 0)
        self.assertIn("stopped after", trainer.out)
        status = daemon.until_status("it has left", lambda status: not status["trainers"])
        self.assertEqual(status["trainers_lost"], 0)


    def test_a_signal_ends_the_wait_for_others(self):
        daemon = self.daemon(policy="sync", policy__start_trainers=2)
        trainer = self.train(daemon.address, 0, 2)
        daemon.until_status("its push waits", lambda status: [each["waits_for"] for each in status["trainers"]] == ["push"])
        processes.until("it says for what", lambda: "waiting for the answer to the push of step 1" in trainer.err)
        trainer.signal(signal.SIGTERM)
        self.assert_ends(trainer, 128 + signal.SIGTERM)
        self.assertIn("SIGTERM: stopping after this step", trainer.err)
        self.assertIn("stopped after 0 steps", trainer.out)
        status = daemon.until_status("it has left", lambda status: not status["trainers"])
        self.assertEqual(status["trainers_lost"], 0)


class UnreadLog(processes.ProcessTest):
    def test_the_daemon_saves_answers_and_ends(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        address = self.unix_address()
        durability = json.dumps({"type": "checkpoint", "path": "saved", "every_updates": 1})
        with subprocess.Popen([processes.PSD, "--listen", address, "--device", "cpu", "--set", f"durability={durability}"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=writer, cwd=self.folder) as daemon:
            os.close(writer)
            try:
                self.train(address, steps=10_000_000)
                self.until_checkpoints(address, 2 * self.lines_that_fit())
                self.assert_ends(self.start_psd("stop", "--server", address))
                self.assertEqual(daemon.wait(processes.WAIT_S), 0)
            finally:
                daemon.kill()

    def lines_that_fit(self):
        return 4096 // len("2026-11-27 13:34:42.189 info  checkpoint 'saved/checkpoint-0000000001'")

    def until_checkpoints(self, address, count):
        def taken():
            status = self.start_psd("status", "--json", "--server", address)
            return status.wait() == 0 and json.loads(status.out)["durability"]["checkpoints"] >= count

        processes.until(f"{count} checkpoints", taken, interval=0.2)


class ProcessOne(processes.ProcessTest):
    """As in a container, where the kernel has no default action for signals."""

    def start_as_one(self, *arguments):
        """Runs a program as process 1 of a namespace: returns unshare, and the program's process once it handles
        signals."""
        outer = self.start_program("unshare", "--pid", "--fork", "--kill-child", *arguments)

        def ready():
            self.assertTrue(outer.runs(), outer.err)
            for child in pathlib.Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split():
                caught = re.search("SigCgt:\\s*([0-9a-f]+)", pathlib.Path(f"/proc/{child}/status").read_text())
                if caught and int(caught[1], 16) & 1 << signal.SIGTERM - 1:
                    return int(child)
            return None

        return outer, processes.until("it handles signals", ready)

    def test_signals_end_what_waits_or_watches(self):
        why = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
        if why.returncode != 0:
            self.skipTest(f"this system does not permit process namespaces: {why.stderr.strip()}")
        daemon = self.daemon(listen=(self.unix_address(),))
        unused = self.unix_address("none")
        waiting = ("--model", "mlp", "--data", "synthetic:100", "--connect-timeout", 3600)
        for number, command in ((signal.SIGTERM, (processes.TRAINER, "train", "--server", unused, "--rank", 0, "--world-size", 1, *waiting)),
                                (signal.SIGINT, (processes.TRAINER, "eval", "--server", unused, "--every", 5, *waiting)),
                                (signal.SIGINT, (processes.PSD, "top", "--server", daemon.address)),
                                (signal.SIGTERM, (processes.PSD, "status", "--watch", "--server", daemon.address)),
                                (signal.SIGINT, (processes.PSD, "events", "--follow", "--server", daemon.address))):
            with self.subTest(command=command[:3], signal=number):
                outer, process = self.start_as_one(*command)
                os.kill(process, number)
                self.assert_ends(outer, 128 + number)

    def test_the_daemon_ends_in_order(self):
        if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("this system does not permit process namespaces")
        outer, process = self.start_as_one(processes.PSD, "--listen", self.unix_address(), "--device", "cpu")
        processes.until("it is ready", lambda: "ready: listening" in outer.err)
        os.kill(process, signal.SIGTERM)
        self.assert_ends(outer)
        self.assertIn("stopping: SIGTERM", outer.err)


class DuringPush(processes.ProcessTest):
    """Gradients of 16 MiB: a process is always killed in the middle of one."""

    def pushing_trainer(self, daemon, transport):
        trainer = self.start_trainer("bench", "push", "--server", daemon.address, "--size", "16M", "--transport", transport,
                                     "--seconds", 3600)
        status = daemon.until_status("it pushes", lambda status: any(each["step"] > 2 for each in status["trainers"]))
        self.assertEqual(status["ring_bytes"] > 0, transport == "auto" and daemon.address.startswith("unix:"))
        return trainer

    def on_every_way(self, check):
        for policy in ("hogwild", "locked"):
            for address, transport in (("tcp://127.0.0.1:0", "rpc"), (self.unix_address(f"{policy}.sock"), "rpc"),
                                       (self.unix_address(f"{policy}-ring.sock"), "auto")):
                with self.subTest(policy=policy, address=address, transport=transport):
                    check(self.daemon(policy=policy, listen=(address,), membership__grace_ms=50), transport)

    def test_kill_the_trainer(self):
        self.on_every_way(self.check_trainers_killed)

    def check_trainers_killed(self, daemon, transport):
        for lost in range(1, 4):
            self.pushing_trainer(daemon, transport).kill()
            # And the memory of its slices is released.
            status = daemon.until_status("the loss shows", lambda status, lost=lost: status["trainers_lost"] == lost
                                         and status["gauges"]["connections_open"] == 1 and status["in_flight_bytes"] == status["ring_bytes"] == 0)
        versions = [shard["version"] for shard in status["shards"]]
        self.assertLessEqual(max(versions) - min(versions), 3, "of each, one update at most was under way")
        self.assertEqual(status["counters"]["refused_slices"], 0)
        self.assert_ends(self.start_trainer("bench", "push", "--server", daemon.address, "--size", "16M", "--seconds", 0.05))
        self.assert_stops(daemon)
        self.assertNotIn("with requests still in flight", daemon.err, "half an update of a dead trainer holds up the end")

    def test_kill_the_daemon(self):
        self.on_every_way(self.check_daemon_killed)

    def check_daemon_killed(self, daemon, transport):
        trainer = self.pushing_trainer(daemon, transport)
        daemon.kill()
        self.assert_fails(trainer, daemon.address, "broke")


class LostTrainer(processes.ProcessTest):
    def test_the_others_continue_and_the_rank_is_free(self):
        for policy in ("hogwild", "locked"):
            with self.subTest(policy=policy):
                daemon = self.daemon(policy=policy, membership__grace_ms=50)
                doomed = self.endless_trainer(daemon, 0, 2)
                other = self.train(daemon.address, 1, 2, steps=200)
                doomed.kill()
                status = daemon.until_status("the loss shows", lambda status: status["trainers_lost"] == 1)
                self.assertNotIn(0, [trainer["rank"] for trainer in status["trainers"]])
                self.assert_ends(other)
                self.assert_ends(self.train(daemon.address, 0, 2, steps=3))
                self.assertIn("rank 0 (process", daemon.err)
                self.assertEqual(daemon.counter("refused_slices"), 0)
                self.assert_stops(daemon)

    def test_a_lost_trainer_is_not_done(self):
        daemon = self.daemon(exit_when_done=True)
        other = self.endless_trainer(daemon, 1, 2)
        self.endless_trainer(daemon, 0, 2).kill()
        daemon.until_status("the loss shows", lambda status: status["trainers_lost"] == 1)
        self.assertTrue(other.runs() and daemon.runs())

    def test_killed_at_random_points_again_and_again(self):
        seed = 20_240_601
        print(f"seed {seed}")
        pauses = random.Random(seed)
        daemon = self.daemon(policy="locked", listen=(self.unix_address(),))
        for round_ in range(10 if processes.LONG else 5):
            doomed = self.endless_trainer(daemon)
            # The moment within a step is random; the seed makes it differ each time.
            time.sleep(pauses.uniform(0, 0.02))
            doomed.kill()
            daemon.until_status("the loss shows", lambda status, lost=round_ + 1: status["trainers_lost"] == lost)
        self.assert_ends(self.train(daemon.address, steps=5))
        status = daemon.until_status("all connections are gone", lambda status: status["gauges"]["connections_open"] == 1)
        self.assertEqual(status["counters"]["refused_slices"], 0)
        self.assertEqual(status["counters"]["connections_dropped"], 0, "the trainers left; none was dropped")
        self.assert_stops(daemon)
        self.assertNotIn("with requests still in flight", daemon.err, "half an update of a dead trainer holds up the end")


class SilentTrainer(processes.ProcessTest):
    def test_a_stopped_trainer_is_lost_and_the_others_continue(self):
        daemon = self.daemon(membership__lease_ms=1000)
        silent = self.endless_trainer(daemon, 0, 2, more=("--retry-timeout", 0))
        other = self.endless_trainer(daemon, 1, 2)
        silent.signal(signal.SIGSTOP)
        status = daemon.until_status("the loss shows", lambda status: status["trainers_lost"] == 1)
        self.assertEqual([trainer["rank"] for trainer in status["trainers"]], [1])
        self.assertIn("no heartbeat for membership.lease_ms (1000)", daemon.err)
        self.assert_ends(self.train(daemon.address, 0, 2, steps=3))
        silent.signal(signal.SIGCONT)
        self.assert_fails(silent, "the connection to", "broke")
        self.assertTrue(other.runs())

    def test_one_that_was_replaced_does_not_come_back(self):
        daemon = self.daemon(membership__lease_ms=1000)
        silent = self.endless_trainer(daemon)
        silent.signal(signal.SIGSTOP)
        daemon.until_status("the loss shows", lambda status: status["trainers_lost"] == 1)
        self.assert_ends(self.train(daemon.address, steps=3))
        silent.signal(signal.SIGCONT)
        self.assert_fails(silent, "rank 0 was taken over by process")

    def test_one_whose_place_is_free_comes_back(self):
        daemon = self.daemon(membership__lease_ms=1000)
        silent = self.endless_trainer(daemon)
        silent.signal(signal.SIGSTOP)
        daemon.until_status("the loss shows", lambda status: status["trainers_lost"] == 1)
        silent.signal(signal.SIGCONT)
        daemon.until_status("it is back", lambda status: status["counters"]["trainers_joined"] == 2)
        processes.until("it says so", lambda: "a new session" in silent.err)


class LostDaemon(processes.ProcessTest):
    def test_the_trainers_end_with_one_line(self):
        for address in ("tcp://127.0.0.1:0", self.unix_address()):
            with self.subTest(address=address):
                daemon = self.daemon(listen=(address,))
                trainers = [self.endless_trainer(daemon, 0, 2, more=("--retry-timeout", 0)),
                            self.endless_trainer(daemon, 1, 2, more=("--retry-timeout", 0.3))]
                daemon.kill()
                self.assert_fails(trainers[0], daemon.address, "broke")
                self.assert_fails(trainers[1], daemon.address, "broke", "could not reconnect within 300 ms")

    def test_a_signal_ends_the_attempts_to_come_back(self):
        daemon = self.daemon()
        trainer = self.endless_trainer(daemon)
        daemon.kill()
        processes.until("it tries", lambda: "trying again for up to 1 min 0 s" in trainer.err)
        trainer.signal(signal.SIGTERM)
        self.assert_ends(trainer, 128 + signal.SIGTERM)
        self.assertIn("stopped after", trainer.out)


if __name__ == "__main__":
    processes.main()
