"""The programs that these scripts measure: started in a temporary folder, waited for with a bound, ended with it."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

READY_S = 30  # for a daemon to listen, or to end
EXIT_NO_GPU = 4  # of psd-bench-cuda
PROGRAM_S = 120  # beyond the requested measurement: start, first touch of memory, warm-up


class Failed(Exception):
    """A program did not work as expected; one line says why."""


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def certificate_of(address, folder):
    """Creates in `folder` a self-signed certificate for a daemon at this IP address, and its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    done = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                           "/CN=psd", "-addext", f"subjectAltName=IP:{address}", "-keyout", key, "-out", certificate],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise Failed(f"openssl: {last_line(done.stderr)}")
    return certificate, key


class Programs:
    """The paths of the programs, and the duration of each measurement."""

    def __init__(self, build, seconds, device, python):
        self.folder = pathlib.Path(build) / "bin"
        self.seconds = seconds
        self.device = device
        self.python = python
        for name in ("psd", "psd-trainer", "psd-bench-references", "psd-bench-rows"):
            if not (self.folder / name).is_file():
                raise Failed(f"{self.folder / name} is missing: build it first (cmake --build {build})")

    def run(self, arguments, seconds):
        """The program's output, which must be one JSON object in its last line."""
        arguments = [str(argument) for argument in arguments]
        name = pathlib.Path(arguments[0]).name
        try:
            done = subprocess.run(arguments, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                  timeout=seconds + PROGRAM_S, check=False)
        except subprocess.TimeoutExpired:
            raise Failed(f"{name} {arguments[1]} did not end within {seconds + PROGRAM_S:.0f} s") from None
        if done.returncode != 0:
            raise Failed(f"{name} {arguments[1]}: {last_line(done.stderr)}")
        return json.loads(last_line(done.stdout))

    def reference(self, command, **flags):
        """A run of psd-bench-references; flags are named like its options."""
        flags.setdefault("seconds", self.seconds)
        options = [item for name, value in flags.items() for item in (f"--{name}", value)]
        return self.run([self.folder / "psd-bench-references", command, *options], flags["seconds"])

    def rows_in_process(self, measure, **flags):
        """The last line of a run of psd-bench-rows."""
        options = [item for name, value in flags.items() for item in (f"--{name}", value)]
        return self.run([self.folder / "psd-bench-rows", "--measure", measure, *options], PROGRAM_S)

    def patches(self):
        """A run of psd-bench-patches."""
        return self.run([self.folder / "psd-bench-patches", "--seconds", self.seconds], 10 * self.seconds)

    def sparse_files(self, size):
        """A run of psd-bench-sparse-files."""
        return self.run([self.folder / "psd-bench-sparse-files", "--size", size, "--seconds", self.seconds], PROGRAM_S)

    def sparse_training(self, file, size):
        """A run of psd-bench-sparse-training, which writes the file."""
        return self.run([self.folder / "psd-bench-sparse-training", file, "--size", size], PROGRAM_S)

    def published(self, **flags):
        """A run of test/bench/published.py; flags are named like its options."""
        script = pathlib.Path(__file__).resolve().parents[1] / "test" / "bench" / "published.py"
        options = [item for name, value in flags.items() for item in (f"--{name}", value)]
        return self.run([self.python, script, "--psd", self.folder / "psd", "--package", self.package(), *options], 600)  # 16 readers of a slow link

    def shared_flip(self, size):
        """A run of test/bench/shared_flip.py."""
        script = pathlib.Path(__file__).resolve().parents[1] / "test" / "bench" / "shared_flip.py"
        return self.run([self.python, script, "--psd", self.folder / "psd", "--package", self.package(), "--size", size], PROGRAM_S)

    def torch_rpc(self, size):
        script = pathlib.Path(__file__).resolve().parents[1] / "test" / "bench" / "torch_rpc.py"
        return self.run([self.python, script, "--size", size, "--seconds", self.seconds], self.seconds)

    def torch_rpc_train(self, warm, steps):
        script = pathlib.Path(__file__).resolve().parents[1] / "test" / "bench" / "torch_rpc_train.py"
        return self.run([self.python, script, "--warm", warm, "--steps", steps], PROGRAM_S)

    def torch_dlrm(self, batch, steps=None, scale=100):
        """For the seconds of a measurement, or for `steps` steps, which give an AUC."""
        script = pathlib.Path(__file__).resolve().parents[1] / "test" / "bench" / "torch_dlrm.py"
        length = ["--seconds", self.seconds] if steps is None else ["--steps", steps]
        return self.run([self.python, script, *length, "--batch-size", batch, "--scale", scale], self.seconds)

    def training_steps(self, config, *arguments):
        """One trainer's --metrics of each step, over a Unix socket."""
        with self.daemon(config) as daemon, tempfile.TemporaryDirectory(prefix="psd-bench-") as folder:
            metrics = pathlib.Path(folder) / "metrics"
            program = [str(self.folder / "psd-trainer"), "train", "--server", daemon.address["unix"], "--rank", "0",
                       "--world-size", "1", "--metrics", str(metrics), *map(str, arguments)]
            try:
                done = subprocess.run(program, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PROGRAM_S, check=False)
            except subprocess.TimeoutExpired:
                raise Failed(f"psd-trainer train did not end within {PROGRAM_S} s") from None
            if done.returncode != 0:
                raise Failed(f"psd-trainer train: {last_line(done.stderr)}")
            return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]

    def has_package(self):
        """Whether the build has the Python package, and there is a python3 with torch to run it."""
        return bool(self.python) and any(self.package().glob("psd/_psd*.so"))

    def package(self):
        return self.folder.parent / "python"

    def python_client(self, address, operation, **flags):
        """A run of test/bench/python_client.py against the daemon at `address`; flags are named like its options."""
        flags.setdefault("seconds", self.seconds)
        script = pathlib.Path(__file__).resolve().parents[1] / "test" / "bench" / "python_client.py"
        options = [item for name, value in flags.items() for item in (f"--{name}", value)]
        return self.run([self.python, script, operation, "--server", address, "--package", self.package(), *options], flags["seconds"])

    def cuda_kernels(self):
        """The output of psd-bench-cuda; None without that program or a GPU."""
        program = self.folder / "psd-bench-cuda"
        if not program.is_file():
            return None
        number = self.device.partition(":")[2] or "0"
        done = subprocess.run([program, "--json", "--device", number], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=PROGRAM_S, check=False)
        if done.returncode == EXIT_NO_GPU:
            return None
        if done.returncode != 0:
            raise Failed(last_line(done.stderr))
        return json.loads(last_line(done.stdout))

    def trainer_arguments(self, address, operation, **flags):
        flags.setdefault("seconds", self.seconds)
        options = []
        for name, value in flags.items():
            options += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        return [str(self.folder / "psd-trainer"), "bench", operation, "--server", address, "--json", *options]

    def trainer(self, address, operation, **flags):
        """A run of psd-trainer bench against the daemon at `address`."""
        return self.run(self.trainer_arguments(address, operation, **flags), float(flags.get("seconds", self.seconds)))

    def fresh(self, socket, operation, config=None, **flags):
        """The same with a daemon of its own."""
        with self.daemon(config) as daemon:
            return self.trainer(daemon.address[socket], operation, **flags)

    @contextlib.contextmanager
    def daemon(self, config=None):
        """A psd that listens on a Unix socket and on TCP; killed at the end if it does not stop."""
        with tempfile.TemporaryDirectory(prefix="psd-bench-") as folder:
            daemon = Daemon(self.folder / "psd", pathlib.Path(folder), {"device": self.device, **(config or {})})
            try:
                daemon.await_ready()
                yield daemon
            finally:
                daemon.end()


class Daemon:
    """A running psd, with its output in `folder`. `address` holds its addresses by transport, that of TCP once it is
    ready. `within`: prefix of its command."""

    def __init__(self, psd, folder, config, within=()):
        self.psd = psd
        self.socket = folder / "psd.sock"
        self.port_file = folder / "port"
        self.log = folder / "log"
        self.address = {"unix": f"unix://{self.socket}"}
        file = folder / "config.json"
        file.write_text(json.dumps({"listen": [self.address["unix"], "tcp://127.0.0.1:0"], "log": {"level": "warn"}, **config}),
                        encoding="utf-8")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([*within, psd, "--config", file, "--port-file", self.port_file],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def await_ready(self):
        deadline = time.monotonic() + READY_S
        while not (self.port_file.exists() and self.port_file.read_text(encoding="utf-8").strip()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"psd did not start: {last_line(self.log.read_text(encoding='utf-8', errors='replace'))}")
            time.sleep(0.002)
        self.address["tcp"] = f"tcp://127.0.0.1:{self.port_file.read_text(encoding='utf-8').strip()}"

    def status(self):
        done = subprocess.run([self.psd, "status", "--json", "--server", self.address["unix"]],
                              capture_output=True, text=True, timeout=READY_S, check=False)
        if done.returncode != 0:
            raise Failed(f"psd status: {last_line(done.stderr)}")
        return json.loads(done.stdout)

    def resident_peak(self):
        """The peak of resident memory, in bytes."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

    def end(self):
        """Stops or kills it. Returns its exit status; None if it did not stop."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(READY_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def processor_seconds(pid):
    """Processor seconds of all threads of a program so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def background(arguments):
    """A background program; killed at the end."""
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
