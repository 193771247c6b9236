"""A new user's first ten minutes, as described in the documents: tokens and TLS for a daemon, two PyTorch processes
that train with it from Python, the page, and the model loaded in PyTorch.

Daemon and Python package are those of this build; if PSD_WHEEL names a wheel (scripts/wheel makes one), it is first
installed into a virtual environment, and they are those of the wheel.
"""

import json
import os
import pathlib
import ssl
import subprocess
import sys
import unittest
import urllib.request
from unittest import mock

import certificates
import processes
from safetensors_file import torch_tensors

try:
    import torch
    from torch import nn
    MISSING = ""
except ModuleNotFoundError:
    MISSING = "Python's torch is missing: scripts/setup installs it"

WHEEL = os.environ.get("PSD_WHEEL", "")
WHEEL_BYTES_MAX = 15 * 2**20
WORLD = 2
STEPS = 200

# A user's program. The two lines of psd.torch are those of README.md.
PROGRAM = """
import sys
import torch
from torch import nn
import psd.torch

torch.manual_seed(1)
model = nn.Linear(8, 1)
optimizer = psd.torch.Optimizer(model, sys.argv[1], token_file=sys.argv[2], tls_ca=sys.argv[3])
generator = torch.Generator().manual_seed(optimizer.rank)
for _ in range(int(sys.argv[4])):
    inputs = torch.randn(32, 8, generator=generator)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    loss.backward()
    optimizer.step(samples=len(inputs))
optimizer.close()
print(f"rank {optimizer.rank}: loss {loss.item():.6f}")
"""


@unittest.skipIf(MISSING, MISSING)
class FirstMinutes(processes.ProcessTest):
    def ran(self, *command, environment=None):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=processes.WAIT_S, check=False, cwd=self.folder, env={**os.environ, **(environment or {})})
        self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def python(self):
        """The interpreter that has the package, and additions to its environment."""
        if not WHEEL:
            return sys.executable, {}
        self.ran(sys.executable, "-m", "venv", self.folder / "venv")
        python, alone = self.folder / "venv" / "bin" / "python", {"PYTHONPATH": ""}  # excludes the package of this build
        self.ran(python, "-m", "pip", "install", "--no-deps", pathlib.Path(WHEEL).resolve(), environment=alone)
        # PyTorch is installed for this interpreter.
        installed = pathlib.Path(self.ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", environment=alone).strip())
        (installed / "torch.pth").write_text(f"{pathlib.Path(torch.__file__).parents[1]}\n")
        self.assertIn(str(installed), self.ran(python, "-c", "import psd; print(psd.__file__)", environment=alone))
        patch = mock.patch.object(processes, "PSD", str(python.parent / "psd"))
        patch.start()
        self.addCleanup(patch.stop)
        return python, alone

    def asked(self, daemon, path, token, authority):
        request = urllib.request.Request(f"{daemon.page}{path}", headers={"Authorization": f"Bearer {token.read_text().strip()}"})
        context = ssl.create_default_context(cafile=authority.path)
        with urllib.request.urlopen(request, timeout=processes.WAIT_S, context=context) as answer:
            return answer.read().decode()

    @unittest.skipUnless(WHEEL, "PSD_WHEEL names no wheel")
    def test_what_a_wheel_has(self):
        python, environment = self.python()
        share = self.folder / "venv" / "share"
        self.assertTrue((share / "man/man1/psd.1.gz").is_file())
        self.ran(processes.PSD, "check", share / "psd/configs/hogwild.json")
        version = self.ran(python, "-c", "import psd; print(psd.__version__)", environment=environment).strip()
        self.assertEqual(self.ran(processes.PSD, "--version").split()[1], version)
        self.assertLess(pathlib.Path(WHEEL).stat().st_size, WHEEL_BYTES_MAX)

    def test_ten_minutes(self):
        python, environment = self.python()
        trainer_token, reader_token = self.make_token_file("pool", "trainer"), self.make_token_file("looker", "reader")
        authority = certificates.Authority(self.folder)
        certificate, key = authority.sign("server", alternatives="IP:127.0.0.1")
        daemon = self.daemon("--http", "tls://127.0.0.1:0", listen=("tls://127.0.0.1:0",), policy="locked",
                             optimizer='{"type":"sgd","lr":0.05}',
                             tls={"certificate": str(certificate), "key": str(key)}, auth={"tokens": str(self.folder / "tokens")})

        program = self.write("train.py", PROGRAM)
        trainers = []
        for rank in range(WORLD):
            trainer = processes.Process(self.folder, f"trainer-{rank}",
                                        [python, program, daemon.address, trainer_token, authority.path, STEPS],
                                        {**environment, "RANK": str(rank), "WORLD_SIZE": str(WORLD)})
            self.processes.append(trainer)
            trainers.append(trainer)

        # During training, or just after: the page's content, which requires a token.
        self.assertIn("<title>psd", self.asked(daemon, "/", reader_token, authority))
        processes.until("the page's status has the model",
                        lambda: json.loads(self.asked(daemon, "/api/status.json", reader_token, authority))["model"])
        for trainer in trainers:
            self.assert_ends(trainer)
        losses = [float(trainer.out.split("loss ")[1]) for trainer in trainers]
        status = json.loads(self.asked(daemon, "/api/status.json", reader_token, authority))
        self.assertEqual({shard["version"] for shard in status["shards"]}, {WORLD * STEPS})

        model = self.folder / "model.safetensors"
        self.ran(processes.PSD, "export", "--server", daemon.address, "--token-file", reader_token, "--tls-ca", authority.path,
                 "--to", model)
        trained = nn.Linear(8, 1)
        trained.load_state_dict(torch_tensors(model))
        inputs = torch.randn(256, 8, generator=torch.Generator().manual_seed(9))
        loss = nn.functional.mse_loss(trained(inputs), inputs.sum(1, keepdim=True)).item()
        self.assertLess(loss, 1e-3)
        self.assertLess(max(losses), 1e-2)


if __name__ == "__main__":
    processes.main()
