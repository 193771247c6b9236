"""A pair that requires authentication: at tls://, with tokens and with certificates, and an etcd that requires a user."""

import os
import re
import signal
import subprocess
import unittest
from unittest import mock

import certificates
import etcd
import processes
from counting_pairs import PATIENT

PLACES = "ab"
ENDLESS = 10_000_000
# Without credentials: an empty variable counts as unset.
NO_CREDENTIALS = {"PSD_TOKEN_FILE": "", "PSD_TOKEN": "", "PSD_TLS_CA": "", "PSD_TLS_CERT": "", "PSD_TLS_KEY": ""}


@unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
@unittest.skipUnless(processes.TRAINER, "psd-trainer is not built")
class StandbyAccess(processes.ProcessTest):
    """The test's own commands authenticate as an admin by the environment; daemons and trainers use only their own
    credentials."""

    def setUp(self):
        self.authority = certificates.Authority(self.folder)
        self.etcd = etcd.Etcd(self)
        self.engine = {"endpoints": [self.etcd.endpoint], "prefix": "/psd/test"}

    def act_as(self, **variables):
        """From now on this test's own commands use these credentials."""
        patch = mock.patch.dict(os.environ, {**NO_CREDENTIALS, "PSD_TLS_CA": str(self.authority.path), **variables})
        patch.start()
        self.addCleanup(patch.stop)

    # --- Tokens ---

    def token(self, name, role, places=PLACES):
        """A new token at the daemons of these places; returns the path of a file that holds it."""
        token = self.make_token(name, role, f"tokens-{places[0]}")
        line = (self.folder / f"tokens-{places[0]}").read_text().splitlines(keepends=True)[-1]
        for place in places[1:]:
            self.change_tokens(place, lambda text: text + line)
        number = len(self.processes)
        path = self.write(f"{name}-{number}.token", token)
        path.chmod(0o600)
        return path

    def change_tokens(self, place, change):
        tokens = self.folder / f"tokens-{place}"
        text = change(tokens.read_text() if tokens.exists() else "")
        tokens.touch(mode=0o600)
        tokens.write_text(text)

    def with_tokens(self):
        """Creates the pair's own token and an operator's, and has daemons require one."""
        self.act_as(PSD_TOKEN_FILE=str(self.token("ops", "admin")))
        pair = self.token("pair", "admin")
        self.own = self.folder / "own.token"  # replication.token_file of both
        self.own.touch(mode=0o600)
        self.own.write_text(pair.read_text())
        self.pool = self.token("pool", "trainer")
        self.trainers_variables = {**NO_CREDENTIALS, "PSD_TLS_CA": str(self.authority.path), "PSD_TOKEN_FILE": str(self.pool)}

    def by_token(self, place, listen=f"tls://{processes.LOOPBACK}:0", own=None, reached_at=(), **settings):
        replication = {"token_file": str(own or self.own), "tls_ca": str(self.authority.path), "addresses": list(reached_at)}
        return self.one(listen, replication, {}, {"tokens": str(self.folder / f"tokens-{place}")}, **settings)

    # --- Daemons and trainers ---

    def one(self, listen, replication, tls, auth, authority=None, engine=None, **settings):
        certificate, key = (authority or self.authority).sign(f"server-{len(self.processes)}", alternatives=f"DNS:localhost,IP:{processes.LOOPBACK}")
        tls = {"certificate": str(certificate), "key": str(key), **tls}
        return self.daemon(listen=(listen,), policy="locked", environment=NO_CREDENTIALS, engine=engine or self.engine, tls=tls, auth=auth,
                           replication={**PATIENT, **replication}, **settings)

    def until_primary(self, daemon, epoch):
        daemon.until_status(f"it is the primary of epoch {epoch}",
                            lambda status: status["replica_set"]["role"] == "primary" and status["replica_set"]["term"] == epoch)

    def until_waits(self, daemon, *words):
        daemon.until_status(f"it waits: {words}", lambda status: all(word in status["replica_set"]["waits"] for word in words))
        for word in words:
            self.assertIn(word, daemon.err)

    def trains(self, pair):
        addresses = ",".join(daemon.address for daemon in pair)
        return self.start_trainer("train", "--server", addresses, "--rank", 0, "--world-size", 1, "--model", "mlp", "--data", "synthetic:128",
                                  "--threads", 1, "--device", "cpu", "--steps", ENDLESS, environment=self.trainers_variables)

    def until_more(self, daemon, what, count=20):
        goal = max((shard["version"] for shard in daemon.status()["shards"]), default=0) + count
        daemon.until_status(f"{count} more pushes {what}", lambda status: status["shards"] and all(
            shard["version"] >= goal for shard in status["shards"]))

    def check_counts(self, trainer, daemon):
        """Ends the trainer: each of its steps was answered, and is in the model once."""
        trainer.signal(signal.SIGINT)
        trainer.wait()
        steps = int(processes.until("the trainer has left", lambda: re.search(r"rank 0 left after (\d+) steps", daemon.err))[1])
        self.assertEqual({shard["version"] for shard in daemon.status()["shards"]}, {steps})

    def psd(self, *arguments):
        return subprocess.run([processes.PSD, *map(str, arguments)], capture_output=True, text=True, timeout=processes.WAIT_S, check=False)

    def reload(self, *daemons):
        for daemon in daemons:
            done = self.psd("reload", "--server", daemon.address)
            self.assertEqual(done.returncode, 0, done.stderr)

    def take_over_repeatedly(self, one):
        """A pair at work whose primaries are killed, each restarted as the standby. `one(place, …)` makes a daemon of
        the pair."""
        places, daemons = list(PLACES), []
        for place in places:
            daemons.append(one(place))
            if len(daemons) == 1:
                self.until_primary(daemons[0], 1)
        trainer = self.trains(daemons)
        for kill in range(3):
            primary, standby = daemons
            primary.until_in_sync()
            self.until_more(primary, "before the primary is killed")
            primary.kill()
            self.until_primary(standby, kill + 2)
            self.until_more(standby, "by its standby")
            places.reverse()
            daemons = [standby, one(places[1], listen=primary.address)]
        self.check_counts(trainer, daemons[0])

    def test_tokens(self):
        self.with_tokens()
        self.take_over_repeatedly(self.by_token)

    def test_certificates(self):
        ops, trainer, stranger = (self.authority.sign(name) for name in ("ops", "trainer-1", "stranger"))
        pair = {place: self.authority.sign(f"daemon-{place}") for place in PLACES}

        def shown(files):
            return {"PSD_TLS_CERT": str(files[0]), "PSD_TLS_KEY": str(files[1])}

        def one(place, listen=f"tls://{processes.LOOPBACK}:0", files=None, ca=self.authority.path, **settings):
            files = files or pair[place]
            replication = {"tls_ca": str(ca), "tls_cert": str(files[0]), "tls_key": str(files[1])}
            return self.one(listen, replication, {"client_ca": str(self.authority.path), "require_client": True},
                            {"certificates": {"daemon-*": "admin", "ops": "admin", "trainer-*": "trainer"}}, **settings)

        self.act_as(**shown(ops))
        self.trainers_variables = {**NO_CREDENTIALS, "PSD_TLS_CA": str(self.authority.path), **shown(trainer)}
        self.take_over_repeatedly(one)
        # Another pair, in which the primary does not know its standby, or the standby does not know its primary.
        self.engine = {**self.engine, "prefix": "/psd/other"}
        primary = one("a")
        self.until_primary(primary, 1)
        self.trains((primary,))
        self.until_more(primary, "by a primary alone")
        for settings, words in (({"files": stranger}, "auth.certificates has no role for 'stranger'"),
                                ({"files": trainer}, "this requires role admin; 'trainer-1' has role trainer"),
                                ({"ca": certificates.Authority(self.folder, "other").path}, "cannot be trusted")):
            with self.subTest(words):
                follower = one("b", **settings)
                self.until_waits(follower, words)
                self.until_more(primary, "while one cannot follow")
                self.assertEqual(primary.status()["replica_set"]["standby"], "")
                follower.kill()

    def test_a_follower_that_is_no_admin_is_refused_and_says_so(self):
        self.with_tokens()
        address = f"tls://{processes.LOOPBACK}:{etcd.free_port()}"
        # A reason reported at one address takes precedence over an unreachable one.
        primary = self.by_token("a", listen=address, reached_at=[address, self.unix_address("nowhere.sock")])
        self.until_primary(primary, 1)
        trainer = self.trains((primary,))
        unknown = self.write("unknown.token", f"psd_{64 * '0'}\n")
        unknown.chmod(0o600)
        for token, words in ((unknown, "does not know this token"), (self.pool, "this requires role admin; 'pool' has role trainer")):
            follower = self.by_token("b", own=token)
            self.until_waits(follower, primary.address, words)
            self.until_more(primary, "while one is refused")
            self.assertEqual(primary.status()["replica_set"]["standby"], "")
            if token is unknown:
                follower.kill()
        # It retries: once its role is admin, it follows.
        self.change_tokens("a", lambda text: text.replace("pool trainer", "pool admin"))
        self.reload(primary)
        primary.until_in_sync()
        self.assertEqual(follower.status()["replica_set"]["waits"], "")
        self.check_counts(trainer, primary)

    def test_a_pair_gets_another_token(self):
        """As docs/guides/standby.md describes; no daemon takes over except by `psd switch`."""
        self.with_tokens()
        primary = self.by_token("a")
        self.until_primary(primary, 1)
        standby = self.by_token("b")
        trainer = self.trains((primary, standby))
        primary.until_in_sync()
        old = [line for line in (self.folder / "tokens-a").read_text().splitlines(True) if line.startswith("pair ")]
        new = self.token("pair", "admin")
        self.reload(primary, standby)
        self.own.write_text(new.read_text())

        standby.kill()
        standby = self.by_token("b", listen=standby.address)
        primary.until_in_sync()
        primary.switch_over()
        self.until_primary(standby, 2)
        standby.until_in_sync()
        primary.kill()
        primary = self.by_token("a", listen=primary.address)
        standby.until_in_sync()

        for place in PLACES:
            self.change_tokens(place, lambda text: text.replace(old[0], ""))
        self.reload(primary, standby)
        self.until_more(standby, "with the new token alone", 100)
        self.assertEqual(standby.until_in_sync()["replica_set"]["term"], 2)
        standby.kill()
        self.until_primary(primary, 3)
        standby = self.by_token("b", listen=standby.address)
        primary.until_in_sync()
        self.check_counts(trainer, primary)

    def test_a_trainer_is_warned_that_it_could_not_continue_at_the_standby(self):
        self.with_tokens()
        primary = self.by_token("a")
        self.until_primary(primary, 1)
        self.change_tokens("b", lambda text: "".join(line for line in text.splitlines(True) if not line.startswith("pool ")))
        standby = self.by_token("b")
        trainer = self.trains((primary, standby))
        primary.until_in_sync()
        processes.until("it is warned", lambda: "does not know this token" in trainer.err)
        self.assertIn(f"{standby.address} does not admit this trainer, which could not continue there after a takeover", trainer.err)
        self.until_more(primary, "by the trainer all the same")
        trainer.kill()
        self.assertEqual(standby.err.count("refused the login"), 1)

    def test_a_standby_that_is_no_longer_admitted_takes_over(self):
        self.with_tokens()
        other = self.folder / "other.token"
        other.touch(mode=0o600)
        other.write_text(self.token("other", "admin").read_text())
        primary = self.by_token("a")
        self.until_primary(primary, 1)
        standby = self.by_token("b", own=other)
        trainer = self.trains((primary, standby))
        primary.until_in_sync()
        self.until_more(primary, "before the token is taken out")
        self.change_tokens("a", lambda text: "".join(line for line in text.splitlines(True) if not line.startswith("other ")))
        self.reload(primary)
        self.until_primary(standby, 2)
        standby.until_in_sync()  # with the previous token
        self.until_more(standby, "by the one that was refused")
        self.check_counts(trainer, standby)

    def test_an_etcd_that_wants_a_user(self):
        self.with_tokens()
        secured = etcd.Etcd(self, self.authority)
        secured.require_user("joe", "joes password", "/psd/")

        def password(name, text):
            path = self.write(name, text + "\n")
            path.chmod(0o600)
            return str(path)

        self.engine = {"endpoints": [secured.endpoint], "prefix": "/psd/test", "user": "joe", "password_file": password("right", "joes password"),
                       "tls": {"ca": str(self.authority.path)}}
        for wrong, words in (({"password_file": password("wrong", "guessed")}, "authentication failed"),
                             ({"prefix": "/others/test"}, "permission denied"),
                             ({"tls": {"ca": str(certificates.Authority(self.folder, "other").path)}}, "cannot be trusted")):
            with self.subTest(words):
                refused = self.by_token("a", engine={**self.engine, **wrong})
                processes.until(f"it says why: {words}", lambda: words in refused.err)
                refused.until_status("it serves no trainer", lambda status: status["replica_set"]["role"] != "primary" and (
                    words in status["replica_set"]["waits"] + status["replica_set"]["engine"]))
                refused.kill()
        self.take_over_repeatedly(self.by_token)


if __name__ == "__main__":
    processes.main()
