"""PSD_CUDA with an nvcc that is missing, too old, or incompatible with the host compiler: NVCC builds without CUDA and
reports the reason, ON fails. AUTO builds without CUDA if there is no GPU."""

import os
import pathlib
import subprocess
import tempfile
import unittest

REPO = pathlib.Path(__file__).resolve().parents[2]
CMAKE = os.environ.get("PSD_CMAKE", "cmake")
NVCC = os.environ.get("PSD_NVCC", "")
CMAKE_S = 120

PROJECT = f"""cmake_minimum_required(VERSION 3.22)
project(try LANGUAGES CXX)
include({REPO}/server/store/cuda/toolkit.cmake)
message(STATUS "CUDA: ${{PSD_HAVE_CUDA}}")
"""
TOO_OLD = "echo 'Cuda compilation tools, release 11.8, V11.8.89'"
AT_ODDS = """
case $1 in
--version) echo 'Cuda compilation tools, release 12.2, V12.2.140' ;;
*) printf 'In file included from x.h:3:\\nhost_config.h:143:2: error: -- unsupported GNU version! gcc 13 and later\\n' >&2; exit 1 ;;
esac"""
NOT_NVCC = "exit 3"


class CudaToolkit(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="psd-cuda-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")

    def configure(self, cuda, nvcc=None, **environment):
        """Configures the project with that PSD_CUDA; returns the exit status and CMake's output, in one line."""
        flags = [f"-DCMAKE_CUDA_COMPILER={nvcc}"] if nvcc else []
        done = subprocess.run([CMAKE, "-S", self.root, "-B", self.root / "build", f"-DPSD_CUDA={cuda}", *flags],
                              env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=CMAKE_S, check=False)
        return done.returncode, " ".join(done.stdout.split())

    def fake(self, script, name="nvcc"):
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def assert_left_out(self, why, **how):
        status, said = self.configure("NVCC", **how)
        self.assertEqual(status, 0, said)
        self.assertIn("CUDA: OFF", said)
        self.assertIn("CMake Warning", said)
        self.assertIn("psd is built without CUDA", said)
        self.assertIn(why, said)
        status, said = self.configure("ON", **how)
        self.assertEqual(status, 1, said)
        self.assertIn("PSD_CUDA=ON, but", said)
        self.assertIn(why, said)

    def test_one_that_is_too_old(self):
        nvcc = self.fake(TOO_OLD)
        self.assert_left_out("is of CUDA 11.8, and C++20 needs 12.0 or later", nvcc=nvcc)

    def test_one_that_does_not_take_the_host_compiler(self):
        nvcc = self.fake(AT_ODDS)
        self.assert_left_out("error: -- unsupported GNU version! gcc 13 and later", nvcc=nvcc)

    def test_one_that_is_none(self):
        self.assert_left_out("names no release", nvcc=self.fake(NOT_NVCC))

    def test_one_of_the_environment(self):
        self.assert_left_out("is of CUDA 11.8", CUDACXX=str(self.fake(TOO_OLD)))

    def test_off_asks_no_nvcc(self):
        status, said = self.configure("OFF", nvcc=self.fake(f"touch {self.root}/asked"))
        self.assertEqual(status, 0, said)
        self.assertIn("CUDA: OFF", said)
        self.assertNotIn("CMake Warning at", said)
        self.assertFalse((self.root / "asked").exists())

    def test_auto_needs_a_gpu(self):
        nvcc = self.fake(f"touch {self.root}/asked\n{TOO_OLD}")
        for smi in ("exit 9", "echo 'No devices were found'"):
            self.fake(smi, "nvidia-smi")
            status, said = self.configure("AUTO", nvcc=nvcc, PATH=f"{self.root}:{os.environ['PATH']}")
            self.assertEqual(status, 0, said)
            self.assertIn("built without CUDA: this machine has no NVIDIA GPU (PSD_CUDA=ON", said)
            self.assertFalse((self.root / "asked").exists())
        self.fake("echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'", "nvidia-smi")
        status, said = self.configure("AUTO", nvcc=nvcc, PATH=f"{self.root}:{os.environ['PATH']}")
        self.assertIn("is of CUDA 11.8", said)
        self.assertTrue((self.root / "asked").exists())

    def test_another_word_is_refused(self):
        status, said = self.configure("YES")
        self.assertEqual(status, 1, said)
        self.assertIn("PSD_CUDA='YES': must be AUTO, NVCC, ON or OFF", said)

    @unittest.skipUnless(NVCC, "this build has no CUDA")
    def test_one_that_works(self):
        for cuda in ("NVCC", "ON", "NVCC"):  # the first detects it, the others use the cache
            status, said = self.configure(cuda, nvcc=NVCC)
            self.assertEqual(status, 0, said)
            self.assertIn("CUDA: ON", said)


if __name__ == "__main__":
    unittest.main()
