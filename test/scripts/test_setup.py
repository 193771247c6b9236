"""scripts/setup and related scripts: one line for each missing thing, and packages unpacked without root."""

import os
import pathlib
import shutil
import subprocess
import unittest

from checkout import CheckoutTest


def architecture():
    return subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout.strip()


class OneLineForWhatIsMissing(CheckoutTest):
    def test_unknown_arguments(self):
        for script in ("setup", "bundle", "quickstart"):
            with self.subTest(script=script):
                self.assert_fails(self.run_script(script, "--bogus"), "see scripts/" + script + " --help")

    def test_help_is_the_header_of_the_script(self):
        for script in ("setup", "bundle", "quickstart", "test", "format"):
            with self.subTest(script=script):
                result = self.run_script(script, "--help")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertTrue(result.stdout.startswith(f"scripts/{script}"), result.stdout)
                self.assertNotIn("shellcheck", result.stdout)

    def test_systems_that_are_not_supported(self):
        for name, version in (("debian", "11"), ("ubuntu", "20.04"), ("fedora", "40")):
            with self.subTest(system=name):
                self.write("os-release", f'ID={name}\nVERSION_ID="{version}"\nPRETTY_NAME="The {name} {version}"\n')
                result = self.run_script("setup", PSD_OS_RELEASE=str(self.root / "os-release"))
                self.assert_fails(result, f"The {name} {version} is not supported")

    def test_no_root_and_no_sudo(self):
        tools = self.root / "tools"
        for name, text in (("id", "echo 1000"), ("sudo", "exit 1"), ("dpkg-query", "exit 1")):
            self.write(f"tools/{name}", f"#!/bin/sh\n{text}\n")
            (tools / name).chmod(0o755)
        self.write("os-release", "ID=debian\nVERSION_ID=12\n")
        result = self.run_script("setup", path_first=tools, PSD_OS_RELEASE=str(self.root / "os-release"))
        self.assert_fails(result, "needs root, and sudo is not usable here")

    def asked_of_apt(self, system, *arguments):
        """The packages that scripts/setup would request from apt as root of a bare machine."""
        tools = self.root / "tools"
        for name, text in (("id", "echo 0"), ("dpkg-query", "exit 1"), ("python3", "exit 1"), ("apt-get", 'echo "$@" >>"$LOG"; [ "$1" = update ]')):
            self.write(f"tools/{name}", f"#!/bin/sh\n{text}\n")
            (tools / name).chmod(0o755)
        for name in ("bash", "cat", "mkdir", "dirname", "env", "sort", "head", "sed", "dpkg", "grep", "git"):
            if not (tools / name).exists():
                (tools / name).symlink_to(shutil.which(name))
        self.write("os-release", f"ID={system[0]}\nVERSION_ID={system[1]}\n")
        log = self.root / "log"
        log.unlink(missing_ok=True)
        result = self.run_script("setup", *arguments, PATH=str(tools), LOG=str(log), PSD_OS_RELEASE=str(self.root / "os-release"))
        self.assert_fails(result, "apt-get could not install")
        return log.read_text(encoding="utf-8").splitlines()[-1].split()

    def test_what_tests_start_is_installed_where_apt_has_it(self):
        started = {"openssl", "prometheus", "zsh", "fish"}
        self.assertLessEqual(started | {"etcd-server", "chromium", "chromium-driver"}, set(self.asked_of_apt(("debian", "12"), "--tests")))
        ubuntu = set(self.asked_of_apt(("ubuntu", "22.04"), "--tests"))
        self.assertLessEqual(started, ubuntu)
        self.assertEqual(ubuntu & {"etcd-server", "chromium", "chromium-driver"}, set())
        self.assertEqual(set(self.asked_of_apt(("debian", "12"))) & (started | {"chromium"}), set())

    def test_wrong_values(self):
        self.assert_fails(self.run_script("setup", "--offline"), "--offline needs the folder")
        self.assert_fails(self.run_script("test", "--asan", "--tsan"), "use only one of --asan, --fuzz and --tsan")
        self.assert_fails(self.run_script("quickstart", "--epochs", "0"), "--epochs '0'")
        self.assert_fails(self.run_script("quickstart", "--data", "/nowhere"), "--data '/nowhere' is not a folder")

    def test_a_folder_that_is_no_bundle_or_for_another_machine(self):
        self.assert_fails(self.run_script("setup", "--offline", self.root), "is not a bundle")
        self.write("bundle/bundle.txt", "architecture: vax\n")
        result = self.run_script("setup", "--offline", self.root / "bundle")
        self.assert_fails(result, "the bundle is for vax, this machine is " + architecture())


class OfflineSetUp(CheckoutTest):
    """With a bundle of one small package, on a system that claims to have none of psd's packages."""

    def setUp(self):
        super().setUp()
        triplet = subprocess.run(["gcc", "-dumpmachine"], check=True, capture_output=True, text=True).stdout.strip()
        libraries = f"usr/lib/{triplet}"
        self.libraries = self.root / ".deps/sysroot" / libraries
        self.write("package/DEBIAN/control",
                   f"Package: small\nVersion: 1\nArchitecture: {architecture()}\nMaintainer: me\nDescription: small\n")
        self.write(f"package/{libraries}/pkgconfig/small.pc", "prefix=/usr\nlibdir=${prefix}/lib\n")
        self.write(f"package/{libraries}/cmake/CapnProto/CapnProtoConfig.cmake",
                   "set(A /usr/bin/capnp\nset(B /usr/include)\n")
        (self.root / f"package/{libraries}/libc.so").symlink_to("/lib/none/libc.so.6.99.1")
        self.write("bundle/bundle.txt", f"architecture: {architecture()}\n")
        self.write("bundle/mnist_5k/digits", "0 1 2\n")
        (self.root / "bundle/debs").mkdir()
        self.build_package("small_1.deb")
        self.tools = self.root / "tools"
        self.write("tools/dpkg-query", "#!/bin/sh\nexit 1\n")
        (self.tools / "dpkg-query").chmod(0o755)

    def build_package(self, name):
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", self.root / "package", self.root / "bundle/debs" / name],
                       check=True, capture_output=True)

    def set_up(self, *arguments):
        result = self.run_script("setup", "--no-torch", *arguments, path_first=self.tools)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_packages_work_from_where_they_are_unpacked(self):
        self.set_up("--offline", self.root / "bundle")
        usr = self.root / ".deps/sysroot/usr"
        self.assertIn(f"prefix={usr}\n", (self.libraries / "pkgconfig/small.pc").read_text(encoding="utf-8"))
        self.assertEqual((self.libraries / "cmake/CapnProto/CapnProtoConfig.cmake").read_text(encoding="utf-8"),
                         f"set(A {usr}/bin/capnp\nset(B {usr}/include)\n")
        # A link whose library is not in the bundle points to the system's.
        self.assertTrue((self.libraries / "libc.so").resolve(strict=True).name.startswith("libc"))
        self.assertEqual((self.root / ".data/mnist_5k/digits").read_text(encoding="utf-8"), "0 1 2\n")
        environment = (self.root / ".deps/env.sh").read_text(encoding="utf-8")
        self.assertIn(f"CMAKE_PREFIX_PATH={usr}", environment)

    def test_later_set_ups_need_neither_the_option_nor_the_folder(self):
        self.set_up("--offline", self.root / "bundle")
        shutil.rmtree(self.root / "bundle")
        self.assertIn("1 packages are unpacked", self.set_up())

    def test_another_bundle_replaces_the_first(self):
        self.set_up("--offline", self.root / "bundle")
        (self.root / "bundle/debs/small_1.deb").unlink()
        self.write("package/usr/share/new", "")
        self.build_package("small_2.deb")
        self.assertIn("unpacking 1 packages", self.set_up("--offline", self.root / "bundle"))
        self.assertTrue((self.root / ".deps/sysroot/usr/share/new").exists())

    def path_without(self, program):
        """A PATH with everything on the current one except for one program."""
        folder = self.root / f"without-{program}"
        folder.mkdir()
        for place in os.environ["PATH"].split(":"):
            for each in pathlib.Path(place).glob("*"):
                if each.name != program and not (folder / each.name).is_symlink():
                    (folder / each.name).symlink_to(each)
        return str(folder)

    def test_ninja_may_come_from_the_bundle_alone(self):
        how = {"path_first": self.tools, "PATH": self.path_without("ninja")}
        result = self.run_script("setup", "--no-torch", "--offline", self.root / "bundle", **how)
        self.assert_fails(result, "ninja is missing")
        (self.root / "bundle/debs/small_1.deb").unlink()
        self.write("package/usr/bin/ninja", "#!/bin/sh\n")
        (self.root / "package/usr/bin/ninja").chmod(0o755)
        self.build_package("small_2.deb")
        result = self.run_script("setup", "--no-torch", "--offline", self.root / "bundle", **how)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("/.deps/sysroot/usr/bin", (self.root / ".deps/env.sh").read_text(encoding="utf-8"))

    def test_a_damaged_package(self):
        (self.root / "bundle/debs/small_1.deb").write_bytes(b"half")
        result = self.run_script("setup", "--no-torch", "--offline", self.root / "bundle", path_first=self.tools)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("small_1.deb could not be unpacked", result.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
