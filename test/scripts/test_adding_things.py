"""The C++ of docs/internals/adding_things.md compiles against the current sources."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

REPO = pathlib.Path(__file__).resolve().parents[2]
FILE = re.compile(r"`([\w/]+\.(?:h|cc))`:\n\n```cpp\n(.*?)```", re.DOTALL)


def flags_of(name):
    """The compiler command for a file in that place, up to the option that names the object."""
    commands = json.loads(pathlib.Path(os.environ["PSD_COMPILE_COMMANDS"]).read_text(encoding="utf-8"))
    for folder in pathlib.Path(name).parents:
        for entry in commands:
            if f"/{folder}/CMakeFiles/" in entry["command"] and entry["command"].endswith((".cc", ".cxx")):
                words = shlex.split(entry["command"])
                words = words[1:] if words[0].endswith("ccache") else words
                return [word for word in words[: words.index("-o")] if not word.startswith("-M")]
    raise AssertionError(f"nothing near {name} is compiled")


class AddingThings(unittest.TestCase):
    def test_each_file_of_the_page_compiles(self):
        files = dict(FILE.findall((REPO / "docs/internals/adding_things.md").read_text(encoding="utf-8")))
        included = {name for text in files.values() for name in files if f'#include "{name}"' in text}
        self.assertGreaterEqual(len(files), 5, "the page's files are no longer found")
        for name in (name for name in files if (REPO / name).exists()):
            self.assertEqual(files[name], (REPO / name).read_text(encoding="utf-8"), f"the page shows {name} otherwise than it is")
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            for name in (name for name in files if name not in included and not name.startswith("test/")):
                with self.subTest(name):
                    command = flags_of(name)
                    command[1:1] = [f"-I{folder}", "-fsyntax-only"]
                    run = subprocess.run([*command, "-x", "c++", str(pathlib.Path(folder, name))], text=True, capture_output=True,
                                         check=False)
                    self.assertEqual(run.returncode, 0, run.stderr)


if __name__ == "__main__":
    unittest.main()
