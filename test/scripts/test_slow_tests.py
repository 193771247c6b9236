"""scripts/slow_tests: the slowest tests of ctest's JUnit file, in descending order, with reasons."""

import re
import subprocess
import tempfile
import unittest

from checkout import REPO

SCRIPT = REPO / "scripts" / "slow_tests"
WAIT_S = 60


def report(text):
    with tempfile.NamedTemporaryFile("w", suffix=".xml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        return subprocess.run([SCRIPT, file.name], capture_output=True, text=True, timeout=WAIT_S, check=False)


class SlowTests(unittest.TestCase):
    def test_from_the_slowest_with_reasons(self):
        cases = "".join(f'<testcase name="fast_test/{i}" time="0.{i:02}"/>' for i in range(30))
        done = report(f'<testsuite><testcase name="integration/truth" time="61.5"/><testcase name="odd" time="31"/>{cases}</testsuite>')
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 1 + 20)
        self.assertRegex(lines[1], r"^ +61\.5  integration/truth: trains ")
        self.assertEqual(lines[2].strip(), "31.0  odd: no reason in slow_tests.txt")
        self.assertEqual(lines[3].strip(), "0.3  fast_test/29")

    def test_what_is_no_report_is_named(self):
        done = report("no XML")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^scripts/slow_tests: error: /.*\.xml: syntax error")
        done = subprocess.run([SCRIPT, "/nowhere.xml"], capture_output=True, text=True, timeout=WAIT_S, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere.xml", done.stderr)
        self.assertRegex(report("<a/>").stderr, "not a JUnit file: <a>$")

    def test_a_run_of_no_tests_has_none(self):
        done = report('<testsuite name="(empty)" tests="0"/>')
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_each_reason_has_a_test(self):
        """The words of each pattern are those of a test file, or occur in a list of them."""
        names = {path.name for path in (REPO / "test").rglob("*")}
        names |= {path.read_text(encoding="utf-8") for path in (REPO / "test").rglob("CMakeLists.txt")}
        for line in (REPO / "test" / "slow_tests.txt").read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                pattern, reason = line.split("  ", 1)
                self.assertTrue(reason.strip(), pattern)
                for word in re.findall(r"[a-z_]{5,}", pattern):
                    self.assertTrue(any(word in name for name in names), f"{pattern}: {word}")


if __name__ == "__main__":
    unittest.main()
