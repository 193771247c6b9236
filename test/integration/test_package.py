"""The Debian packages that scripts/package makes of this build (PSD_BUILD_DIR): their metadata, and psd from them."""

import fnmatch
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import unittest
from unittest import mock

import outside_program
import processes

BUILD = os.environ["PSD_BUILD_DIR"]


def command(*words):
    done = subprocess.run([str(word) for word in words], text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=300,
                          check=False)
    if done.returncode != 0:
        raise AssertionError(f"{words}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Package(processes.ProcessTest):
    @classmethod
    def setUpClass(cls):
        for tool in ("dpkg-deb", "dpkg-shlibdeps", "cpack"):
            if not shutil.which(tool):
                raise unittest.SkipTest(f"{tool} is missing")
        if (processes.REPO / ".deps/sysroot").is_dir():
            raise unittest.SkipTest("Cap'n Proto is not the system's")
        folder = tempfile.TemporaryDirectory(prefix="psd-packages-")
        cls.addClassCleanup(folder.cleanup)
        cls.made = pathlib.Path(folder.name)
        command(processes.REPO / "scripts/package", "--build", BUILD, cls.made)
        cls.psd = next(cls.made.glob("psd_*.deb"))
        cls.library = next(cls.made.glob("libpsd-dev_*.deb"))

    def unpacked(self, package):
        root = self.folder / "root"
        command("dpkg-deb", "-x", package, root)
        return root

    def field(self, package, name):
        return command("dpkg-deb", "-f", package, name).strip()

    def test_nothing_else_is_left_in_the_folder(self):
        self.assertEqual(sorted(self.made.iterdir()), sorted((self.psd, self.library)))

    def test_what_they_say_of_themselves(self):
        version = command(processes.PSD, "--version").split()[1]
        for package, name in ((self.psd, "psd"), (self.library, "libpsd-dev")):
            with self.subTest(name):
                self.assertEqual(self.field(package, "Package"), name)
                self.assertEqual(self.field(package, "Version"), version)
                self.assertRegex(self.field(package, "Maintainer"), r"^.+ <.+@.+>$")
                lines = self.field(package, "Description").splitlines()
                self.assertGreater(len(lines), 1)
                self.assertLessEqual(max(map(len, lines)), 80)
                self.assertNotRegex(lines[0], r"^(A|An|The) |\.$")
                for entry in command("dpkg-deb", "-c", package).splitlines():
                    self.assertRegex(entry, r"^(d|-)rw[x-]r-[x-]r-[x-] root/root ", "for everybody to read, root's to write")
                self.assertIn(f"./usr/share/doc/{name}/copyright", command("dpkg-deb", "-c", package))
        depends = self.field(self.psd, "Depends")
        for library in ("libc6", "libcapnp", "libssl3", "libstdc++6"):
            self.assertRegex(depends, rf"(^|, ){re.escape(library)}")
        self.assertIn("libcapnp-dev", self.field(self.library, "Depends"))

    def test_control_files(self):
        control = self.folder / "control"
        command("dpkg-deb", "-e", self.psd, control)
        self.assertEqual((control / "conffiles").read_text(encoding="ascii"), "/etc/psd/psd.json\n")
        for name in ("postinst", "prerm", "postrm"):
            command("sh", "-n", control / name)
            self.assertTrue((control / name).stat().st_mode & stat.S_IXUSR)

    def test_psd_out_of_the_package(self):
        root = self.unpacked(self.psd)
        self.assertTrue((root / "usr/lib/systemd/system/psd@.service").is_file())
        unit = (root / "usr/lib/systemd/system/psd.service").read_text(encoding="utf-8")
        program, configuration = re.search(r"ExecStart=(\S+) --config (\S+)", unit).groups()
        patch = mock.patch.object(processes, "PSD", str(root / program[1:]))
        patch.start()
        self.addCleanup(patch.stop)
        daemon = self.daemon("--config", root / configuration[1:], policy="locked",
                             durability__path=str(self.folder / "saved"))
        self.assert_serves(daemon)
        self.assert_stops(daemon)
        names = {str(path.relative_to(root / "usr/share")) for path in (root / "usr/share").rglob("*") if path.is_file()}
        self.assertLessEqual({"man/man1/psd.1.gz", "bash-completion/completions/psd", "zsh/vendor-completions/_psd",
                              "fish/vendor_completions.d/psd.fish"}, names)
        self.assertIn("doc/psd/examples/systemd/a.json", names)  # psd@.service names it
        self.assertLessEqual({f"doc/psd/examples/monitoring/{name}" for name in ("alerts.yml", "grafana.json", "prometheus.yml")}, names)
        self.assertIn("doc/psd/changelog.gz", names)
        rules = (root / "usr/share/doc/psd/examples/monitoring/alerts.yml").read_text(encoding="utf-8")
        self.assertTrue(re.search("runbook_url: docs/", rules))
        self.assertGreater(len([name for name in names if name.startswith("doc/psd/docs/") and name.endswith(".md")]), 10)
        for example in (root / "usr/share/doc/psd/examples").glob("*.json"):
            if not example.name.endswith(".schema.json"):
                self.assert_ends(self.start_psd("check", example))

    def test_the_command_of_the_container(self):
        """The container's image is built elsewhere; here its command runs with the package's files."""
        root = self.unpacked(self.psd)
        text = (processes.REPO / "configs/container/Containerfile").read_text(encoding="utf-8")
        command_line = {word: json.loads(list_) for word, list_ in re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)}
        self.assertEqual(command_line["ENTRYPOINT"], ["psd"])
        words = [str(root / word[1:]) if word.startswith("/etc/") else word for word in command_line["CMD"]]
        self.assertIn("tcp://*:5500", words)
        words[words.index("tcp://*:5500")] = "tcp://*:0"
        saved = f"durability.path={self.folder / 'saved'}"
        daemon = processes.Daemon(self.folder, self._name("psd"), [*words, "--set", saved])
        self.processes.append(daemon)
        server = re.search(r"^ENV PSD_SERVER=(\S+)$", text, re.MULTILINE)[1]
        self.assertEqual(server, "tcp://localhost:" + re.search(r"^EXPOSE (\d+)$", text, re.MULTILINE)[1])
        self.assertIn(f"tcp://*:{server.rpartition(':')[2]}", command_line["CMD"])
        check = json.loads(re.search(r"^HEALTHCHECK .*CMD (\[.*\])$", text, re.MULTILINE)[1])
        self.assertEqual(check[0], "psd")
        self.assert_ends(self.start_psd(*check[1:], "--server", daemon.address.replace("*", "localhost")))
        self.assertTrue(any(fnmatch.fnmatch(self.psd.name, source) for source in re.findall(r"^COPY (\S+)", text, re.MULTILINE)))
        self.assert_stops(daemon)

    def test_a_program_is_built_with_the_library_out_of_the_package(self):
        root = self.unpacked(self.library)
        outside_program.run_line(self, outside_program.build(command, self.folder, root / "usr") / "line")

    def test_the_container(self):
        builder = next(filter(shutil.which, ("buildah", "podman", "docker")), None)
        if builder is None:
            self.skipTest("none of buildah, podman and docker is here")
        text = (processes.REPO / "configs/container/Containerfile").read_text(encoding="utf-8")
        base = re.search(r"^FROM (\S+) AS psd$", text, re.MULTILINE)[1]
        try:
            subprocess.run([builder, "pull", base], capture_output=True, timeout=100, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            self.skipTest(f"{builder} cannot get {base} here")
        context = self.folder / "context"
        context.mkdir()
        shutil.copy(self.psd, context)
        image = f"psd-test-{os.getpid()}"
        command(builder, "build", "--target", "psd", "-t", image, "-f", processes.REPO / "configs/container/Containerfile", context)
        self.addCleanup(command, builder, "rmi", "-f", image)
        if builder != "buildah":  # buildah builds, but runs nothing
            self.assertIn(command(processes.PSD, "--version").split()[1], command(builder, "run", "--rm", image, "--version"))


if __name__ == "__main__":
    processes.main()
