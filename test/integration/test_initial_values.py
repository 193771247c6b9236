"""A model initialized from a file: a safetensors file, or a module that Python saved as TorchScript."""

import json
import os
import struct
import subprocess

import processes

# The shapes of the model "mlp".
SHAPES = {"fc1.weight": [256, 784], "fc1.bias": [256], "fc2.weight": [10, 256], "fc2.bias": [10]}
# Saves a module with these parameters, and a buffer, under argv[1]; half of them as float64. Exits with 77 without
# torch.
SCRIPT = """
import sys
try:
    import torch
except ModuleNotFoundError:
    sys.exit(77)

class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(784, 256)
        self.fc2 = torch.nn.Linear(256, int(sys.argv[2])).double()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)).double())

module = Mlp()
with torch.no_grad():
    for index, parameter in enumerate(module.parameters()):
        parameter.copy_(((torch.arange(parameter.numel()) % 251 + 1) / 1024 * (index + 1)).reshape(parameter.shape))
torch.jit.trace(module, torch.zeros(1, 784)).save(sys.argv[1])
"""


def values_of(index, count):
    """None of them 0, so that the smallest step would change every one."""
    return [(place % 251 + 1) / 1024 * (index + 1) for place in range(count)]


def elements(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def expected():
    return {name: values_of(index, elements(shape)) for index, (name, shape) in enumerate(SHAPES.items())}


def write_safetensors(path, tensors):
    """Writes {name: (shape, values)}, or with other types {name: (shape, type, bytes)}."""
    header, data = {}, b""
    for name, (shape, *content) in tensors.items():
        dtype, packed = content if len(content) == 2 else ("F32", struct.pack(f"<{len(content[0])}f", *content[0]))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class InitialValues(processes.ProcessTest):
    def start(self):
        """A learning rate that changes nothing, so that the saved values are the initial ones."""
        return self.daemon(listen=(self.unix_address(),), optimizer='{"type":"sgd","lr":1e-30}', save=str(self.folder / "end.safetensors"))

    def train(self, daemon, init, world_size=1, rank=0):
        return super().train(daemon.address, rank, world_size, steps=2, more=["--init", init])

    def script(self, classes=10):
        path = self.folder / f"begin-{classes}.pt"
        if "PSD_PYTHON" not in os.environ:
            self.skipTest("no python with torch is named")
        done = subprocess.run([os.environ["PSD_PYTHON"], "-c", SCRIPT, path, str(classes)], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)
        if done.returncode == 77:
            self.skipTest("python has no torch")
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def safetensors(self, **changes):
        path = self.folder / "begin.safetensors"
        tensors = {name: (shape, expected()[name]) for name, shape in SHAPES.items()}
        write_safetensors(path, {**tensors, "other": ([1], [7.0]), **changes})
        return path

    def assert_begins_with(self, init):
        daemon = self.start()
        trainers = [self.train(daemon, init, 2, rank) for rank in range(2)]
        for trainer in trainers:
            self.assert_ends(trainer)
        told = [trainer.err.count("is not used, as the model has values") for trainer in trainers]
        self.assertEqual(sorted(told), [0, 1])  # one of them was the initializer
        self.assert_stops(daemon)
        ended = processes.safetensors(self.folder / "end.safetensors")
        self.assertEqual({*ended}, {*SHAPES})
        for name, values in expected().items():
            found = list(ended[name][1])
            self.assertTrue(found == values, f"{name} begins with {found[:3]} instead of {values[:3]}")

    def test_safetensors(self):
        self.assert_begins_with(self.safetensors())

    def test_tensors_that_the_model_does_not_take_are_of_any_type(self):
        self.assert_begins_with(self.safetensors(**{"position_ids": ([1, 4], "I64", bytes(32)), "batches": ([], "I64", bytes(8)),
                                                    "scaled": ([0], "F8_E4M3", b""), "half": ([2], "BF16", bytes(4)),
                                                    "mask": ([3], "BOOL", bytes(3)), "a name": ([1], [7.0])}))

    def test_a_daemon_takes_the_tensors_of_f32(self):
        path = self.safetensors(position_ids=([1, 4], "I64", bytes(32)))
        daemon = self.daemon(listen=(self.unix_address(),), model__file=str(path))
        self.assertIn("tensor position_ids I64[1,4] is not read: psd reads F32, BF16 and F16", daemon.err)
        shown = self.start_psd("inspect", path)
        self.assert_ends(shown)
        self.assertIn("position_ids I64[1,4] is not read: psd reads F32, BF16 and F16", shown.out)

    def test_torch_script(self):
        self.assert_begins_with(self.script())

    def refuse(self, init, *words):
        with self.subTest(init=init):
            daemon_that_is_not_asked = self.unix_address("none.sock")
            self.assert_fails(super().train(daemon_that_is_not_asked, steps=2, more=["--init", init]), "--init", f"'{init}'", *words)

    def test_what_does_not_fit(self):
        self.refuse(self.folder / "none.pt", "No such file or directory")
        self.refuse(self.folder / "none.safetensors", "No such file or directory")
        self.refuse(self.write("text.pt", "no archive"), "is not a TorchScript file, which torch.jit.save writes")
        self.refuse(self.write("text.safetensors", "no header"))
        self.refuse(self.safetensors(**{"fc2.bias": ([11], [0.0] * 11)}), "tensor fc2.bias f32[10]: is fc2.bias f32[11] in")
        self.refuse(self.safetensors(**{"fc2.bias": ([10], [float("nan")] * 10)}), "tensor fc2.bias f32[10]: holds NaN or infinity in")
        self.refuse(self.safetensors(**{"fc2.bias": ([10], "I16", bytes(20))}),
                    "tensor fc2.bias f32[10]: is fc2.bias I16[10] in", "psd reads F32, BF16 and F16")
        write_safetensors(self.folder / "one.safetensors", {"fc1.bias": ([256], [0.0] * 256)})
        self.refuse(self.folder / "one.safetensors", "tensor fc1.weight f32[256,784]: not in")

    def test_a_script_that_does_not_fit(self):
        self.refuse(self.script(classes=11), "tensor fc2.weight f32[10,256]: is fc2.weight f32[11,256] in")


if __name__ == "__main__":
    processes.main()
