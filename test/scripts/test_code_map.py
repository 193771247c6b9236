"""docs/internals/code_map.md names the folders, the threads and the files that there are."""

import pathlib
import re
import subprocess
import unittest

REPO = pathlib.Path(__file__).resolve().parents[2]
TEXT = (REPO / "docs/internals/code_map.md").read_text(encoding="utf-8")
TREES = ("common", "server", "trainer", "test")
FILE = re.compile(r"`((?:[\w]+/)*\w+\.(?:h|cc|cu|cuh|capnp))`")
THREAD = re.compile(r'pthread_setname_np\(pthread_self\(\), \(?"(psd-[a-z-]+)"')


def tracked():
    listed = subprocess.run(["git", "-C", REPO, "ls-files", "-zco", "--exclude-standard"], check=True, capture_output=True, text=True).stdout
    return [path for path in listed.split("\0") if path and (REPO / path).is_file()]


class CodeMap(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = tracked()

    def test_folders(self):
        folders = {"/".join(path.split("/")[:depth]) for path in self.files for depth in range(1, path.count("/") + 1)}
        rows = [line.split(" | ")[0] for line in TEXT.splitlines() if line.startswith("| `")]
        named = {folder for row in rows for folder in re.findall(r"`([\w/]+)`", row)}
        self.assertEqual(set(), named - folders, "folders that do not exist")
        wanted = {folder for folder in folders if folder.count("/") == 1 and folder.startswith(tuple(f"{tree}/" for tree in TREES))}
        self.assertEqual(set(), wanted - named, "folders without a row")

    def test_threads(self):
        sources = (REPO / path for path in self.files if path.endswith(".cc") and not path.startswith("test/"))
        threads = {name.rstrip("-") for source in sources for name in THREAD.findall(source.read_text(encoding="utf-8"))}
        named = {name.removesuffix("-N") for name in re.findall(r"`(psd-[\w-]+)`", TEXT)} - {"psd-trainer", "psd-executor"}
        self.assertEqual(threads, named)

    def test_files(self):
        for name in FILE.findall(TEXT):
            with self.subTest(name):
                self.assertTrue(any(path == name or "/" not in name and path.endswith(f"/{name}") for path in self.files))


if __name__ == "__main__":
    unittest.main()
