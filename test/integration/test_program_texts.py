"""Texts of psd and psd-trainer: help, manual page, and completion in bash, zsh and fish."""

import functools
import pathlib
import re
import shutil
import subprocess
import unittest

import processes

PROGRAMS = [path for path in (processes.PSD, processes.TRAINER) if path]
COLUMNS_MOST = 100

BASH = """
source <("{program}" completion bash)
COMP_WORDS=({words})
COMP_CWORD=$(({count} - 1))
COMPREPLY=()
{function} 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

# compadd works only within the line editor: here it prints.
ZSH = """
compdef() {{ :; }}
compset() {{ :; }}
compadd() {{ shift; print -l -- "$@"; }}
_files() {{ print -- FILES; }}
source <("{program}" completion zsh)
words=({words})
CURRENT={count}
{function}
"""


def run(*words, check=True, cwd=None):
    done = subprocess.run([str(word) for word in words], text=True, capture_output=True, stdin=subprocess.DEVNULL,
                          timeout=processes.WAIT_S, check=False, cwd=cwd)
    if check and done.returncode != 0:
        raise AssertionError(f"{words}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@functools.cache
def help_of(program, *words):
    """A psd-trainer loads LibTorch each time: once for all tests."""
    return run(program, *words, "--help")


class Texts(processes.ProcessTest):
    @staticmethod
    @functools.cache
    def commands(program):
        """All commands, each as its words."""
        found = re.findall(r"^\.SS (.*)$", run(program, "man"), re.MULTILINE)
        return [line.replace("\\", "").split()[1:] for line in found]

    def test_help_command_and_flag_say_the_same(self):
        for program in PROGRAMS:
            commands = self.commands(program)
            self.assertIn(["help"], commands)
            self.assertEqual(run(program, "help"), help_of(program))
            for words in commands:
                if len(words) == 1:
                    with self.subTest(program=program, words=words):
                        explained = help_of(program, *words)
                        self.assertEqual(run(program, "help", *words).splitlines()[1:], explained.splitlines()[1:])

    def test_no_line_of_help_is_wide(self):
        for program in PROGRAMS:
            for words in ([], *self.commands(program)):
                for line in help_of(program, *words).splitlines():
                    self.assertLessEqual(len(line), COLUMNS_MOST, (words, line))

    def test_help_begins_with_what_one_needs(self):
        for program in PROGRAMS:
            text = help_of(program)
            for words in ("Example: ", "tcp://localhost:5500", "docs/"):
                self.assertIn(words, text)
        if processes.TRAINER:
            text = help_of(processes.TRAINER, "train")
            titles = re.findall(r"^([A-Z][a-z ]+):$", text, re.MULTILINE)
            self.assertEqual(titles[1:4], ["Daemon", "Model and data", "Length and steps"])
            self.assertLess(titles.index("Membership"), titles.index("Transfer"))

    def test_each_command_shows_an_example_of_itself(self):
        for program in PROGRAMS:
            for words in self.commands(program):
                if words == ["completion"]:
                    continue
                with self.subTest(words=words):
                    example = re.search(r"^Example: (.*)$", help_of(program, *words), re.MULTILINE)
                    self.assertIn(" ".join([pathlib.Path(program).name, *words]), example[1])
                    self.assertNotIn("Exit status", help_of(program, *words))

    def test_what_is_not_there(self):
        for program in PROGRAMS:
            name = pathlib.Path(program).name
            for words, complaint in ((("help", "nothing"), "'nothing': no such command; see"),
                                     (("completion", "tcsh"), "'tcsh' is not a supported shell; expected bash, zsh or fish"),
                                     (("completion",), "shell is missing")):
                process = processes.Process(self.folder, self._name(name), [program, *words])
                self.processes.append(process)
                self.assert_fails(process, complaint)
                self.assertEqual(process.wait(), 2)

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_the_page_of_commands(self):
        done = subprocess.run([processes.REPO / "scripts" / "command_reference.py", *PROGRAMS, "--check"], text=True, capture_output=True,
                              timeout=processes.WAIT_S, check=False)
        self.assertEqual((0, ""), (done.returncode, done.stderr))

    def test_the_manual_page(self):
        for program in PROGRAMS:
            name = pathlib.Path(program).name
            page = self.write(f"{name}.1", run(program, "man"))
            if not shutil.which("man"):
                continue
            done = subprocess.run(["man", "--warnings", "-l", page], text=True, capture_output=True, timeout=60, check=False,
                                  env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn(f"{name} help", done.stdout)
            self.assertIn("tcp://localhost:5500", done.stdout)


class Completion(processes.ProcessTest):
    def completed(self, shell, script, program, *words):
        """The shell's completions for the last of these words."""
        name = pathlib.Path(program).name
        quoted = " ".join(f"'{word}'" for word in (name, *words))
        text = script.format(program=program, words=quoted, count=len(words) + 1, function="_" + name.replace("-", "_"))
        arguments = ["-f", "-c", text] if shell == "zsh" else ["--norc", "-c", text]
        return run(shell, *arguments, check=False, cwd=self.folder).split()

    def check(self, offer):
        """offer(program, *words): the completions; may include more than those that start with the last word."""
        psd = processes.PSD
        self.assertIn("status", offer(psd, "sta"))
        self.assertIn("--json", offer(psd, "status", "--j"))
        self.assertNotIn("--json", offer(psd, "stop", "--"))
        self.assertIn("--config", offer(psd, "--conf"))
        self.assertIn("new", offer(psd, "token", ""))
        self.assertIn("trainer", offer(psd, "token", "new", "--role", ""))
        self.assertIn("--role", offer(psd, "token", "new", "--r"))
        self.assertIn("fish", offer(psd, "completion", ""))
        self.assertIn("--json", offer(psd, "--config", "status", "status", "--j"), "a value is no command")
        self.assertIn("staleness", offer(psd, "top", "--sort", ""))
        if processes.TRAINER:
            self.assertIn("mnist_cnn", offer(processes.TRAINER, "train", "--model", ""))
            self.assertIn("pushpull", offer(processes.TRAINER, "bench", "pu"))

    def test_bash(self):
        def offer(program, *words):
            offered = self.completed("bash", BASH, program, *words)
            self.assertFalse([word for word in offered if not word.startswith(words[-1])])
            return offered

        self.check(offer)
        self.assertEqual(offer(processes.PSD, "zzz"), [])
        self.assertEqual(offer(processes.PSD, "status", "--server", ""), [], "nothing is known of addresses")
        self.assertIn("hogwild", self.completed("bash", BASH, processes.PSD, "--set", "policy.type", "=", "hog"))
        self.assertIn("false", self.completed("bash", BASH, processes.PSD, "--set", "exit_when_done", "=", "f"))
        self.assertEqual(offer(processes.PSD, "--set", "limits.message_b"), ["limits.message_bytes="])
        self.assertEqual(offer(processes.PSD, "set", "limits.message_b"), [], "it cannot change while the daemon runs")
        self.assertEqual(offer(processes.PSD, "set", "limits.staged_b"), ["limits.staged_bytes="])
        for words in (("--set",), ("set",), ("check", "--set")):
            self.assertIn("adam", self.completed("bash", BASH, processes.PSD, *words, "optimizer.type", "=", "ad"))
        if processes.TRAINER:
            (self.folder / "mnist_here").mkdir()
            self.write("mlp.pt", "")
            self.assertCountEqual(offer(processes.TRAINER, "train", "--data", "mn"), ["mnist", "mnist_here"])
            self.assertCountEqual(offer(processes.TRAINER, "train", "--model", "ml"), ["mlp", "mlp.pt"])
            self.assertEqual(offer(processes.TRAINER, "train", "--data", "file"), [], "no data set is named so")
        self.write("mine.json", "{}")
        self.assertEqual(offer(processes.PSD, "--config", "mi"), ["mine.json"])
        self.assertEqual(offer(processes.PSD, "inspect", "mi"), ["mine.json"])

    @unittest.skipUnless(shutil.which("zsh"), "zsh is missing")
    def test_zsh(self):
        self.check(lambda *words: self.completed("zsh", ZSH, *words))
        self.assertIn("FILES", self.completed("zsh", ZSH, processes.PSD, "--config", "mi"))
        self.assertIn("hogwild", self.completed("zsh", ZSH, processes.PSD, "--set", "policy.type=hog"))

    @unittest.skipUnless(shutil.which("fish"), "fish is missing")
    def test_fish(self):
        def offer(program, *words):
            name = pathlib.Path(program).name
            script = self.write("complete.fish", f"'{program}' completion fish | source\ncomplete -C '{name} {' '.join(words)}'\n")
            done = subprocess.run(["fish", "--no-config", script], text=True, capture_output=True, timeout=60, check=True,
                                  cwd=self.folder)
            self.assertEqual(done.stderr, "")
            return [line.split("\t")[0] for line in done.stdout.splitlines()]

        self.check(offer)
        self.assertIn("optimizer.type=adam", offer(processes.PSD, "--set", "optimizer.ty"))


if __name__ == "__main__":
    processes.main()
