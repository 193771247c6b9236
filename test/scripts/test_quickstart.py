"""scripts/quickstart: its sequence, and that it leaves no process behind, with fakes of the programs that it launches;
and with the real ones, if they are built, an epoch at an executor."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

from checkout import REPO, CheckoutTest

WAIT_SECONDS_MAX = 60

# Each writes its process id, so that a test can see whether it still runs. $FAKE is the test's folder.
PSD = """#!/usr/bin/env bash
if [ "$1" = stop ]; then touch "$FAKE/stop"; exit 0; fi
echo $$ >"$FAKE/psd.pid"
echo "$@" >"$FAKE/psd.arguments"
[ -z "${PSD_FAILS:-}" ] || { echo "psd: no such policy"; exit 2; }
while [ $# -gt 1 ]; do [ "$1" != --port-file ] || echo 5599 >"$2"; shift; done
echo "psd is ready"
[ -z "${PSD_DIES:-}" ] || { until [ -e "$FAKE/trainer1.pid" ]; do sleep 0.02; done; echo "psd: killed"; exit 9; }
until [ -e "$FAKE/stop" ]; do sleep 0.02; done
"""
EXECUTOR = """#!/usr/bin/env bash
echo $$ >"$FAKE/executor.pid"
echo "$@" >"$FAKE/executor.arguments"
while [ $# -gt 1 ]; do [ "$1" != --port-file ] || echo 5601 >"$2"; shift; done
echo "psd-executor is ready"
exec sleep 1000
"""
TRAINER = """#!/usr/bin/env bash
command=$1
echo "$@" >>"$FAKE/trainers.arguments"
while [ $# -gt 1 ]; do [ "$1" != --rank ] || rank=$2; [ "$1" != --server ] || server=$2; shift; done
if [ $command = eval ]; then echo "loss 0.1, accuracy ${ACCURACY:-97.50 %} on 1000 images of $server"; exit 0; fi
echo $$ >"$FAKE/trainer$rank.pid"
echo "epoch 1 of rank $rank"
if [ "${FAILING_RANK:-}" = $rank ]; then echo "psd-trainer: lost the daemon"; exit 3; fi
[ -z "${TRAINERS_HANG:-}" ] || exec sleep 1000
"""


def runs(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


class Quickstart(CheckoutTest):
    def setUp(self):
        super().setUp()
        self.fake = self.root / "fake"
        self.write("configs/quickstart.json", "{}\n")
        programs = {"build/quickstart/bin/psd": PSD, "build/quickstart/bin/psd-trainer": TRAINER,
                    "fake/release/psd": PSD, "fake/release/psd-trainer": TRAINER, "fake/release/psd-executor": EXECUTOR,
                    "scripts/setup": "#!/bin/sh\necho set-up done\n", "fake/tools/cmake": "#!/bin/sh\n"}
        for path, text in programs.items():
            self.write(path, text)
            (self.root / path).chmod(0o755)
        (self.fake / "temporary").mkdir()

    def environment(self, **variables):
        return {"FAKE": str(self.fake), "TMPDIR": str(self.fake / "temporary"), **variables}

    def quickstart(self, *arguments, **variables):
        return self.run_script("quickstart", *arguments, path_first=self.fake / "tools", **self.environment(**variables))

    def assert_nothing_stays_behind(self):
        left = {path.name: runs(int(path.read_text(encoding="ascii"))) for path in self.fake.glob("*.pid")}
        self.assertTrue(left)
        self.assertFalse(any(left.values()), left)
        self.assertEqual([], list((self.fake / "temporary").iterdir()))

    def test_from_set_up_to_accuracy(self):
        result = self.quickstart("--policy", "locked")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertEqual(result.stdout.splitlines()[-1], "Test accuracy: 97.50 %")
        for line in ("set-up done", "    psd is ready", "[trainer 0] epoch 1 of rank 0", "[trainer 1] epoch 1 of rank 1",
                     "    loss 0.1, accuracy 97.50 % on 1000 images of tcp://localhost:5599"):
            self.assertIn(line, result.stdout.splitlines())
        arguments = (self.fake / "psd.arguments").read_text(encoding="ascii")
        self.assertIn("--listen tcp://localhost:0 ", arguments)
        self.assertIn("--set policy.type=locked", arguments)
        self.assert_nothing_stays_behind()

    def release(self):
        """Moves the programs to where a build of everything puts them."""
        (self.root / "build/release").mkdir()
        (self.fake / "release").rename(self.root / "build/release/bin")

    def test_the_first_run_says_how_long_it_takes(self):
        trainer = self.root / "build/quickstart/bin/psd-trainer"
        # As if the build had created it.
        self.write("fake/tools/cmake", f"#!/bin/sh\n[ ! -e {trainer}.built ] || mv {trainer}.built {trainer}\n")
        trainer.rename(f"{trainer}.built")
        result = self.quickstart()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("From scratch to a trained model", result.stdout)
        self.assertRegex(result.stdout, r"build in build/quickstart: about \d+ minutes with \d+ core")

    def test_a_later_run_does_not(self):
        self.assertNotIn("From scratch to a trained model", self.quickstart().stdout)

    def test_programs_of_a_whole_build_serve(self):
        self.release()
        for name in ("psd", "psd-trainer"):
            (self.root / "build/quickstart/bin" / name).unlink()
        self.assertEqual(self.quickstart().returncode, 0)

    def test_an_executor_computes(self):
        self.release()
        result = self.quickstart("--execute")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertIn("    psd-executor is ready", result.stdout.splitlines())
        sockets = [words[words.index("unix"):].split()[0] for words in
                   ((self.fake / f"{name}.arguments").read_text(encoding="ascii") for name in ("psd", "executor"))]
        self.assertEqual(sockets[0], sockets[1])
        trainers = (self.fake / "trainers.arguments").read_text(encoding="ascii").splitlines()
        self.assertEqual([line.split()[:3] for line in trainers[:2]], 2 * [["train", "--execute", "tcp://localhost:5601"]])
        self.assert_nothing_stays_behind()

    def test_a_trainer_that_fails(self):
        for rank in "01":
            with self.subTest(rank=rank):
                result = self.quickstart(FAILING_RANK=rank, TRAINERS_HANG="yes")
                self.assertNotEqual(result.returncode, 0)
                self.assertIn("psd-trainer: lost the daemon", result.stderr)
                self.assertIn(f"trainer {rank} failed", result.stderr.splitlines()[-1])
                self.assert_nothing_stays_behind()

    def test_a_daemon_that_does_not_start(self):
        result = self.quickstart(PSD_FAILS="yes")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("psd: no such policy", result.stderr)
        self.assertIn("psd ended before it was ready", result.stderr.splitlines()[-1])
        self.assert_nothing_stays_behind()

    def test_a_daemon_that_dies_in_mid_training(self):
        result = self.quickstart(PSD_DIES="yes", TRAINERS_HANG="yes")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("psd: killed", result.stderr)
        self.assertIn("psd ended before the training did", result.stderr.splitlines()[-1])
        self.assert_nothing_stays_behind()

    def test_an_evaluation_without_accuracy(self):
        result = self.quickstart(ACCURACY="unknown")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("printed no accuracy", result.stderr.splitlines()[-1])
        self.assert_nothing_stays_behind()

    def test_an_interrupt_ends_everything(self):
        variables = {**os.environ, **self.environment(TRAINERS_HANG="yes")}
        variables["PATH"] = f"{self.fake / 'tools'}:{variables['PATH']}"
        script = subprocess.Popen([self.root / "scripts/quickstart"], env=variables, text=True, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # ignored where tests run in the background
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not (self.fake / "trainer1.pid").exists():
            self.assertLess(time.monotonic(), deadline, "the trainers were not launched")
            time.sleep(0.02)
        script.send_signal(signal.SIGINT)
        _, errors = script.communicate(timeout=WAIT_SECONDS_MAX)
        self.assertNotEqual(script.returncode, 0)
        self.assertIn("interrupted", errors)
        self.assert_nothing_stays_behind()


PROGRAMS = [os.environ.get(name) for name in ("PSD_BIN", "PSD_TRAINER_BIN", "PSD_EXECUTOR_BIN")]
DIGITS = REPO / ".data" / "mnist_5k"


@unittest.skipUnless(all(PROGRAMS) and DIGITS.is_dir(), "psd-executor, or the digits that scripts/setup makes, are not there")
class RealPrograms(CheckoutTest):
    def setUp(self):
        super().setUp()
        shutil.copytree(REPO / "configs", self.root / "configs")
        (self.root / "build/release/bin").mkdir(parents=True)
        for program in PROGRAMS:
            (self.root / "build/release/bin" / pathlib.Path(program).name).symlink_to(program)
        for path in ("scripts/setup", "fake/tools/cmake"):  # what they would install exists already
            self.write(path, "#!/bin/sh\n")
            (self.root / path).chmod(0o755)

    def test_an_executor_computes_an_epoch(self):
        result = self.run_script("quickstart", "--execute", "--epochs", "1", "--data", DIGITS, path_first=self.root / "fake/tools")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        accuracy = re.fullmatch(r"Test accuracy: ([0-9.]+) %", result.stdout.splitlines()[-1])
        self.assertGreater(float(accuracy.group(1)), 60, "a guess is right in 10 %")


if __name__ == "__main__":
    unittest.main()
