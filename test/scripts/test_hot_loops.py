"""The loops over all values are compiled with -O3, most other code is not. The linker keeps one copy of an inline
function: that of a loop must have internal linkage, or exist in no object of a lower level, or a program may run the
slower copy.

PSD_COMPILE_COMMANDS names the compile_commands.json of a Release build, PSD_LOOPS the sources with loops.
"""

import collections
import json
import os
import pathlib
import re
import shlex
import subprocess
import unittest

COMMANDS = os.environ.get("PSD_COMPILE_COMMANDS", "")
LOOPS = {str(pathlib.Path(path).resolve()) for path in os.environ.get("PSD_LOOPS", "").split(":") if path}  # of psd_loops()
NM_S = 60
LOOP_BYTES_MIN = 64  # of code; smaller functions return a constant or a member
# Functions of the project, and looping algorithms of the standard library.
LOOPING = re.compile(r"\bpsd::|std::__(introsort|introselect|adjust_heap|insertion_sort|unguarded|merge|heap_select|push_heap)")
FOLDERS = ("common/", "server/", "trainer/")


def objects():
    """Yields (source, object file, optimization level) for each object of the programs that has been built."""
    for entry in json.loads(pathlib.Path(COMMANDS).read_text(encoding="utf-8")):
        words = shlex.split(entry["command"])
        if "-o" not in words or not entry["file"].endswith((".cc", ".cxx")):
            continue
        name = words[words.index("-o") + 1]
        path = pathlib.Path(entry["directory"]) / name
        levels = [word for word in words if re.fullmatch(r"-O\w+", word)]
        if name.startswith(FOLDERS) and path.exists() and levels:
            yield entry["file"], path, levels[-1]


def inline_functions(path):
    """The demangled names of the functions that the linker merges with copies in other objects, without accessors."""
    done = subprocess.run(["nm", "-C", "-S", "--defined-only", path], stdout=subprocess.PIPE, text=True, timeout=NM_S, check=True)
    symbols = (line.split(" ", 3) for line in done.stdout.splitlines())
    return {symbol[3] for symbol in symbols if len(symbol) == 4 and symbol[2] == "W" and int(symbol[1], 16) >= LOOP_BYTES_MIN}


@unittest.skipUnless(COMMANDS and LOOPS, "PSD_COMPILE_COMMANDS and PSD_LOOPS name no build and no loops")
class HotLoops(unittest.TestCase):
    def test_no_loop_has_a_slower_copy(self):
        loops, others, read = collections.defaultdict(list), {}, set()
        for source, path, level in objects():
            if source in LOOPS:
                read.add(source)
                self.assertEqual(level, "-O3", source)
                for name in inline_functions(path):
                    if LOOPING.search(name):
                        loops[name].append(source)
            elif level != "-O3":
                for name in inline_functions(path):
                    others[name] = path
        self.assertEqual(read, LOOPS)
        self.assertGreater(len(others), 100, "no objects of the control plane were found")
        slower = [f"{', '.join(sources)}: {name} is also in {others[name]}" for name, sources in loops.items() if name in others]
        self.assertEqual(slower, [])


if __name__ == "__main__":
    unittest.main()
