"""The program of docs/reference/client.md (PSD_LINE_SOURCE) and the example of trainer/executor/remote (PSD_DIGITS_SOURCE), built outside
the source tree against installed libraries."""

import os
import shutil

CMAKE = os.environ["PSD_CMAKE"]

PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(line LANGUAGES C CXX)
find_package(psd 0.2 CONFIG REQUIRED)
add_executable(line line.cc headers.cc)
target_link_libraries(line PRIVATE psd::client)
add_executable(digits digits.cc)
target_link_libraries(digits PRIVATE psd::remote)
"""


def build(command, folder, prefix, headers=()):
    """Builds the programs, one of them with a file that includes those headers. `command` runs a command line and fails
    if that fails. Returns the build folder."""
    source = folder / "line"
    source.mkdir()
    for name in ("line", "digits"):
        shutil.copy(os.environ[f"PSD_{name.upper()}_SOURCE"], source / f"{name}.cc")
    (source / "headers.cc").write_text("".join(f'#include "{name}"\n' for name in headers), encoding="utf-8")
    (source / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
    command(CMAKE, "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    command(CMAKE, "--build", source / "build", "--parallel", 2)
    return source / "build"


def run_line(test, program):
    """A daemon, and a line that the program fits with it."""
    daemon = test.daemon()
    trainer = test.start_program(program, daemon.address, 0, 1)
    test.assert_ends(trainer)
    test.assertIn("y = 2.000 x + 1.000", trainer.out)
    test.assert_stops(daemon)
