"""Tokens and roles from a user's view: psd token, token files, flags and environment, users of a Unix socket."""

import os
import re
import signal
import subprocess
import time
import unittest

import processes


class Auth(processes.ProcessTest):
    def token_daemon(self, *arguments, **settings):
        """A daemon whose first address is for its own user, and whose second requires tokens."""
        daemon = self.daemon(*arguments, listen=(self.unix_address(), "tcp://127.0.0.1:0"),
                             auth=f'{{"tokens":"{self.folder / "tokens"}"}}', **settings)
        daemon.remote = daemon.addresses[1]
        return daemon

    def psd(self, command, daemon, *arguments, environment=None):
        return self.start_psd(command, "--server", daemon.remote, *arguments, environment=environment)

    def token_command(self, *words):
        done = self.start_psd("token", *words, "--file", "tokens")
        self.assert_ends(done)
        return done.out

    def test_tokens_are_listed_and_revoked(self):
        ops, eve = self.make_token_file("ops", "admin"), self.make_token_file("eve", "reader")
        daemon = self.token_daemon()
        for wrong in ("30", "", "3m", "0d", "d"):
            self.assert_fails(self.start_psd("token", "new", "--name", "x", "--role", "reader", "--expires", wrong),
                              f"--expires: '{wrong}' is not a lifetime, such as 12h, 30d or 8w")
        self.assert_ends(self.start_psd("token", "new", "--name", "pool", "--role", "trainer", "--expires", "30d", "--file", "tokens"))
        listed = self.token_command("list")
        self.assertRegex(listed, r"ops +admin +never")
        self.assertRegex(listed, r"pool +trainer +20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")
        self.assert_fails(self.start_psd("token", "revoke", "stranger", "--file", "tokens"), "has no token of 'stranger'")
        self.assertIn("revoked 1 token of 'eve'; 'psd reload'", self.token_command("revoke", "eve"))
        self.assert_ends(self.psd("status", daemon, "--token-file", eve))
        self.assert_ends(self.psd("reload", daemon, "--token-file", ops))
        self.assert_fails(self.psd("status", daemon, "--token-file", eve), "does not know this token")
        self.assertNotIn("reader", self.token_command("list"))

    @unittest.skipUnless(processes.TRAINER, "it trains")
    def test_a_token_that_expires_ends_its_connections(self):
        ops, pool = self.make_token_file("ops", "admin"), self.make_token_file("pool", "trainer")
        daemon = self.token_daemon()
        trainer = self.train(daemon.remote, steps=10**9, more=("--token-file", pool))
        daemon.until_status("it trains", lambda status: any(each["step"] > 2 for each in status["trainers"]))
        tokens = self.folder / "tokens"
        expires = time.strftime("expires=%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2))
        tokens.write_text(re.sub("^(pool .*)$", rf"\1 {expires}", tokens.read_text(), flags=re.MULTILINE))
        changed = self.psd("reload", daemon, "--token-file", ops)
        self.assert_ends(changed)
        self.assertIn("tokens replaced", changed.out)
        self.assert_fails(trainer, "the token of 'pool' expired at 20")
        self.assert_fails(self.psd("status", daemon, "--token-file", pool), "the token of 'pool' expired at 20")
        self.assertIn("EXPIRED", self.token_command("list"))

    def test_every_way_to_give_a_token(self):
        trainer = self.make_token_file("pool-a", "trainer")
        secret = trainer.read_text().strip()
        daemon = self.token_daemon()
        for arguments, environment in ((("--token-file", trainer), None), ((), {"PSD_TOKEN_FILE": str(trainer)}),
                                       ((), {"PSD_TOKEN": secret}),
                                       (("--token-file", trainer), {"PSD_TOKEN": "another"})):
            with self.subTest(arguments=arguments, environment=environment):
                self.assert_ends(self.psd("status", daemon, *arguments, environment=environment))
                if processes.TRAINER:
                    job = self.start_trainer("train", "--server", daemon.remote, "--model", "mlp", "--data", "synthetic:64", "--threads", 1,
                                             "--device", "cpu", "--steps", 2, *arguments, environment=environment)
                    self.assert_ends(job)
        for process in self.processes:
            self.assertNotIn(secret, process.err)
        self.assert_stops(daemon)

    def test_missing_or_insufficient_credentials_are_refused_in_one_line(self):
        reader, trainer, admin = (self.make_token_file(name, role) for name, role in (("eve", "reader"), ("pool", "trainer"), ("ops", "admin")))
        daemon = self.token_daemon()
        self.assert_fails(self.psd("status", daemon), daemon.remote, "authentication required", "--token-file")
        self.assert_fails(self.psd("status", daemon, environment={"PSD_TOKEN": "wrong"}), "does not know this token")
        for command in ("stop", "reload"):
            self.assert_fails(self.psd(command, daemon, "--token-file", trainer), "this requires role admin; 'pool' has role trainer")
        if processes.TRAINER:
            joins = self.train(daemon.remote, steps=2, more=("--token-file", reader))
            self.assert_fails(joins, "this requires role trainer; 'eve' has role reader")
        self.assertEqual(daemon.counter("logins_refused"), 2)
        self.assertRegex(daemon.err, r"refused the login of 127\.0\.0\.1:[0-9]+: the daemon does not know this token")
        self.assertNotIn("wrong", daemon.err)
        stops = self.psd("stop", daemon, "--token-file", admin)
        self.assert_ends(stops)
        self.assert_ends(daemon)
        self.assertRegex(daemon.err, r"asked by token 'ops' at 127\.0\.0\.1:[0-9]+: psd stop")

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_a_trainer_ends_with_the_reason_when_its_name_is_removed_or_demoted(self):
        for role in (None, "reader"):
            with self.subTest(role=role):
                token = self.make_token_file(f"pool-{role}", "trainer")
                daemon = self.token_daemon()
                trainer = self.train(daemon.remote, steps=10_000_000, more=("--token-file", token))
                daemon.until_status("it trains", lambda status: status["trainers"] and status["trainers"][0]["step"] > 2)
                tokens = self.folder / "tokens"
                kept = [line for line in tokens.read_text().splitlines() if not line.startswith("pool-")]
                if role:
                    line = next(line for line in tokens.read_text().splitlines() if line.startswith("pool-"))
                    kept.append(line.replace("trainer", role))
                tokens.write_text("".join(line + "\n" for line in kept))
                daemon.signal(signal.SIGHUP)
                self.assert_fails(trainer, "has role reader" if role else "is no longer valid")
                self.assertIn(f"token 'pool-{role}': trainer -> {role or 'none'}", daemon.err)
                self.assert_stops(daemon)
                tokens.unlink()

    @unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
    def test_a_watcher_ends_with_the_reason_when_its_name_is_removed(self):
        trainer, reader = self.make_token_file("pool", "trainer"), self.make_token_file("eve", "reader")
        daemon = self.token_daemon()
        self.train(daemon.remote, steps=10_000_000, more=("--token-file", trainer))
        daemon.until_status("it trains", lambda status: status["trainers"] and status["trainers"][0]["step"] > 2)
        watch = self.start_trainer("eval", "--server", daemon.remote, "--model", "mlp", "--data", "synthetic:64", "--threads", 1,
                                   "--device", "cpu", "--every", 0.05, "--token-file", reader)
        processes.until("it scores", lambda: "loss" in watch.out)
        tokens = self.folder / "tokens"
        tokens.write_text("".join(line for line in tokens.read_text().splitlines(True) if not line.startswith("eve ")))
        daemon.signal(signal.SIGHUP)
        self.assert_fails(watch, "the token of 'eve' is no longer valid")
        self.assertNotIn("message.c_str", watch.err)
        self.assert_stops(daemon)

    def test_a_token_file_that_others_may_use_or_that_is_wrong_is_refused(self):
        self.make_token_file("pool", "trainer")
        tokens = self.folder / "tokens"
        for mode in (0o640, 0o604, 0o622):
            tokens.chmod(mode)
            with self.assertRaises(processes.NotReady) as failed:
                self.token_daemon()
            self.assertIn("chmod 600", str(failed.exception))
        pipe = self.folder / "pipe"
        os.mkfifo(pipe, 0o600)
        self.assert_fails(self.start_psd("--listen", self.unix_address(), "--set", f"auth.tokens={pipe}"),
                          "is a device or a pipe, not a file")
        tokens.chmod(0o600)
        full = self.write("full", "".join(f"n{i} reader sha256:{i:064x}\n" for i in range(10_000)))
        full.chmod(0o600)
        self.assert_fails(self.start_psd("token", "new", "--name", "one", "--role", "admin", "--file", full),
                          "has 10000 tokens already, which is the maximum")
        tokens.write_text("pool trainer oops\n")
        with self.assertRaises(processes.NotReady) as failed:
            self.token_daemon()
        self.assertIn("line 1: the third word is sha256:HEX", str(failed.exception))
        self.assertNotIn("oops", str(failed.exception))
        self.assert_fails(self.start_psd("token", "new", "--name", "pool", "--role", "admin", "--file", "tokens"), "line 1")
        mine = self.write("open.token", "psd_x\n")
        mine.chmod(0o644)
        self.assert_fails(self.start_psd("status", "--token-file", mine), "--token-file", "chmod 600")

    def test_psd_token_refuses_what_a_daemon_would_not_take(self):
        self.make_token_file("pool", "trainer")
        for name, role, words in (("a b", "reader", "--name: 'a b' is not a name"), ("pool", "root", "--role: 'root' is not a role"),
                                  ("pool", "admin", "'pool' has role trainer there")):
            self.assert_fails(self.start_psd("token", "new", "--name", name, "--role", role, "--file", "tokens"), words)
        printed = self.start_psd("token", "new", "--name", "eve", "--role", "reader")
        self.assert_ends(printed)
        self.assertRegex(printed.out, r"^psd_[0-9a-f]{64}\n$")
        self.assertRegex(printed.err, r"(?m)^eve reader sha256:[0-9a-f]{64}$")
        self.assertEqual((self.folder / "tokens").stat().st_mode & 0o777, 0o600)

    def test_other_machines_may_connect_only_where_that_was_meant(self):
        for address in ("tcp://*:0", "tcp://0.0.0.0:0", "tcp://[::]:0"):
            refused = self.start_psd("--listen", address)
            self.assert_fails(refused, address, "can be reached from other machines", "auth", "tls.require_client", "--insecure")
            self.assertEqual(refused.wait(), 2)
        for arguments in (("--insecure",), ("--set", "insecure=true")):
            self.assert_stops(self.daemon(*arguments, listen=("tcp://*:0",)))
        self.make_token_file("pool", "trainer")
        daemon = self.daemon(listen=(self.unix_address(), "tcp://*:0"), auth=f'{{"tokens":"{self.folder / "tokens"}"}}')
        self.assert_stops(daemon)

    def test_a_token_in_the_clear_is_warned_of_once(self):
        token = self.make_token_file("pool", "reader")
        # No such machine is needed: the resolver rejects the name.
        for process in (self.start_psd("status", "--server", "tcp://psd.invalid:1", "--token-file", token, "--timeout", "5"),
                        self.start_psd("status", "--server", "tcp://psd.invalid:1,tcp://psd2.invalid:1", "--token-file", token,
                                       "--timeout", "5")):
            self.assertGreater(process.wait(), 0)
            self.assertEqual(process.err.count("in the clear"), 1)
        local = self.start_psd("status", "--server", "tcp://127.0.0.1:1", "--token-file", token)
        self.assert_fails(local)
        self.assertNotIn("in the clear", local.err)

    @unittest.skipUnless(os.geteuid() == 0, "only root can run a program as another user")
    def test_of_a_unix_socket_only_the_daemons_user_and_root_need_no_token(self):
        token = self.make_token_file("eve", "reader")
        daemon = self.token_daemon()
        self.assert_ends(self.start_psd("status", "--server", daemon.address))
        self.folder.chmod(0o755)
        (self.folder / "psd.sock").chmod(0o777)
        stranger = {"user": 65534, "group": 65534, "extra_groups": []}
        if subprocess.run([processes.PSD, "--version"], capture_output=True, check=False, **stranger).returncode != 0:
            self.skipTest("the program cannot be run by another user here")

        def status(**environment):
            return subprocess.run([processes.PSD, "status", "--server", daemon.address], capture_output=True, text=True, timeout=processes.WAIT_S,
                                  check=False, env={**os.environ, **environment}, **stranger)

        refused = status()
        self.assertEqual(refused.returncode, 1)
        self.assertIn("user 65534 is neither the daemon's user nor root", refused.stderr)
        self.assertEqual(status(PSD_TOKEN=token.read_text().strip()).returncode, 0)
        self.assert_stops(daemon)

    def test_the_role_of_the_daemons_own_user_can_be_less(self):
        self.make_token_file("eve", "reader")
        daemon = self.daemon(listen=(self.unix_address(),), auth=f'{{"tokens":"{self.folder / "tokens"}","local":"reader"}}')
        self.assert_ends(self.start_psd("status", "--server", daemon.address))
        complaint = self.assert_fails(self.start_psd("stop", "--server", daemon.address), "this requires role admin")
        self.assertTrue(re.search(r"'user \d+' has role reader", complaint), complaint)
        self.assert_stops(daemon)


if __name__ == "__main__":
    processes.main()
