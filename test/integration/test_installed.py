"""An installation by `cmake --install` works in place: programs outside the source tree find the libraries with
find_package(psd) and train with the installed daemon, and at an executor. PSD_BUILD_DIR is the build folder,
PSD_LINE_SOURCE the program of docs/reference/client.md, PSD_DIGITS_SOURCE the example of trainer/executor/remote."""

import os
import pathlib
import subprocess
from unittest import mock

import outside_program
import processes

BUILD = os.environ["PSD_BUILD_DIR"]
EXECUTOR = os.environ.get("PSD_EXECUTOR_BIN")  # set if it is built


class Installed(processes.ProcessTest):
    def command(self, *words, folder=None):
        done = subprocess.run([str(word) for word in words], cwd=folder or self.folder, text=True, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, f"{words}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def install(self, component):
        prefix = self.folder / "prefix"
        self.command(outside_program.CMAKE, "--install", BUILD, "--prefix", prefix, "--component", component)
        return prefix

    def build_programs(self, prefix):
        """Builds the pages' programs against the installed tree, with a file that includes each installed header.
        Returns their folder."""
        include = prefix / "include/psd"
        headers = sorted(str(path.relative_to(include)) for path in include.rglob("*.h"))
        self.assertLessEqual({"trainer/client/api/client.h", "trainer/executor/remote/remote_steps.h"}, {*headers})
        return outside_program.build(self.command, self.folder, prefix, headers)

    def test_a_program_finds_the_library_and_trains(self):
        prefix = self.install("psd")
        self.assertTrue((prefix / "etc/psd/psd.json").is_file())
        self.assertTrue((prefix / "lib/systemd/system/psd.service").is_file())
        self.install("client")
        programs = self.build_programs(prefix)
        patch = mock.patch.object(processes, "PSD", str(prefix / "bin/psd"))
        patch.start()
        self.addCleanup(patch.stop)
        outside_program.run_line(self, programs / "line")
        self.check_without_libtorch(programs / "digits")
        if EXECUTOR:
            self.check_trains_at_an_executor(programs / "digits")

    def check_without_libtorch(self, program):
        needed = self.command("ldd", program)
        self.assertNotRegex(needed, "(?i)torch|c10|python")

    def check_trains_at_an_executor(self, program):
        daemon = self.daemon(listen=(self.unix_address(),), optimizer='{"type":"sgd","lr":0.1}')
        executor = processes.Process(self.folder, "psd-executor", [
            EXECUTOR, "--server", daemon.address, "--module", "mlp", "--device", "cpu", "--listen",
            self.unix_address("executor.sock")])
        self.processes.append(executor)
        trainers = [processes.Process(self.folder, f"digits-{rank}", [program, self.unix_address("executor.sock"), rank, 2])
                    for rank in range(2)]
        self.processes += trainers
        for trainer in trainers:
            self.assert_ends(trainer)
            self.assertRegex(trainer.out, r"(?s)step 50: loss .*accuracy (1\.00|0\.9)")
        status = daemon.until_status("both have left", lambda status: not status["trainers"])
        self.assertEqual(status["counters"]["gradients"], 400)

    def test_manual_page_and_completions(self):
        for component in ("psd", "trainer") if processes.TRAINER else ("psd",):
            share = self.install(component) / "share"
            for program in {"psd": ["psd"], "trainer": ["psd-trainer", "psd-executor"]}[component]:
                self.assertTrue(list((share / "man/man1").glob(f"{program}.1*")))
                for path in (f"bash-completion/completions/{program}", f"zsh/vendor-completions/_{program}",
                             f"fish/vendor_completions.d/{program}.fish"):
                    self.assertGreater((share / path).stat().st_size, 1000)
                self.assertIn("Usage: ", self.command(share.parent / "bin" / program, "--help"))

    def test_nothing_installed_names_the_build(self):
        prefix = self.install("client")
        for path in prefix.rglob("*.cmake"):
            text = path.read_text(encoding="utf-8")
            for place in (BUILD, str(processes.REPO)):
                self.assertNotIn(place, text, path)
        archives = {path.name for path in pathlib.Path(prefix).rglob("*.a")}
        self.assertLessEqual({"libpsd_client.a", "libpsd_remote.a", "libpsd_task.a"}, archives)


if __name__ == "__main__":
    processes.main()
