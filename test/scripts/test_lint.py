"""scripts/lint: the files that it passes to each tool, and its report of the others. The tools are fakes that print
their files."""

import json
import pathlib
import shutil
import subprocess
import unittest

from checkout import CheckoutTest

# Reports files that contain FAULT.
TOOL = """#!/bin/sh
status=0
for each do
  case $each in -*|check|gcc|concise|build/dev/clang) continue;; esac
  echo "{name} $each"
  if grep -q FAULT "$each"; then echo "$each:1:1: error: a fault"; status=1; fi
done
exit $status
"""


class Lint(CheckoutTest):
    def setUp(self):
        super().setUp()
        for script in pathlib.Path(self.root, "scripts").iterdir():  # a checkout with only the test's sources
            if script.name not in ("lint", "lib.sh", "setup_python.sh"):
                if script.is_dir():
                    shutil.rmtree(script)
                else:
                    script.unlink()
        pins = [line.split("=", 1)[1] for line in (self.root / "scripts/lint").read_text().splitlines() if line.startswith(("RUFF=", "SHELLCHECK="))]
        self.assertEqual(len(pins), 2)
        self.write(".deps/env.sh", "")
        self.write(".deps/lint/.psd-installed", "".join(f"alone {pin}\n" for pin in pins))
        for name in ("ruff", "shellcheck", "python3", "pip"):
            self.program(f".deps/lint/bin/{name}", TOOL.replace("{name}", name))
        self.program("bin/clang-tidy-14", '#!/bin/sh\n[ "$1" != --version ] || { echo "LLVM version 14.0.6"; exit; }\n'
                                          + TOOL.replace("{name}", "clang-tidy").partition("\n")[2])
        for name in ("cmake", "ninja"):
            self.program(f"bin/{name}", "#!/bin/sh\n[ $# -lt 5 ] || echo true\n" if name == "ninja" else "#!/bin/sh\n")
        for path, text in {
            ".gitignore": "/build/\n/.deps/\n/bin/\n", ".ci/run": "#!/bin/bash\n", "README.md": "FAULT\n", "library.py": "\n",
            "tool": "#!/usr/bin/env python3\n", "common/a.cc": '#include "common/a.h"\n', "common/a.h": "\n", "common/alone.h": "\n",
            "common/inner.h": "\n", "common/outer.h": '#include "common/inner.h"\n', "server/left_out.cc": "\n",
            "server/user.cc": '#include "common/outer.h"\n',
        }.items():
            self.write(path, text)
        self.write("build/dev/compile_commands.json", json.dumps(
            [{"file": str(self.root / file)} for file in ("common/a.cc", "server/user.cc")], indent=0))
        self.commit()

    def program(self, path, text):
        self.write(path, text)
        (self.root / path).chmod(0o755)

    def commit(self):
        def git(*arguments):
            subprocess.run(["git", "-C", self.root, "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments], check=True, capture_output=True)
        git("add", ".")
        git("commit", "-qm", "change")

    def lint(self, *arguments):
        return self.run_script("lint", *arguments, path_first=self.root / "bin")

    def given(self, result, tool):
        return sorted(line.split()[1] for line in result.stdout.splitlines() if line.startswith(f"{tool} "))

    def test_scripts_are_known_by_their_name_or_their_first_line(self):
        result = self.lint()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.given(result, "ruff"), ["library.py", "tool"])
        self.assertEqual(self.given(result, "shellcheck"), [".ci/run", "scripts/lib.sh", "scripts/lint", "scripts/setup_python.sh"])

    def test_one_commit_has_no_base_and_that_is_said(self):
        result = self.lint()
        self.assertEqual(self.given(result, "clang-tidy"), [])
        self.assertIn("clang-tidy: not run: this checkout holds one commit", result.stdout)

    def test_changed_files_are_checked_and_headers_by_who_includes_them(self):
        self.write("common/a.h", "// changed\n")
        self.write("common/inner.h", "// changed\n")
        self.commit()
        self.assertEqual(self.given(self.lint(), "clang-tidy"), ["common/a.cc", "server/user.cc"])
        result = self.lint("--base", "HEAD")
        self.assertEqual(self.given(result, "clang-tidy"), [])
        self.assertIn("no C++ file differs from", result.stdout)
        self.write("common/a.cc", "// changed, without a commit\n")
        self.assertEqual(self.given(self.lint("--base", "HEAD"), "clang-tidy"), ["common/a.cc"])

    def test_a_branch_is_compared_with_where_it_left_main(self):
        subprocess.run(["git", "-C", self.root, "branch", "-f", "main"], check=True, capture_output=True)
        subprocess.run(["git", "-C", self.root, "checkout", "-qb", "mine"], check=True, capture_output=True)
        for file in ("common/a.cc", "server/user.cc"):
            self.write(file, "// changed\n")
            self.commit()
        self.assertEqual(self.given(self.lint(), "clang-tidy"), ["common/a.cc", "server/user.cc"])

    def test_what_is_not_checked_is_named(self):
        for file in ("common/alone.h", "server/left_out.cc", "common/a.cc", "server/user.cc"):
            self.write(file, "// changed\n")
        result = self.lint("--base", "HEAD", "--at-most", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.given(result, "clang-tidy"), ["common/a.cc"])
        self.assertIn("not checked by clang-tidy: common/alone.h: no .cc file includes it", result.stdout)
        self.assertIn("not checked by clang-tidy: server/left_out.cc: the preset dev does not compile", result.stdout)
        self.assertIn("beyond --at-most 1, 1 files: server/user.cc", result.stdout)

    def test_all_tools_run_and_those_that_find_something_are_named(self):
        for file, tool in (("tool", "ruff"), (".ci/run", "shellcheck"), ("common/a.cc", "clang-tidy")):
            before = (self.root / file).read_text()
            self.write(file, before + "# FAULT\n")
            result = self.lint("--base", "HEAD")
            self.assert_fails(result, f"lint: error: {tool}: findings, listed above")
            self.assertIn(f"{file}:1:1: error: a fault", result.stdout)
            self.assertTrue(self.given(result, "ruff"))
            self.write(file, before)

    def test_files_that_are_named_are_checked_alone(self):
        result = self.lint(str(self.root / "tool"), str(self.root / "common/a.h"))
        self.assertEqual([self.given(result, tool) for tool in ("ruff", "shellcheck", "clang-tidy")], [["tool"], [], ["common/a.cc"]])

    def test_mistakes(self):
        for arguments, reason in ((["--chekc"], "unknown argument '--chekc'"), (["--base"], "--base needs a revision"),
                                  (["--base", "nope"], "'nope' is not a commit"), (["--at-most", "0"], "--at-most needs a number"),
                                  (["--at-most"], "--at-most needs a number"), (["nowhere.py"], "nowhere.py: no such file"),
                                  (["/etc/passwd"], "/etc/passwd: outside of"), (["--base", "HEAD", "/etc/passwd"], "--base cannot be combined with FILEs"),
                                  ([str(self.root / "README.md")], "README.md: neither a shell script, Python nor C++")):
            with self.subTest(arguments):
                self.assert_fails(self.lint(*arguments), reason)

    def test_missing_tools_are_named(self):
        self.write("common/a.cc", "// changed\n")
        for name in ("clang-tidy-14", "clang-tidy"):
            self.program(f"bin/{name}", "#!/bin/sh\necho LLVM version 17.0.1\n")
        self.assert_fails(self.lint("--base", "HEAD"), "clang-tidy 14 is missing")
        (self.root / ".deps/env.sh").unlink()
        self.program("bin/clang-tidy-14", "#!/bin/sh\necho LLVM version 14.0.6\n")
        self.assert_fails(self.lint("--base", "HEAD"), "run scripts/setup first")
        shutil.rmtree(self.root / ".git")
        self.assert_fails(self.lint(), "is not a git checkout")


if __name__ == "__main__":
    unittest.main(verbosity=2)
