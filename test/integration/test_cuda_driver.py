"""Effects of the CUDA driver on programs that see no usable GPU, with a fake driver that the tests control."""

import json
import os
import pathlib
import signal
import subprocess
import unittest

import processes

DRIVER = os.environ["PSD_FAKE_CUDA_DRIVER"]  # the folder of its libcuda.so.1
EXECUTOR = os.environ.get("PSD_EXECUTOR_BIN")
NO_DEVICE, SYSTEM_NOT_READY = 100, 802  # results of its cuInit()
EXIT_SKIPPED = 4


class CudaDriver(processes.ProcessTest):
    def start(self, *arguments, **driver):
        """A daemon with `device: "auto"` over a fake driver with these settings."""
        daemon = processes.Daemon(self.folder, self._name("psd"), ["--listen", self.unix_address(), *arguments],
                                  self.driver(**driver))
        self.processes.append(daemon)
        return daemon

    def driver(self, **told):
        return {"LD_LIBRARY_PATH": DRIVER, **{f"FAKE_CUDA_{name.upper()}": str(value) for name, value in told.items()}}

    def test_signals_reach_the_daemon_and_not_the_drivers_threads(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number.name):
                config = self.write("psd.json", '{"log": {"level": "info"}}')
                daemon = self.start("--config", config)
                self.assertIn(DRIVER, self.maps(daemon), "the test's driver is not the one in use")
                daemon.signal(signal.SIGHUP)
                processes.until("it has read its configuration again",
                                lambda d=daemon: "reloaded the configuration" in d.err or not d.runs())
                daemon.signal(number)
                self.assert_ends(daemon)
                self.assertIn(f"stopping: {number.name}", daemon.err)

    @staticmethod
    def maps(process):
        return pathlib.Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")

    def test_auto_takes_the_cpu_and_says_why(self):
        for driver, reason in (({"init": SYSTEM_NOT_READY}, "system not yet initialized (cudaErrorSystemNotReady)"),
                               ({"version": 11000}, "the driver is for CUDA 11.0, this psd for ")):
            with self.subTest(driver=driver):
                daemon = self.start(**driver)
                self.assertIn("device cpu,", daemon.err)
                warnings = [line for line in daemon.err.splitlines() if " warn " in line]
                self.assertEqual(len(warnings), 1, daemon.err)
                self.assertIn("the parameters are on the CPU", warnings[0])
                self.assertIn(reason, warnings[0])
                self.assert_stops(daemon)
        daemon = self.start(init=NO_DEVICE)
        self.assertIn("device cpu,", daemon.err)
        self.assertNotIn(" warn ", daemon.err)

    def test_a_device_that_is_asked_for_by_name_is_needed(self):
        daemon = self.start_psd("--listen", self.unix_address(), "--device", "cuda:0",
                                environment=self.driver(init=SYSTEM_NOT_READY))
        self.assert_fails(daemon, "device cuda:0", "cudaErrorSystemNotReady")

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_a_trainer_computes_on_the_cpu_and_says_why(self):
        daemon = self.daemon()
        for driver, reason in (({"init": SYSTEM_NOT_READY}, "system not yet initialized"),
                               ({"version": 11000}, "the driver is for CUDA 11.0, LibTorch for ")):
            with self.subTest(driver=driver):
                common = ["train", "--server", daemon.address, "--model", "mlp", "--data", "synthetic:128", "--steps", 1,
                          "--rank", 0, "--world-size", 1]
                trainer = self.start_trainer(*common, environment=self.driver(**driver))
                self.assert_ends(trainer)
                warnings = [line for line in trainer.err.splitlines() if "warn" in line]
                self.assertEqual(len(warnings), 1, trainer.err)
                self.assertIn(reason, warnings[0])
                self.assertIn("; using the CPU", warnings[0])
                refused = self.start_trainer(*common, "--device", "cuda:0", environment=self.driver(**driver))
                self.assert_fails(refused, "--device: cuda:0 is not there", reason)
        trainer = self.start_trainer(*common, environment=self.driver(init=NO_DEVICE))
        self.assert_ends(trainer)
        self.assertNotIn("warn", trainer.err)

    @unittest.skipUnless(EXECUTOR, "psd-executor is not built")
    def test_an_executor_computes_on_the_cpu_and_says_why(self):
        def checked(device, **driver):
            return subprocess.run([EXECUTOR, "check", "--module", "mlp", "--device", device], capture_output=True, text=True,
                                  env={**os.environ, **self.driver(**driver)}, timeout=processes.WAIT_S, check=False)

        for driver, reason in (({"init": SYSTEM_NOT_READY}, "system not yet initialized"),
                               ({"version": 11000}, "the driver is for CUDA 11.0, LibTorch for ")):
            with self.subTest(driver=driver):
                auto = checked("auto", **driver)
                self.assertEqual(auto.returncode, 0, auto.stderr)
                self.assertEqual(len(auto.stderr.splitlines()), 1, auto.stderr)
                self.assertIn(reason, auto.stderr)
                self.assertIn("; using the CPU", auto.stderr)
                self.assertEqual(json.loads(auto.stdout)["device"], "auto")
                named = checked("cuda:0", **driver)
                self.assertEqual(named.returncode, 2)
                self.assertRegex(named.stderr, f"^psd-executor: device: cuda:0 is not there; .*{reason}")
        self.assertEqual(checked("auto", init=NO_DEVICE).stderr, "")

    def test_a_test_without_a_gpu_is_skipped_and_fails_where_one_is_required(self):
        # As XML, in which Catch2 does not wrap lines.
        tests = [os.environ["PSD_CUDA_TEST_BIN"], "a read outlives its lane and its storage", "-r", "xml"]
        bench = [os.environ["PSD_BENCH_CUDA_BIN"], "--elements", "16", "--rounds", "1"]
        for program in (tests, bench):
            for driver, reason in (({"init": NO_DEVICE}, "no CUDA-capable device is detected"),
                                   ({"init": SYSTEM_NOT_READY}, "system not yet initialized (cudaErrorSystemNotReady)"),
                                   ({"version": 11000}, "the driver is for CUDA 11.0, this psd for ")):
                for required, status in ((None, EXIT_SKIPPED), ("", EXIT_SKIPPED), ("0", EXIT_SKIPPED), ("1", 1)):
                    with self.subTest(program=program[0], driver=driver, required=required):
                        environment = {key: value for key, value in os.environ.items() if key != "PSD_REQUIRE_CUDA"}
                        environment.update(self.driver(**driver), **({} if required is None else {"PSD_REQUIRE_CUDA": required}))
                        done = subprocess.run(program, env=environment, capture_output=True, text=True,
                                              timeout=processes.WAIT_S, check=False)
                        self.assertEqual(done.returncode, status)
                        self.assertIn(reason, done.stdout + done.stderr)


if __name__ == "__main__":
    processes.main()
