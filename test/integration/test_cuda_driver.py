"""What the CUDA driver does to a program that sees no usable GPU, with a driver that does as it is told."""

import os
import pathlib
import signal

import processes

DRIVER = os.environ["PSD_FAKE_CUDA_DRIVER"]  # the folder of its libcuda.so.1


class CudaDriver(processes.ProcessTest):
    def start(self, *arguments, **driver):
        """A daemon with `device: "auto"` over a driver that is told those things."""
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


if __name__ == "__main__":
    processes.main()
