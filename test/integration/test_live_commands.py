"""An operator's commands for a running daemon and their output: psd top, status --watch, events, checkpoint, set,
trainer remove, export --server; the same by POST; and the reports of trainers."""

import http.client
import json
import os
import pty
import socket
import subprocess
import urllib.parse

from processes import PSD, WAIT_S, ProcessTest, main, safetensors, until


class LiveTest(ProcessTest):
    def psd(self, *arguments):
        done = subprocess.run([PSD, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=WAIT_S, check=False, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def events(self, daemon):
        lines = self.psd("events", "--json", "--server", daemon.address).splitlines()
        return [json.loads(line) for line in lines]

    def kinds(self, daemon):
        return [event["kind"] for event in self.events(daemon)]

    def post(self, daemon, name, arguments=None):
        page = urllib.parse.urlsplit(daemon.page)
        connection = http.client.HTTPConnection(page.hostname, page.port, timeout=WAIT_S)
        self.addCleanup(connection.close)
        connection.request("POST", f"/api/{name}", json.dumps(arguments or {}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def get(self, daemon, path):
        page = urllib.parse.urlsplit(daemon.page)
        connection = http.client.HTTPConnection(page.hostname, page.port, timeout=WAIT_S)
        self.addCleanup(connection.close)
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


class ReportsTest(LiveTest):
    def test_trainers_tell_their_loss(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0")
        self.train(daemon.address, 0, 2, steps=10_000_000)
        self.train(daemon.address, 1, 2, steps=10_000_000)
        status = daemon.until_status("both report", lambda status: len(status["trainers"]) == 2 and all(
            trainer["reports"] for trainer in status["trainers"]))
        for trainer in status["trainers"]:
            values = {each["name"]: each["value"] for each in trainer["reports"]}
            self.assertGreater(trainer["reported_step"], 0)
            self.assertGreater(values["loss"], 0)
            self.assertGreater(values["samples_per_second"], 0)
        self.assertIn("loss", self.psd("status", "--server", daemon.address))
        history = self.get(daemon, "/api/history.json")["reports"]
        self.assertEqual(set(history), {"0", "1"})
        time, step, loss = history["1"]["loss"][0]
        self.assertGreater(step, 0)
        self.assertGreater(loss, 0)
        self.assertGreater(time, 1e9)

    def test_a_short_training_tells_at_its_end(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0")
        trainer = self.train(daemon.address, steps=3)
        self.assert_ends(trainer)
        points = self.get(daemon, "/api/history.json")["reports"]["0"]["loss"]
        self.assertEqual(points[-1][1], 3)


class DisplayTest(LiveTest):
    def test_top_without_terminal(self):
        daemon = self.daemon()
        self.endless_trainer(daemon)
        text = self.psd("top", "--count", 2, "--server", daemon.address)
        self.assertNotIn("\x1b", text)
        first, second = text.split("\n\n")
        self.assertIn("serving, mlp", first)
        rates = next(line for line in second.splitlines() if line.startswith("rates"))
        self.assertGreater(float(rates.split()[1]), 0)
        self.assertGreater(float(rates.split("gradients/s, ")[1].split()[0]), 0)

    def test_watch(self):
        daemon = self.daemon()
        text = self.psd("status", "--watch", "--count", 2, "--server", daemon.address)
        self.assertEqual(text.count("waiting for a model  pid"), 2)
        self.assert_fails(self.start_psd("status", "--watch", "--json", "--server", daemon.address), "--watch cannot be combined")
        self.assert_fails(self.start_psd("status", "--watch", "--count", "x", "--server", daemon.address), "--count")
        self.assert_fails(self.start_psd("status", "--count", 2, "--server", daemon.address), "--count", "--watch")

    def test_on_a_terminal_it_redraws(self):
        daemon = self.daemon()
        leader, follower = pty.openpty()
        done = subprocess.run([PSD, "top", "--count", "2", "--server", daemon.address], stdout=follower,
                              stdin=subprocess.DEVNULL, timeout=WAIT_S, check=False)
        os.close(follower)
        text = ""
        try:
            while part := os.read(leader, 65536):
                text += part.decode()
        except OSError:
            pass  # the other end is closed, and everything is read
        os.close(leader)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(text.count("\x1b[2J"), 1)
        self.assertEqual(text.count("\x1b[H"), 2)

    def test_a_daemon_that_goes(self):
        daemon = self.daemon()
        looks = self.start_psd("top", "--server", daemon.address)
        until("it looks", lambda: "no trainers" in looks.out)
        daemon.kill()
        self.assert_fails(looks, daemon.address)


class EventsTest(LiveTest):
    def test_joins_and_departures(self):
        config = self.write("psd.json", '{"log": {"level": "info"}, "membership": {"grace_ms": 0}}')
        daemon = self.daemon("--config", config)
        self.assertEqual(self.events(daemon), [])
        follower = self.start_psd("events", "--follow", "--server", daemon.address)
        self.assert_ends(self.train(daemon.address, 0, 2, steps=3))
        self.endless_trainer(daemon, 1, 2).kill()
        self.assertNotEqual(self.train(daemon.address, 1, 2, model="mnist_cnn", steps=3).wait(), 0)
        until("the loss is reported", lambda: "lost" in self.kinds(daemon))
        self.psd("reload", "--server", daemon.address)
        kinds = self.kinds(daemon)
        for kind in ("joined", "serving", "left", "lost", "refused", "reload"):
            self.assertIn(kind, kinds)
        events = self.events(daemon)
        self.assertEqual([event["number"] for event in events], list(range(1, len(events) + 1)))
        until("the follower has them", lambda: len(follower.out.splitlines()) == len(events))
        self.assertIn("rank 0 left after 3 steps", follower.out)
        self.assert_stops(daemon)
        self.assert_ends(follower)
        self.assertIn("stopping", follower.out)


class CheckpointTest(LiveTest):
    def test_now(self):
        saved = self.folder / "saved"
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", durability=json.dumps(
            {"type": "checkpoint", "path": str(saved), "every_seconds": 0}), policy="locked")
        self.assert_fails(self.start_psd("checkpoint", "--server", daemon.address), "the model has no values yet")
        self.assertEqual(self.post(daemon, "checkpoint")[0], 409)
        self.endless_trainer(daemon)
        path = self.psd("checkpoint", "--server", daemon.address).strip()
        self.assertIn("checkpoint-", path)
        self.psd("inspect", path)
        status, said = self.post(daemon, "checkpoint")
        self.assertEqual((status, said["message"].split()[-1]), (200, "complete"))
        self.assertGreaterEqual(daemon.status()["durability"]["checkpoints"], 2)
        until("it is announced", lambda: "checkpoint" in self.kinds(daemon))

    def test_several_at_once(self):
        saved = self.folder / "saved"
        daemon = self.daemon(durability=json.dumps({"type": "checkpoint", "path": str(saved), "every_seconds": 0}),
                             policy="locked")
        self.endless_trainer(daemon)
        self.psd("checkpoint", "--server", daemon.address)
        asked = [self.start_psd("checkpoint", "--server", daemon.address) for _ in range(6)]
        for each in asked:
            self.assert_ends(each)
            self.assertIn("checkpoint-", each.out)
        taken = daemon.status()["durability"]["checkpoints"]
        self.assertGreaterEqual(taken, 2)
        self.assertLessEqual(taken, 7)

    def test_without_durability(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0")
        self.assert_fails(self.start_psd("checkpoint", "--server", daemon.address), "durability.type is none")
        self.assertEqual(self.post(daemon, "checkpoint")[0], 400)


class SetTest(LiveTest):
    def test_one_key(self):
        daemon = self.daemon()
        self.assert_ends(self.train(daemon.address, steps=2))
        self.assertIn("optimizer.lr: 0.01 -> 0.5", self.psd("set", "--server", daemon.address, "optimizer.lr=0.5"))
        self.assertIn("lr=0.5", daemon.status()["optimizer"])
        self.assertIn("no changes", self.psd("set", "optimizer.lr=0.5", "--server", daemon.address))
        for assignment, words in (("threads=9", "threads: cannot change while the daemon runs"), ("polcy=1", "polcy: unknown key"),
                                  ("lr", "write KEY=VALUE"), ("optimizer.lr=[", "optimizer.lr")):
            self.assert_fails(self.start_psd("set", assignment, "--server", daemon.address), words)
        self.assertIn("optimizer.lr: 0.5 -> 0.01", self.psd("reload", "--server", daemon.address))
        self.psd("set", "optimizer.lr=0.5", "--server", daemon.address)
        self.assertIn("optimizer.lr: 0.5 -> 0.01", self.psd("set", "optimizer.lr=null", "--server", daemon.address))

    def test_another_type_comes_with_its_keys(self):
        daemon = self.daemon("--set", "policy.type=sync", "--set", "policy.quorum=1")
        self.assert_fails(self.start_psd("set", "policy.type=hogwild", "--server", daemon.address),
                          "set the object: policy={\"type\": …}")
        self.assertIn("policy.type", self.psd("set", 'policy={"type": "hogwild"}', "--server", daemon.address))


class ReserveTest(LiveTest):
    """Operators are admitted when limits.connections are open; trainers are not."""

    def test_a_limit_that_is_too_low_can_be_set_back(self):
        daemon = self.daemon()
        first = self.endless_trainer(daemon, 0, 2)
        self.psd("set", "limits.connections=1", "--server", daemon.address)
        second = self.train(daemon.address, 1, 2, steps=5, more=("--retry-timeout", 0))
        self.assert_fails(second, "limits.connections is reached")
        third = self.train(daemon.address, 1, 2, steps=5)
        until("it waits", lambda: "limits.connections is reached" in third.err and "trying again" in third.err)
        self.assertIn("serving", self.psd("status", "--server", daemon.address))
        self.assertIn("limits.connections: 1 -> 4096", self.psd("set", "limits.connections=4096", "--server", daemon.address))
        self.assert_ends(third)
        self.assertTrue(first.runs())

    def test_it_takes_role_admin(self):
        roles = {"looks": "reader", "ops": "admin", "pool": "trainer"}
        files = {name: self.make_token_file(name, role) for name, role in roles.items()}
        daemon = self.daemon(listen=("tcp://127.0.0.1:0", self.unix_address()), auth__tokens=str(self.folder / "tokens"),
                             limits__connections=1, limits__login_timeout_ms=2000)
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=WAIT_S), \
                socket.create_connection(("127.0.0.1", daemon.port), timeout=WAIT_S) as silent:
            silent.settimeout(WAIT_S)
            self.assertEqual(silent.recv(1), b"", "a peer without a login is disconnected")
        daemon.address = self.unix_address()
        holder = self.start_psd("events", "--follow", "--server", daemon.address)
        daemon.until_status("it holds the one connection", lambda status: status["gauges"]["connections_open"] == 2)
        look = ("status", "--server", daemon.addresses[0], "--token-file")
        self.assert_fails(self.start_psd(*look, files["looks"]), "the remaining connections are reserved for operators")
        self.psd(*look, files["ops"])
        self.assertTrue(holder.runs())

    def test_the_daemons_own_user_has_some_more(self):
        daemon = self.daemon(listen=(self.unix_address(), "tcp://127.0.0.1:0"), limits__connections=1)
        peers = []
        for _ in range(9):
            peers.append(socket.create_connection(("127.0.0.1", daemon.port), timeout=WAIT_S))
            self.addCleanup(peers[-1].close)
        self.assert_fails(self.start_psd("status", "--server", daemon.addresses[1]), daemon.addresses[1])
        self.assertEqual(daemon.status()["gauges"]["connections_open"], 10)
        self.assertEqual(daemon.counter("connections_refused"), 1)


class RemoveTest(LiveTest):
    def test_it_does_not_come_back(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0")
        first, second = (self.endless_trainer(daemon, rank, 2) for rank in (0, 1))
        said = self.psd("trainer", "remove", "--server", daemon.address, 1)
        self.assertIn(f"rank 1 (process {second.pid} on ", said)
        self.assert_fails(second, "removed by an operator")
        self.assertEqual([trainer["rank"] for trainer in daemon.status()["trainers"]], [0])
        self.assertIn("removed", self.kinds(daemon))
        self.assert_fails(self.start_psd("trainer", "remove", "1", "--server", daemon.address), "no trainer has rank 1")
        self.assert_fails(self.start_psd("trainer", "remove", "-1", "--server", daemon.address), "RANK")
        again = self.endless_trainer(daemon, 1, 2)  # another process may take the rank
        status, said = self.post(daemon, "remove", {"rank": 1})
        self.assertEqual(status, 200, said)
        self.assert_fails(again, "removed by an operator")
        for wrong in ({}, {"rank": "1"}, {"rank": -1}, {"rank": 1, "more": 2}, {"rank": 7}):
            self.assertEqual(self.post(daemon, "remove", wrong)[0], 400, wrong)
        self.assertTrue(first.runs())

    def test_no_trainer_waits_for_it(self):
        daemon = self.daemon(policy="sync", world_size='{"max": 2}')
        first = self.train(daemon.address, 0, 2, steps=10_000_000)
        second = self.train(daemon.address, 1, 2, steps=10_000_000)
        daemon.until_status("both train", lambda status: len(status["trainers"]) == 2 and status["counters"]["gradients"] > 4)
        self.psd("trainer", "remove", 1, "--server", daemon.address)
        self.assertNotEqual(second.wait(), 0)
        reached = daemon.status()["trainers"][0]["step"]
        daemon.until_status("the other continues", lambda status: status["trainers"][0]["step"] > reached + 5)
        self.assertTrue(first.runs())


class ExportTest(LiveTest):
    def test_as_the_final_model(self):
        final = self.folder / "final.safetensors"
        daemon = self.daemon(save=str(final), shards=3)
        self.assert_fails(self.start_psd("export", "--server", daemon.address, "early"), "the daemon has no model yet")
        self.assert_ends(self.train(daemon.address, steps=5))
        live = self.folder / "live.safetensors"
        self.assertIn("wrote model 'mlp'", self.psd("export", "--server", daemon.address, live))
        self.psd("inspect", live)
        self.assert_fails(self.start_psd("export", "--server", daemon.address), "one file is needed")
        self.assert_fails(self.start_psd("export", live), "a checkpoint and --to are needed")
        self.assert_fails(self.start_psd("export", "--server", daemon.address, self.folder / "no" / "x"), "no/x")
        self.assert_stops(daemon)
        self.assertEqual(safetensors(live), safetensors(final))


if __name__ == "__main__":
    main()
