"""Files that a daemon saves, read by the operator's commands and by common libraries."""

import json
import os
import struct
import subprocess

import processes

TENSORS = {"fc.weight": [3, 5], "fc.bias": [5], "scale": []}
SETTINGS = {"policy": "locked", "optimizer": '{"type":"adam"}', "shards": 2}
# Reads the exported file as a user's program would; exits with 77 if the packages are missing.
READER = """
import json, sys
try:
    import torch
    from safetensors.torch import load_file
except ModuleNotFoundError:
    sys.exit(77)
tensors = load_file(sys.argv[1])
module = torch.nn.Module()
for name, value in tensors.items():
    module.register_parameter(name.replace(".", "_"), torch.nn.Parameter(torch.zeros_like(value)))
module.load_state_dict({name.replace(".", "_"): value for name, value in tensors.items()})
print(json.dumps({name: [list(value.shape), value.flatten().tolist()] for name, value in tensors.items()}))
"""


def count(shape):
    elements = 1
    for size in shape:
        elements *= size
    return elements


def write_tensors(path, tensors):
    """A safetensors file with the values 0, 1, 2, …"""
    header, data = {}, b""
    for name, shape in tensors.items():
        begin = len(data) // 4
        values = struct.pack(f"<{count(shape)}f", *range(begin, begin + count(shape)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_tensors(path):
    """{name: (shape, values)} of a safetensors file, by its specification."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["shape"], list(struct.unpack(f"<{(end - begin) // 4}f", content[8 + length:][begin:end])))
    return tensors


class SavedFiles(processes.ProcessTest):
    def setUp(self):
        self.model = self.folder / "model.safetensors"
        self.saved = self.folder / "saved"
        write_tensors(self.model, TENSORS)

    def save(self):
        """A folder with the first checkpoint of a log."""
        durability = json.dumps({"type": "log", "path": str(self.saved)})
        self.assert_stops(self.daemon(durability=durability, model__file=str(self.model), **SETTINGS))

    def psd(self, *arguments):
        process = self.start_psd(*arguments)
        self.assert_ends(process)
        return process.out

    def test_an_export_is_the_model(self):
        self.save()
        exported = self.folder / "exported.safetensors"
        self.psd("export", self.saved, "--to", exported)
        self.assertEqual(read_tensors(exported), read_tensors(self.model))
        replayed = self.folder / "replayed.safetensors"
        self.assertIn("shards at update 0, 0", self.psd("replay", self.saved, "--to", replayed))
        self.assertEqual(replayed.read_bytes(), exported.read_bytes())

    def test_a_shard_is_a_safetensors_file(self):
        self.save()
        shard = read_tensors(next(self.saved.glob("checkpoint-*/shard-00000.safetensors")))
        self.assertEqual(set(shard), {"weights", "exp_avg", "exp_avg_sq"})
        self.assertEqual(shard["weights"][1][:15], [float(value) for value in range(15)])

    def test_inspect_shows_and_verifies(self):
        self.save()
        self.assertIn("checkpoint 1 of", self.psd("inspect", self.saved))
        (checkpoint,) = self.saved.glob("checkpoint-*")
        shown = self.psd("inspect", checkpoint)
        for words in ("fc.weight f32[3,5]", "optimizer adam", "policy locked", "all checksums valid"):
            self.assertIn(words, shown)
        self.assertIn("fc.weight f32[3,5]", self.psd("inspect", self.model))
        self.assertIn("0 records", self.psd("inspect", next(self.saved.glob("*.psdlog"))))
        shard = checkpoint / "shard-00001.safetensors"
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
        self.assert_fails(self.start_psd("inspect", checkpoint), "shard-00001.safetensors", "is damaged")
        self.assert_fails(self.start_psd("export", self.saved, "--to", "x"), "no whole checkpoint")

    def inspected(self, path, status=0):
        process = self.start_psd("inspect", "--json", path)
        self.assertEqual(process.wait(), status, process.err)
        (line,) = process.out.splitlines()
        document = json.loads(line)
        self.assertEqual(document["path"], str(path))
        self.assertEqual(document["error"] is None, status == 0)
        return document

    def test_inspect_of_versions(self):
        model = self.folder / "large.safetensors"  # so that a patch is smaller
        write_tensors(model, {"w": [10_000]})
        daemon = self.daemon(policy="locked", durability={"type": "log", "path": str(self.folder / "published")},
                             model={"file": str(model)}, publish={"keep": 4})
        for _ in range(2):
            done = self.run_psd("publish", "--server", daemon.address)
            self.assertEqual(done.returncode, 0, done.stderr)
        folder = self.folder / "published" / "versions"
        first, second = sorted(folder.glob("version-*"))
        shown = self.inspected(first)
        self.assertEqual((shown["kind"], shown["version"], shown["moment"]), ("version", 1, "snapshot"))
        self.assertEqual(shown["tensors"], [{"name": "w", "dtype": "F32", "shape": [10_000]}])
        (patch,) = folder.glob("*.psdpatch")
        shown = self.inspected(patch)
        self.assertEqual((shown["kind"], shown["from"], shown["to"]), ("patch", 1, 2))
        self.assertEqual([each["error"] for each in self.inspected(folder)["versions"]], [None, None])
        data = bytearray(second.read_bytes())
        data[-1] ^= 1
        second.write_bytes(data)
        self.assertRegex(self.inspected(second, 1)["error"], "is damaged: the checksum of tensor .* its header says")
        damaged = self.inspected(folder, 1)
        self.assertEqual([each["version"] for each in damaged["versions"]], [1, 2])
        self.assertIn(second.name, damaged["versions"][1]["error"])
        patch.write_bytes(patch.read_bytes()[:-1])
        self.assertIn("the patch is damaged", self.inspected(patch, 1)["error"])
        self.assertEqual(self.run_psd("inspect", folder).returncode, 1)

    def test_inspect_for_programs(self):
        self.save()
        (checkpoint,) = self.saved.glob("checkpoint-*")
        (segment,) = self.saved.glob("*.psdlog")
        shown = self.inspected(checkpoint)
        self.assertEqual(shown["kind"], "checkpoint")
        self.assertEqual(shown["manifest"], json.loads((checkpoint / "manifest.json").read_text()))
        self.assertEqual((shown["bases"], shown["samples_done"]), ([], None))
        shown = self.inspected(self.model)
        self.assertEqual((shown["kind"], [tensor["name"] for tensor in shown["tensors"]]), ("safetensors", list(TENSORS)))
        shown = self.inspected(segment)
        self.assertEqual((shown["kind"], shown["file"], shown["records"], shown["first_record"]), ("segment", segment.name, 0, None))
        self.assertEqual(shown["bytes"], segment.stat().st_size)
        shown = self.inspected(self.saved)
        self.assertEqual((shown["kind"], shown["log_errors"], shown["departed"]), ("folder", [], None))
        self.assertEqual([(each["number"], each["whole"], each["version"], each["error"]) for each in shown["checkpoints"]],
                         [(1, True, 0, None)])
        self.assertEqual([each["file"] for each in shown["segments"]], [segment.name])
        shard = checkpoint / "shard-00001.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1])
        for path in (checkpoint, self.saved):
            with self.subTest(damaged=path):
                self.assertIn(shard.name, self.inspected(path, 1)["error"])
        self.assertFalse(self.inspected(self.saved, 1)["checkpoints"][0]["whole"])
        absent = self.inspected(self.folder / "absent", 1)
        self.assertIsNone(absent["kind"])
        self.assertIn("there is no", absent["error"])

    def test_a_manifest_stands_for_its_checkpoint(self):
        self.save()
        (checkpoint,) = self.saved.glob("checkpoint-*")
        self.assertEqual(self.psd("inspect", checkpoint / "manifest.json"), self.psd("inspect", checkpoint))

    def test_an_export_over_a_private_file_is_private(self):
        self.save()
        exported = self.folder / "private.safetensors"
        exported.touch(0o600)
        self.psd("export", self.saved, "--to", exported)
        self.assertEqual(exported.stat().st_mode & 0o777, 0o600)
        self.assertEqual(read_tensors(exported), read_tensors(self.model))
        self.assert_fails(self.start_psd("export", self.saved, "--to", "-"), "'-': only files are written, not standard output")

    def test_paths_of_another_kind(self):
        self.save()
        (checkpoint,) = self.saved.glob("checkpoint-*")
        exported = self.folder / "x.safetensors"
        self.psd("export", checkpoint / "manifest.json", "--to", exported)
        self.assertEqual(set(read_tensors(exported)), set(TENSORS))
        self.assert_fails(self.start_psd("export", exported, "--to", "y"), f"'{exported}' is a file; expected a checkpoint or")
        self.assert_fails(self.start_psd("replay", checkpoint), f"'{checkpoint}' is one checkpoint; expected the folder")
        self.assert_fails(self.start_psd("replay", exported), f"'{exported}' is a file; expected the folder")

    def test_damage_and_absence_are_failures_not_wrong_usage(self):
        self.save()
        (checkpoint,) = self.saved.glob("checkpoint-*")
        (segment,) = self.saved.glob("*.psdlog")
        absent = self.folder / "absent"
        exported = self.folder / "x.safetensors"
        for arguments in (("inspect", absent), ("export", absent, "--to", "x"), ("replay", absent)):
            process = self.start_psd(*arguments)
            self.assert_fails(process, f"there is no '{absent}'")
            self.assertEqual(process.wait(), 1)
        self.assertNotIn(".tmp.", self.assert_fails(self.start_psd("export", self.saved, "--to", absent / "x"), f"'{absent}/x'"))
        self.psd("export", self.saved, "--to", exported)
        for path, at in ((checkpoint / "manifest.json", 40), (segment, 3), (exported, 12)):
            content = bytearray(path.read_bytes())
            content[at] ^= 1
            path.write_bytes(content)
            with self.subTest(path=path):
                process = self.start_psd("inspect", path)
                self.assert_fails(process, path.name)
                self.assertEqual(process.wait(), 1)

    def test_a_folder_without_checkpoints(self):
        empty = self.folder / "empty"
        empty.mkdir()
        for arguments in (("inspect", empty), ("replay", empty), ("export", empty, "--to", "x")):
            with self.subTest(arguments=arguments):
                process = self.start_psd(*arguments)
                self.assert_fails(process, f"there is no whole checkpoint in '{empty}'")
                self.assertEqual(process.wait(), 1)

    def test_python_reads_an_export(self):
        if "PSD_PYTHON" not in os.environ:
            self.skipTest("no python with torch is named")
        self.save()
        exported = self.folder / "exported.safetensors"
        self.psd("export", self.saved, "--to", exported)
        done = subprocess.run([os.environ["PSD_PYTHON"], "-c", READER, str(exported)], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=False)
        if done.returncode == 77:
            self.skipTest("python has no torch or no safetensors")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({name: tuple(value) for name, value in json.loads(done.stdout).items()},
                         read_tensors(self.model))

    def test_a_second_daemon_is_kept_out(self):
        durability = json.dumps({"type": "checkpoint", "path": str(self.saved)})
        self.daemon(durability=durability)
        second = self.start_psd("--listen", "tcp://127.0.0.1:0", "--set", f"durability={durability}")
        self.assert_fails(second, "durability.path", "in use by another daemon")


if __name__ == "__main__":
    processes.main()
