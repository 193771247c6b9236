"""Real psd and psd-trainer processes for tests: launched in a folder of the test, waited for with a bound, killed at
its end.

The programs' paths come from the environment: PSD_BIN, and PSD_TRAINER_BIN if psd-trainer is built.
"""

import collections
import dataclasses
import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from safetensors_file import safetensors

PSD = os.environ["PSD_BIN"]
TRAINER = os.environ.get("PSD_TRAINER_BIN")
# "address" or "thread" if the programs are built with that sanitizer: they are slower and need more memory.
SANITIZED = os.environ.get("PSD_SANITIZE", "")
LONG = bool(os.environ.get("PSD_LONG"))  # set by scripts/test --long
LONG_ONLY = bool(os.environ.get("PSD_LONG_ONLY"))  # set for a test that the default lane skips as a whole
long_test = unittest.skipUnless(LONG, "long: scripts/test --long")
REPO = pathlib.Path(__file__).resolve().parents[2]
FULL_MNIST = pathlib.Path(os.environ.get("PSD_MNIST") or os.devnull)  # not a folder

WAIT_S = 180  # bounds waits for events that take seconds on an idle machine
# This process's own loopback address. Connections originate from 127.0.0.1, so that none of them, in this test or
# another, takes a port of this address that a daemon has to listen on again.
LOOPBACK = f"127.{1 + (os.getpid() >> 16) % 254}.{(os.getpid() >> 8) % 256}.{1 + os.getpid() % 254}"
EXIT_SKIPPED = 77
REPORT_LINES_MAX = 40

# Output that no program may ever print: an abort, a crash, a finding of a sanitizer.
NEVER_PRINTED = ("terminate called", "Segmentation fault", "Assertion", "Sanitizer", "runtime error:", "*** Fatal", "stack: ")


def until(what, condition, seconds=WAIT_S, interval=0.02):
    """Polls until condition() is true, and returns its value; fails after a bounded time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out after {seconds} s: {what}")
        time.sleep(interval)


def quietly(condition, error):
    """What the condition returns; False if it raises that error."""
    try:
        return condition()
    except error:
        return False


@dataclasses.dataclass
class LoggedAssignment:
    """Samples that were assigned for a push: (rank, incarnation, step)."""
    push: tuple
    epoch: int
    begin: int
    count: int


@dataclasses.dataclass
class LoggedUpdate:
    history: int
    shard: int
    number: int
    pushes: dict  # pushes in it, with the number of samples of each


class LogHistory:
    """State of one history of a log while it is read."""

    def __init__(self, history):
        self.history = history
        self.next_record = 0
        self.held = {}  # by shard: of a round that is not in all shards yet

    def updates(self, data, at):
        """The updates that are complete with the record at that offset."""
        next_shard = 1  # another shard's part of the same round follows
        shard, sources, number = struct.unpack_from("<IIQ", data, at + 24)
        (part,) = struct.unpack_from("<I", data, at + 60)
        pushes = {}
        for source in range(sources):
            rank, samples, incarnation, step = struct.unpack_from("<IIQQ", data, at + 80 + 40 * source)
            pushes[rank, incarnation, step] = samples
        if shard in self.held:
            self.held.clear()
        self.held[shard] = LoggedUpdate(self.history, shard, number, pushes)
        if part != next_shard:
            yield from self.held.values()
            self.held.clear()


def read_log(folder):
    """Everything in the log of a stopped daemon (docs/reference/log_format.md), in order. Records that a daemon wrote again at
    its start occur once; of a round that was cut off by a daemon's death and repeated, only the second. Data cut off by
    a failing disk is skipped."""
    header_bytes, prefix_bytes = 64, 24
    histories = {}
    for path in sorted(folder.glob("*.psdlog")):
        data, at = path.read_bytes(), header_bytes
        if len(data) < header_bytes:
            continue
        history, _, next_record = struct.unpack_from("<QQQ", data, 24)
        log = histories.setdefault(history, LogHistory(history))
        while len(data) - at >= prefix_bytes:
            kind, size, number = struct.unpack_from("<IQQ", data, at + 4)
            if number != next_record or size > len(data) - at:
                break
            repeated = number < log.next_record
            log.next_record = max(log.next_record, number + 1)
            if repeated:
                pass
            elif kind == 2:
                rank, incarnation, step, epoch, begin, count = struct.unpack_from("<I4xQQQQQ", data, at + 24)
                yield LoggedAssignment((rank, incarnation, step), epoch, begin, count)
            else:
                yield from log.updates(data, at)
            at += size
            next_record += 1


def all_values(path):
    """The values of all tensors of a file, each once."""
    return {value for _, values in safetensors(path).values() for value in values}


def trained_samples(folder):
    """By shard, the number of updates in the log that have each sample: Counter of (epoch, place)."""
    assigned, trained = {}, collections.defaultdict(collections.Counter)
    for record in read_log(folder):
        if isinstance(record, LoggedAssignment):
            assigned[record.push] = [(record.epoch, place) for place in range(record.begin, record.begin + record.count)]
            continue
        for push, samples in record.pushes.items():
            assert len(assigned[push]) == samples, (push, samples, assigned[push])
            trained[record.shard].update(assigned[push])
    return trained


def limit_descriptors(most):
    """Limits the open files of this process and of the program that replaces it."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Process:
    """A program that runs in the background, its output in files. `descriptors`: limit of its open files."""

    def __init__(self, folder, name, arguments, environment=None, descriptors=None):
        self.name = name
        self.arguments = [str(argument) for argument in arguments]
        self.paths = [folder / f"{name}.{stream}" for stream in ("out", "err")]
        with open(self.paths[0], "wb") as out, open(self.paths[1], "wb") as err:
            self.popen = subprocess.Popen(self.arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
                                          env={**os.environ, **(environment or {})},
                                          preexec_fn=descriptors and (lambda: limit_descriptors(descriptors)))

    @property
    def pid(self):
        return self.popen.pid

    @property
    def out(self):
        return self.paths[0].read_text(encoding="utf-8", errors="replace")

    @property
    def err(self):
        self.log_written()
        return self.paths[1].read_text(encoding="utf-8", errors="replace")

    def log_written(self):
        """Returns once the thread that writes the program's log has written everything logged so far."""
        def at_work(task):
            try:
                return (task / "comm").read_text() == "psd-messages\n" and (task / "stat").read_text().rsplit(")", 1)[1].split()[0] == "R"
            except OSError:
                return False  # it has ended

        if self.popen.returncode is None:
            tasks = list(pathlib.Path(f"/proc/{self.popen.pid}/task").glob("*"))
            until("the log is written", lambda: not any(map(at_work, tasks)), interval=0.001)

    def runs(self):
        return self.popen.poll() is None

    def signal(self, number):
        """After SIGSTOP, returns when none of its threads runs any more."""
        self.popen.send_signal(number)
        if number == signal.SIGSTOP and self.popen.returncode is None:
            os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait(self, seconds=WAIT_S):
        """The exit status."""
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {seconds} s") from None

    def kill(self):
        """kill -9, as a machine failure would."""
        if self.runs():
            self.log_written()
            self.popen.kill()
            self.popen.wait(WAIT_S)

    def report(self):
        last = [line for text in (self.out, self.err) for line in text.splitlines()[-REPORT_LINES_MAX:]]
        return "\n".join([f"--- {self.name}: {' '.join(self.arguments)} -> {self.popen.poll()}", *last])


def kill_together(*processes):
    """kill -9 of all of them, so that none notices the end of another one."""
    for process in processes:
        process.log_written()
    for process in processes:
        process.signal(signal.SIGSTOP)
    for process in processes:
        process.popen.kill()
        process.popen.wait(WAIT_S)


class NotReady(AssertionError):
    """A daemon ended before it was ready."""

    def __init__(self, process):
        super().__init__(f"{process.name} ended before it was ready: {process.err}")
        self.process = process


class Daemon(Process):
    """A psd that is ready. `address` is where to connect; `addresses` all that it listens on."""

    def __init__(self, folder, name, arguments, environment=None, descriptors=None, within=()):
        super().__init__(folder, name, [*within, PSD, *arguments], environment, descriptors)
        until(f"{name} is ready", lambda: "ready: listening on" in self.err or not self.runs())
        if not self.runs():
            raise NotReady(self)
        ready = next(line for line in self.err.splitlines() if "ready: listening on" in line)
        self.addresses = ready.split("listening on ")[1].split(", pid")[0].split()
        self.address = self.addresses[0]
        self.pages = ready.split(", page ")[1].split() if ", page " in ready else []

    @property
    def page(self):
        """The address of its page, such as http://127.0.0.1:41234."""
        return self.pages[0].rstrip("/")

    @property
    def port(self):
        return next(int(address.rpartition(":")[2]) for address in self.addresses if address.startswith("tcp://"))

    def status(self):
        done = subprocess.run([PSD, "status", "--json", "--here", "--server", self.address], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=WAIT_S, check=False)
        if done.returncode != 0:
            raise AssertionError(f"psd status --server {self.address}: {done.stderr}")
        return json.loads(done.stdout)

    def until_status(self, what, condition):
        """Polls the status until condition(status) is true, and returns that status."""
        found = {}

        def look():
            found["status"] = self.status()
            return condition(found["status"])

        until(f"{what}, in the status of {self.name}", look)
        return found["status"]

    def switch_over(self):
        """Runs psd switch. It is refused if a busy machine delays etcd's answer, and is then retried."""
        def switched():
            done = subprocess.run([PSD, "switch", "--server", self.address], capture_output=True, text=True, timeout=WAIT_S, check=False)
            if "cannot be changed now: etcd" in done.stderr:
                return False
            # On such a machine the answer may not be sent before the daemon restarts.
            if done.returncode == 0 or "connection broke" in done.stderr:
                return True
            raise AssertionError(done.stderr)

        until("psd switch", switched)

    def until_in_sync(self):
        """For a primary: waits until a standby holds everything that it has; returns its status."""
        return self.until_status("a standby is in sync", lambda status: status["replica_set"]["waits_for_standby"]
                                 and status["replica_set"]["standby"] == status["replica_set"]["follower"] != "")

    def counter(self, name):
        return self.status()["counters"][name]


class ProcessTest(unittest.TestCase):
    """A test with a folder of its own, self.folder, and processes that do not outlive it."""

    def run(self, result=None):
        def problems():
            return len(result.failures) + len(result.errors)

        before = problems()
        with tempfile.TemporaryDirectory(prefix="psd-") as folder:
            self.folder = pathlib.Path(folder)
            self.processes = []
            super().run(result)
            if problems() > before:
                print("\n".join([f"=== {self.id()}", *(process.report() for process in self.processes)]), file=sys.stderr)
        return result

    def tearDown(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            for words in NEVER_PRINTED:
                self.assertNotIn(words, process.err, process.name)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def run_psd(self, *arguments):
        """A command of psd, run in the test's folder, whatever its status."""
        return subprocess.run([PSD, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=WAIT_S, check=False, cwd=self.folder)

    def psd(self, *arguments):
        """What a command of psd prints, which succeeds."""
        done = self.run_psd(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refused(self, *arguments):
        """The one line with which a command of psd fails."""
        done = self.run_psd(*arguments)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        return lines[0]

    def unix_address(self, name="psd.sock"):
        return f"unix://{self.folder / name}"

    def _name(self, kind):
        return f"{kind}-{len(self.processes)}"

    def daemon(self, *arguments, listen=("tcp://127.0.0.1:0",), policy="hogwild", optimizer='{"type":"sgd","lr":0.01}',
               environment=None, descriptors=None, within=(), **settings):
        """A daemon that is ready. Settings are keys of the configuration, "__" for "."; None: the key is absent.
        `within`: prefix of its command."""
        flags = [part for address in listen for part in ("--listen", address)]
        values = {"policy.type": policy, "optimizer": optimizer, "device": os.environ.get("PSD_TEST_DEVICE", "cpu")}
        values.update({key.replace("__", "."): value for key, value in settings.items()})
        for key, value in values.items():
            if value is not None:
                flags += ["--set", f"{key}={json.dumps(value) if not isinstance(value, str) else value}"]
        daemon = Daemon(self.folder, self._name("psd"), [*flags, *arguments], environment, descriptors, within)
        self.processes.append(daemon)
        return daemon

    def start_psd(self, *arguments, environment=None, descriptors=None):
        """A psd that need not become ready."""
        process = Process(self.folder, self._name("psd"), [PSD, *arguments], environment, descriptors)
        self.processes.append(process)
        return process

    def make_token(self, name, role, tokens="tokens"):
        """A new token, whose line is in the token file of that name in the test's folder."""
        made = self.start_psd("token", "new", "--name", name, "--role", role, "--file", self.folder / tokens)
        self.assert_ends(made)
        return made.out.strip()

    def make_token_file(self, name, role, tokens="tokens"):
        """The path of a file with a new token, as make_token() makes it."""
        path = self.write(f"{name}.token", self.make_token(name, role, tokens))
        path.chmod(0o600)
        return path

    def start_program(self, *arguments):
        process = Process(self.folder, self._name("program"), arguments)
        self.processes.append(process)
        return process

    def start_trainer(self, *arguments, environment=None, within=()):
        process = Process(self.folder, self._name("psd-trainer"), [*within, TRAINER, *arguments], environment)
        self.processes.append(process)
        return process

    def train(self, address, rank=0, world_size=1, model="mlp", data="synthetic:128", steps=None, more=(), within=()):
        """A trainer in the background: one thread, and a small job by default. `within`: prefix of its command."""
        length = ["--steps", steps] if steps else ["--epochs", 1]
        return self.start_trainer("train", "--server", address, "--rank", rank, "--world-size", world_size, "--model", model,
                                  "--data", data, "--threads", 1, "--device", "cpu", *length, *more, within=within)

    def move_model(self, source, target, client, model):
        """Moves the model between daemons, while a client of numpy pushes zeros and so can quiesce."""
        command, values, zeros = self.start_psd("move", "--server", source.address, "--to", target.address), model.zeros(), model.zeros()

        def moved():
            client.pull(values)
            client.push(zeros)
            return not command.runs()

        until("the model has moved", moved)
        self.assert_ends(command)

    def endless_trainer(self, daemon, rank=0, world_size=1, more=()):
        """A trainer in the middle of its work, which does not finish within the test."""
        trainer = self.train(daemon.address, rank, world_size, steps=10_000_000, more=more)
        daemon.until_status(f"rank {rank} trains",
                            lambda status: any(each["rank"] == rank and each["step"] > 2 for each in status["trainers"]))
        return trainer

    def assert_ends(self, process, status=0):
        self.assertEqual(process.wait(), status, process.name)

    def assert_fails(self, process, *words):
        """A non-zero exit status, not a signal, and exactly one error line, which contains all the words."""
        status = process.wait()
        self.assertGreater(status, 0, f"{process.name} should have failed of its own, not ended with {status}:\n{process.out}{process.err}")
        complaints = [line for line in process.err.splitlines() if line.startswith(("psd: ", "psd-trainer: "))]
        self.assertEqual(len(complaints), 1, process.err)
        # Only that line and ordinary log lines, which start with a time.
        others = [line for line in process.err.splitlines() if line not in complaints and not line[:4].isdigit()]
        self.assertEqual(others, [], "lines that are neither the complaint nor the log's")
        for word in words:
            self.assertIn(word, complaints[0])
        return complaints[0]

    def assert_serves(self, daemon):
        """The daemon answers and, if psd-trainer is built, serves a trainer from start to end."""
        status = daemon.status()
        self.assertNotEqual(status["state"], "stopping")
        if TRAINER:
            self.assert_ends(self.train(daemon.address, world_size=status["world_size"] or 1, steps=2))
        self.assertTrue(daemon.runs())

    def assert_stops(self, daemon):
        """SIGTERM ends the daemon in an orderly way."""
        daemon.signal(signal.SIGTERM)
        self.assert_ends(daemon)


def main():
    """unittest.main() with the exit status that ctest expects if every test was skipped. Some Python versions do not
    count skipped classes."""
    if LONG_ONLY and not LONG:
        print("skipped: long: scripts/test --long")
        sys.exit(EXIT_SKIPPED)
    program = unittest.main(module="__main__", exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(EXIT_SKIPPED if result.skipped and len(result.skipped) >= result.testsRun else 0)
