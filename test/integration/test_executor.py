"""psd-executor with psd and psd-trainer --execute as real processes: training, crashes, and errors."""

import collections
import contextlib
import functools
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import types

import certificates
import processes

EXECUTOR = os.environ["PSD_EXECUTOR_BIN"]
# The module in docs/guides/executor.md, and one whose outputs fail.
POINTS = re.search(r"```python\n(.*?)```", (processes.REPO / "docs" / "guides" / "executor.md").read_text(encoding="utf-8"), re.S).group(1)
RETURNS = '        return {"logits"'
WRITES = POINTS.replace(RETURNS, f"        if not self.training:\n            self.net[0].weight.detach().mul_(0.9)\n{RETURNS}")
SELDOM = POINTS.replace(RETURNS, f'        if bool((batch["x"] < -1).any()):\n            self.net[0].weight.data.mul_(0.9)\n{RETURNS}')
THROWS = POINTS.replace(RETURNS, f'        if batch["x"].size(0) > 0:\n            raise ValueError("not today")\n{RETURNS}')


class ExecutorTest(processes.ProcessTest):
    def executor(self, daemon, *arguments, module="mlp", **settings):
        """A psd-executor that is ready, always at the same address; on the CPU by default."""
        settings = {"device": "cpu", **settings}
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        executor = processes.Process(self.folder, self._name("psd-executor"),
                                     [EXECUTOR, "--server", daemon.address, "--listen", self.unix_address("executor.sock"),
                                      "--module", module, *flags, *arguments])
        self.processes.append(executor)
        processes.until(f"{executor.name} is ready", lambda: "ready: listening on" in executor.err or not executor.runs())
        self.assertTrue(executor.runs(), executor.err)
        return executor

    def remote(self, rank=0, world_size=1, steps=None, data="synthetic:512", more=()):
        length = ["--steps", steps] if steps else ["--epochs", 1]
        return self.start_trainer("train", "--execute", self.unix_address("executor.sock"), "--rank", rank, "--world-size", world_size,
                                  "--data", data, *length, *more)

    def unix_daemon(self, *arguments, **settings):
        return self.daemon(*arguments, listen=(self.unix_address(), "tcp://127.0.0.1:0"), **settings)

    def executor_status(self):
        done = subprocess.run([EXECUTOR, "status", "--executor", self.unix_address("executor.sock")], capture_output=True, text=True,
                              timeout=processes.WAIT_S, check=True)
        return json.loads(done.stdout)

    def until_steps(self, daemon, steps):
        daemon.until_status(f"{steps} steps of each trainer",
                            lambda status: status["trainers"] and all(each["step"] >= steps for each in status["trainers"]))

    def accuracy(self, trainer):
        return float(re.search(r"accuracy ([0-9.]+) %", trainer.out).group(1))

    def pushes_of(self, folder):
        """By shard, the number of times that each (rank, step) is in the log."""
        counts = collections.defaultdict(collections.Counter)
        for update in processes.read_log(folder):
            for rank, _, step in update.pushes:
                counts[update.shard][rank, step] += 1
        return counts


class Training(ExecutorTest):
    def test_two_trainers_come_as_far_as_with_gradients_of_their_own(self):
        daemon = self.unix_daemon()
        executor = self.executor(daemon)
        trainers = [self.remote(rank, 2, steps=60) for rank in range(2)]
        for trainer in trainers:
            self.assert_ends(trainer)
        executor.signal(signal.SIGTERM)
        self.assert_ends(executor)
        self.assertEqual(daemon.status()["counters"]["gradients"], 120)
        self.assert_stops(daemon)

        other = self.unix_daemon()
        own = [self.train(other.address, rank, 2, data="synthetic:512", steps=60) for rank in range(2)]
        for trainer in own:
            self.assert_ends(trainer)
        self.assertGreater(self.accuracy(trainers[0]), self.accuracy(own[0]) - 3)

    def test_what_fits_a_step_fits_the_final_score(self):
        self.executor(self.unix_daemon(), message_bytes=256 << 10)
        trainer = self.remote(more=("--batch-size", 32))
        self.assert_ends(trainer)
        self.assertRegex(trainer.out, r"rank 0  test loss .* on 128 synthetic images")

    def test_stages_train_as_the_whole_does(self):
        daemon = self.unix_daemon()
        executor = self.executor(daemon, stages=[{"layer": "fc2", "device": "cpu"}], micro_batches=3, workers=2)
        self.assertIn(" device cpu,cpu,", executor.err)
        self.assertEqual(self.executor_status()["devices"], ["cpu", "cpu"])
        trainers = [self.remote(rank, 2, steps=60, more=("--micro-batches", 1 + 3 * rank)) for rank in range(2)]
        for trainer in trainers:
            self.assert_ends(trainer)
        self.assertGreater(self.accuracy(trainers[0]), 80)
        self.assertTrue(executor.runs())
        self.assertEqual(daemon.status()["counters"]["gradients"], 120)

    def test_parts_that_the_executor_does_not_take_are_refused_at_the_start(self):
        daemon = self.unix_daemon()
        for keys, word in (({"exclusive": True}, "exclusive"), ({"contexts": 2}, "contexts")):
            with self.subTest(word):
                executor = self.executor(daemon, **keys)
                trainer = self.remote(steps=1, more=("--micro-batches", 3))
                self.assert_fails(trainer, "--micro-batches: ", f"`{word}`")
                self.assertEqual(trainer.wait(), 2)
                executor.signal(signal.SIGTERM)
                self.assert_ends(executor)

    def test_a_bound_on_staleness_lets_a_trainer_wait_for_a_slower_one(self):
        daemon = self.unix_daemon(policy="bounded_staleness", policy__bound=2, membership__lease_ms=600_000)
        self.executor(daemon, silence_ms=600_000)
        ahead, slow = self.remote(0, 2, steps=10_000_000), self.remote(1, 2, steps=10_000_000)
        daemon.until_status("both train", lambda status: len(status["trainers"]) == 2 and all(each["step"] > 1 for each in status["trainers"]))
        slow.signal(signal.SIGSTOP)

        def step_of(status, rank):
            return next(each["step"] for each in status["trainers"] if each["rank"] == rank)

        waits = daemon.until_status("rank 0 waits", lambda status: any(
            each["ranks"] == [0] and [one["rank"] for one in each["for"]] == [1] for each in status["waiting"]))
        self.assertEqual(step_of(daemon.status(), 0), step_of(waits, 0))
        self.assertEqual(self.executor_status()["calls"], 1)  # its forward pass, which waits for the parameters
        slow.signal(signal.SIGCONT)
        daemon.until_status("both continue", lambda status: step_of(status, 0) > step_of(waits, 0) + 5)
        for trainer in (ahead, slow):
            trainer.signal(signal.SIGINT)
            self.assert_ends(trainer, 128 + signal.SIGINT)

    def test_language_models_train_as_with_gradients_of_their_own(self):
        words = " ".join(f"w{(3 * i * i + i) % 7}" for i in range(3000))
        data = f"text:{self.write('words.txt', words)}:length=10"
        for module in ("gpt:layers=1,width=16,heads=2,context=10,vocabulary=9", "lstm_lm:embedding=8,hidden=12,vocabulary=9"):
            with self.subTest(module):
                values, scores = [], []
                for execute in (True, False):
                    daemon = self.daemon(listen=(self.unix_address(f"{execute}-{module[:3]}.sock"),), optimizer='{"type":"sgd","lr":0.3,"momentum":0.9}')
                    more = ("--batch-size", 16)
                    if execute:
                        executor = self.executor(daemon, module=module)
                        trainer = self.remote(data=data, steps=60, more=more)
                    else:
                        trainer = self.train(daemon.address, model=module, data=data, steps=60, more=more)
                    self.assert_ends(trainer)
                    path = self.folder / f"{execute}-{module[:3]}.safetensors"
                    self.assert_ends(self.start_psd("export", "--server", daemon.address, "--to", path))
                    values.append([value for _, tensor in processes.safetensors(path).values() for value in tensor])
                    scores.append([float(each) for each in re.search(
                        r"test loss ([0-9.]+), perplexity ([0-9.]+), accuracy ([0-9.]+) %", trainer.out).groups()])
                executor.signal(signal.SIGTERM)
                self.assert_ends(executor)
                self.assertLess(max(abs(a - b) for a, b in zip(*values)), 1e-3)
                self.assertAlmostEqual(scores[0][0], scores[1][0], places=3)
                self.assertLess(scores[0][1], 6.5)  # of seven words, the score of guessing

    def test_a_module_of_ones_own_gives_outputs(self):
        self.assertNotEqual(THROWS, POINTS)
        for name, source in (("points", POINTS), ("throws", THROWS)):
            self.write(f"{name}.py", source)
            subprocess.run([processes.REPO / "scripts" / "export_model", f"{name}.py:Points"], cwd=self.folder, check=True,
                           stdout=subprocess.DEVNULL, timeout=processes.WAIT_S)
        done = subprocess.run([EXECUTOR, "check", "--module", self.folder / "points.pt", "--set", 'stages=["net"]'], capture_output=True,
                              text=True, timeout=processes.WAIT_S, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "^psd-executor: stages: model 'points' cannot be cut at its layers; expected one of mlp")
        rows = [f"{x / 20},{y / 20},{int(x + y > 20)}" for x in range(20) for y in range(20)]
        data = self.write("points.csv", "\n".join(["x,y,label", *rows]) + "\n")
        daemon = self.unix_daemon(optimizer='{"type":"adam","lr":0.02}')
        executor = self.executor(daemon, module=self.folder / "points.pt")
        trainer = self.remote(data=data, steps=200)
        self.assert_ends(trainer)
        self.assertGreater(self.accuracy(trainer), 95)
        scored = self.start_trainer("eval", "--server", daemon.address, "--model", self.folder / "points.pt", "--data", data)
        self.assert_ends(scored)  # the same file computes the loss, too

        executor.kill()
        self.executor(daemon, module=self.folder / "throws.pt")
        self.assert_fails(self.remote(data=data), "outputs failed", "not today")
        self.assertEqual(self.executor_status()["trainers"], [])


    def test_a_module_that_writes_to_its_parameters_is_refused_before_a_trainer_comes(self):
        self.assertNotEqual(WRITES, POINTS)
        self.write("writes.py", WRITES)
        subprocess.run([processes.REPO / "scripts" / "export_model", "writes.py:Points"], cwd=self.folder, check=True,
                       stdout=subprocess.DEVNULL, timeout=processes.WAIT_S)
        for weights in ("live", "stashed"):
            done = subprocess.run([EXECUTOR, "--listen", self.unix_address("executor.sock"), "--module", self.folder / "writes.pt",
                                   "--set", f'weights="{weights}"'], capture_output=True, text=True, timeout=processes.WAIT_S, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, r"^psd-executor: module: '.*writes.pt': outputs wrote to parameter 'net.0.weight' \(.*writes.py:\d+\): ")
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_a_pass_that_writes_to_parameters_fails_and_the_executor_serves_on(self):
        self.assertNotEqual(SELDOM, POINTS)
        self.write("seldom.py", SELDOM)
        subprocess.run([processes.REPO / "scripts" / "export_model", "seldom.py:Points"], cwd=self.folder, check=True,
                       stdout=subprocess.DEVNULL, timeout=processes.WAIT_S)
        right = self.write("right.csv", "x,y,label\n" + "".join(f"{x / 20},0.5,{x % 2}\n" for x in range(60)))
        wrong = self.write("wrong.csv", "x,y,label\n" + "".join(f"{x / 20 - 9},0.5,{x % 2}\n" for x in range(60)))
        for weights in ("live", "stashed"):
            with self.subTest(weights=weights):
                daemon = self.unix_daemon()
                executor = self.executor(daemon, module=self.folder / "seldom.pt", weights=weights)
                self.assert_fails(self.remote(data=wrong), "outputs wrote to parameter 'net.0.weight'")
                self.assert_ends(self.remote(data=right))
                executor.kill()
                self.assert_stops(daemon)


class Waits(ExecutorTest):
    """Waits for a daemon or an executor that does not answer."""

    @contextlib.contextmanager
    def black_hole(self):
        """An address that neither accepts nor refuses connections."""
        with contextlib.ExitStack() as open_sockets:
            hole = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            for _ in range(8):
                filling = open_sockets.enter_context(socket.socket())
                filling.setblocking(False)
                filling.connect_ex(hole.getsockname())
            yield f"tcp://127.0.0.1:{hole.getsockname()[1]}"

    @contextlib.contextmanager
    def silent(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"

    @contextlib.contextmanager
    def unused(self):
        yield self.unix_address("none.sock")

    def test_a_trainer_waits_for_its_executor_until_its_timeout(self):
        for place in (self.unused, self.silent, self.black_hole):
            with self.subTest(place.__name__), place() as address:
                trainer = self.start_trainer("train", "--execute", address, "--data", "synthetic:128", "--connect-timeout", 0.3)
                self.assert_fails(trainer, "--execute", "no executor answered", address)

    def test_an_executor_waits_for_its_daemon_until_its_timeout(self):
        for place in (self.unused, self.silent, self.black_hole):
            with self.subTest(place.__name__), place() as address:
                executor = self.executor(types.SimpleNamespace(address=address), connect_timeout_ms=100)
                # The first join is limited by --connect-timeout, whatever --retry-timeout is.
                trainer = self.remote(more=["--connect-timeout", 0.5, "--retry-timeout", 3600])
                self.assert_fails(trainer, "did not admit this trainer within 500 ms", "no psd daemon answered within 100 ms", address)
                executor.signal(signal.SIGTERM)
                self.assert_ends(executor)

    def test_trainers_may_come_before_the_daemon(self):
        self.executor(types.SimpleNamespace(address=self.unix_address()), connect_timeout_ms=100)
        trainer = self.remote(steps=3, more=["--connect-timeout", processes.WAIT_S, "--retry-timeout", 0])
        processes.until("it reports that there is no answer", lambda: "trying again" in trainer.err)
        daemon = self.daemon(listen=(self.unix_address(),))
        self.assert_ends(trainer)
        self.assertEqual(daemon.status()["counters"]["gradients"], 3)

    def test_trainers_that_are_killed_leave_no_thread_behind(self):
        daemon = self.unix_daemon(policy="sync", membership__grace_ms=100)
        executor = self.executor(daemon)

        def threads():
            return len(os.listdir(f"/proc/{executor.pid}/task"))

        def killed_while_it_waits():
            trainer = self.remote(0, 2, steps=10_000_000)  # it waits for the other rank's step, which does not arrive
            processes.until("it waits", lambda: self.executor_status()["calls"] > 0 and not self.executor_status()["computing"])
            trainer.kill()
            processes.until("it is gone", lambda: not self.executor_status()["trainers"] and not self.executor_status()["ending"])
            return threads()

        first = killed_while_it_waits()
        for _ in range(3):
            self.assertLessEqual(killed_while_it_waits(), first)


class Death(ExecutorTest):
    def test_an_executor_that_is_killed_loses_nothing_and_nothing_is_applied_twice(self):
        daemon = self.unix_daemon(policy="locked", durability__type="log", durability__path=str(self.folder / "saved"))
        executor = self.executor(daemon)
        trainers = [self.remote(rank, 2, steps=150, more=("--micro-batches", 1 + 2 * rank)) for rank in range(2)]
        struck = set()
        for goal in (10, 30):
            self.until_steps(daemon, goal)
            struck |= {each["rank"] for each in daemon.status()["trainers"] if each["step"] > 0}
            executor.kill()
            self.assertTrue(daemon.status()["state"])  # it continues to serve
            executor = self.executor(daemon)
        for trainer in trainers:
            self.assert_ends(trainer)
        self.assertTrue(struck)
        for rank in struck:  # the other one may have joined after both kills
            self.assertIn("back after", trainers[rank].err)
        executor.signal(signal.SIGTERM)
        self.assert_ends(executor)
        self.assert_stops(daemon)
        counts = self.pushes_of(self.folder / "saved")
        self.assertEqual(len(counts), 4)
        for shard, pushes in counts.items():
            self.assertEqual(set(pushes.values()), {1}, f"a step was applied twice in shard {shard}")
            self.assertLessEqual(len(pushes), 300)
            # A step of which one part had arrived when the executor died may count as late.
            self.assertGreaterEqual(len(pushes), 300 - 4)

    def test_a_killed_daemon_restarts_and_the_trainers_continue(self):
        settings = {"policy": "locked", "durability__type": "log", "durability__path": str(self.folder / "saved")}
        daemon = self.daemon(listen=(self.unix_address(),), **settings)
        executor = self.executor(daemon)
        trainers = [self.remote(rank, 2, steps=120) for rank in range(2)]
        self.until_steps(daemon, 20)
        daemon.kill()
        daemon = self.daemon(listen=(self.unix_address(),), **settings)
        for trainer in trainers:
            self.assert_ends(trainer)
        self.assertTrue(executor.runs())
        self.assert_stops(daemon)
        for pushes in self.pushes_of(self.folder / "saved").values():
            self.assertEqual(set(pushes.values()), {1})
            self.assertEqual(len(pushes), 240)

    def test_a_trainer_that_is_killed_is_lost_to_the_daemon_and_holds_nothing(self):
        daemon = self.unix_daemon(membership__grace_ms=100)
        self.executor(daemon)
        gone, other = self.remote(0, 2, steps=10_000_000), self.remote(1, 2, steps=10_000_000)
        self.until_steps(daemon, 5)
        gone.kill()
        daemon.until_status("rank 0 is lost", lambda status: [each["rank"] for each in status["trainers"]] == [1])
        self.assertEqual([each["rank"] for each in self.executor_status()["trainers"]], [1])
        other.signal(signal.SIGINT)
        self.assert_ends(other, 128 + signal.SIGINT)
        daemon.until_status("rank 1 has left", lambda status: status["trainers"] == [])

    def test_a_frozen_executor_is_given_up_and_what_it_still_holds_is_refused(self):
        daemon = self.unix_daemon(policy="locked", durability__type="log", durability__path=str(self.folder / "saved"))
        frozen = self.executor(daemon, silence_ms=3000)
        trainer = self.remote(steps=60)
        self.until_steps(daemon, 5)
        frozen.signal(signal.SIGSTOP)
        processes.until("the trainer gives it up", lambda: "received nothing from the executor" in trainer.err)
        (self.folder / "executor.sock").unlink()
        self.executor(daemon)
        self.assert_ends(trainer)
        frozen.signal(signal.SIGCONT)
        frozen.kill()
        self.assert_stops(daemon)
        for pushes in self.pushes_of(self.folder / "saved").values():
            self.assertEqual(set(pushes.values()), {1})


    def test_a_stopped_trainer_is_disconnected_and_reconnects(self):
        daemon = self.unix_daemon(policy="locked", durability__type="log", durability__path=str(self.folder / "saved"),
                                  membership__grace_ms=100)
        self.executor(daemon, silence_ms=3000)
        frozen, other = self.remote(0, 2, steps=10_000_000), self.remote(1, 2, steps=10_000_000)
        daemon.until_status("both are in", lambda status: len(status["trainers"]) == 2)
        self.until_steps(daemon, 5)
        frozen.signal(signal.SIGSTOP)
        made = next(each["step"] for each in daemon.status()["trainers"] if each["rank"] == 0)
        daemon.until_status("rank 0 is lost", lambda status: [each["rank"] for each in status["trainers"]] == [1])
        self.assertEqual([each["rank"] for each in self.executor_status()["trainers"]], [1])
        frozen.signal(signal.SIGCONT)
        processes.until("it is back", lambda: "back after" in frozen.err)
        daemon.until_status("it continues", lambda status: any(each["rank"] == 0 and each["step"] >= made + 20 for each in status["trainers"]))
        for trainer in (frozen, other):
            trainer.signal(signal.SIGINT)
            self.assert_ends(trainer, 128 + signal.SIGINT)
        self.assert_stops(daemon)
        for pushes in self.pushes_of(self.folder / "saved").values():
            self.assertEqual(set(pushes.values()), {1})
            steps = {step for rank, step in pushes if rank == 0}
            first = min(steps)  # the log begins at the first checkpoint, which may have some steps in it
            self.assertEqual(steps, set(range(first, first + len(steps))))
            self.assertLessEqual(first, made + 1)
            self.assertGreaterEqual(max(steps), made + 20)

    def test_an_executor_that_comes_back_with_another_module_ends_its_trainers(self):
        daemon = self.unix_daemon()
        executor = self.executor(daemon)
        trainer = self.remote(steps=10_000_000)
        self.until_steps(daemon, 5)
        executor.kill()
        self.executor(daemon, module="mnist_cnn")
        self.assert_fails(trainer, "now has module 'mnist_cnn'", "trains 'mlp'")


class Security(ExecutorTest):
    def test_trainers_of_other_machines_show_a_certificate(self):
        daemon = self.unix_daemon()
        authority = certificates.Authority(self.folder)
        certificate, key = authority.sign("executor", alternatives="IP:127.0.0.1")
        executor = self.executor(daemon, "--listen", "tls://127.0.0.1:0",
                                 tls={"certificate": str(certificate), "key": str(key), "client_ca": str(authority.path)})
        address = re.search(r"tls://127.0.0.1:\d+", executor.err).group(0)

        def remote(*flags):
            return self.start_trainer("train", "--execute", address, "--data", "synthetic:128", "--steps", 3, "--tls-ca", authority.path, *flags)

        def shown(name, signer):
            certificate, key = signer.sign(name)
            return "--tls-cert", certificate, "--tls-key", key

        self.assert_ends(remote(*shown("alice", authority)))
        self.assertIn("as 'alice'", executor.err)
        self.assert_fails(remote(), "--execute")
        self.assert_fails(remote(*shown("rogue", certificates.Authority(self.folder, "stranger"))), "--execute")
        self.assertEqual(daemon.status()["counters"]["gradients"], 3)


class Http(ExecutorTest):
    def ask(self, executor, path, method="GET", context=None, **headers):
        """The status, the headers and the text of an answer."""
        port = int(re.search(r"metrics at https?://127\.0\.0\.1:(\d+)/", executor.err).group(1))
        kind = functools.partial(http.client.HTTPSConnection, context=context) if context else http.client.HTTPConnection
        with contextlib.closing(kind("127.0.0.1", port, timeout=processes.WAIT_S)) as connection:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()

    def test_what_an_executor_tells(self):
        daemon = self.unix_daemon()
        executor = self.executor(daemon, http={"listen": ["tcp://127.0.0.1:0"]}, trainers=1)
        self.assertEqual(self.ask(executor, "/healthz")[::2], (200, "ok\n"))
        self.assertEqual(self.ask(executor, "/readyz")[::2], (200, "ready\n"))
        self.remote(steps=10_000_000)
        self.until_steps(daemon, 5)
        status, headers, text = self.ask(executor, "/metrics")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        named = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
        self.assertEqual(named, re.findall(r"^# HELP (\S+)", text, re.MULTILINE))
        self.assertEqual(len(named), len(set(named)))

        def value(name):
            return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])

        self.assertGreaterEqual(value('psd_executor_trainer_steps_total{rank="0"}'), 5)
        self.assertGreater(value("process_cpu_seconds_total"), 0)
        for call in ("forward", "backward"):
            passes = value(f'psd_executor_pass_seconds_count{{call="{call}"}}')
            self.assertGreaterEqual(passes, 5)
            self.assertGreater(value(f'psd_executor_pass_seconds_sum{{call="{call}"}}'), 0)
            self.assertEqual(value(f'psd_executor_pass_seconds_bucket{{call="{call}",le="+Inf"}}'), passes)
            self.assertGreaterEqual(value(f'psd_executor_waited_seconds_count{{call="{call}"}}'), passes)
        self.assertGreater(value("psd_executor_memory_bytes"), 0)
        self.assertEqual(value("psd_executor_trainers_limit"), 1)
        self.assertEqual(self.ask(executor, "/readyz")[::2], (503, "1 trainers are admitted; `trainers` allows 1\n"))
        self.assertEqual([each["rank"] for each in json.loads(self.ask(executor, "/api/status.json")[2])["trainers"]], [0])
        page = (processes.REPO / "docs" / "guides" / "monitoring.md").read_text(encoding="utf-8")
        self.assertEqual({re.sub("_sum$", "", name) for name in re.findall(r"\bpsd_executor_\w+", page)},
                         {name for name in named if not name.startswith("process_")})
        if not shutil.which("promtool"):
            self.skipTest("promtool is missing: apt install prometheus")
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))

    def test_what_is_not_there_or_not_for_it(self):
        executor = self.executor(self.unix_daemon(), http={"listen": ["tcp://127.0.0.1:0"]})
        self.assertEqual(self.ask(executor, "/")[0], 404)
        self.assertEqual(self.ask(executor, "/metrics", "HEAD")[::2], (200, ""))
        status, headers, _ = self.ask(executor, "/metrics", "POST")
        self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))
        self.assertEqual(self.ask(executor, "/metrics", Host="elsewhere.example")[0], 421)

    def test_other_machines_show_a_certificate(self):
        authority = certificates.Authority(self.folder)
        certificate, key = authority.sign("executor", alternatives="IP:127.0.0.1")
        executor = self.executor(self.unix_daemon(), http={"listen": ["tls://127.0.0.1:0"]},
                                 tls={"certificate": str(certificate), "key": str(key), "client_ca": str(authority.path)})
        context = ssl.create_default_context(cafile=authority.path)
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.ask(executor, "/metrics", context=context)
        context.load_cert_chain(*authority.sign("prometheus"))
        self.assertEqual(self.ask(executor, "/metrics", context=context)[0], 200)


class Nonsense(ExecutorTest):
    def test_foreign_bytes_and_silent_peers_harm_no_other(self):
        daemon = self.unix_daemon()
        executor = self.executor(daemon, silence_ms=300, connections=8)
        path = str(self.folder / "executor.sock")
        peers = []
        for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, b"\0" * 16, bytes([0, 0, 0, 0, 255, 255, 255, 127])):
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(path)
            peer.sendall(sent)
            peers.append(peer)
        for peer in peers:
            peer.settimeout(processes.WAIT_S)
            try:
                while peer.recv(4096):  # until the connection is closed
                    pass
            except ConnectionResetError:
                pass
            peer.close()
        self.assertTrue(executor.runs())
        self.assert_ends(self.remote(steps=2))

    def test_peers_that_take_all_connections_are_reported(self):
        executor = self.executor(self.unix_daemon(), connections=2, silence_ms=3_600_000, http={"listen": ["tcp://127.0.0.1:0"]})
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(self.folder / "executor.sock"))
            processes.until("both are in", lambda: Http.ask(self, executor, "/readyz")[::2] == (503, "`connections` (2) are open\n"))
            self.assert_fails(self.remote(more=["--connect-timeout", "1"]), "its log has the reason, such as the limit `connections`")
        processes.until("they are gone", lambda: Http.ask(self, executor, "/readyz")[::2] == (200, "ready\n"))

    def test_an_executor_that_hangs_up_at_once_is_tried_again(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(processes.WAIT_S)
            port = listening.getsockname()[1]
            for scheme in ("tcp", "tls"):
                trainer = self.start_trainer("train", "--execute", f"{scheme}://127.0.0.1:{port}", "--data", "synthetic:128",
                                             "--connect-timeout", processes.WAIT_S)
                for _ in range(5):
                    peer, _ = listening.accept()
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
                    peer.close()
                trainer.kill()

    def test_wrong_command_lines_get_one_line(self):
        daemon = self.unix_daemon()

        def refused(words, *arguments):
            done = subprocess.run([EXECUTOR, *map(str, arguments)], capture_output=True, text=True, timeout=processes.WAIT_S, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            complaints = [line for line in done.stderr.splitlines() if line.startswith("psd-executor: ")]
            self.assertEqual(len(complaints), 1, done.stderr)
            for word in words:
                self.assertIn(word, complaints[0])

        refused(["listen[0]", "lets other machines in"], "--listen", "tcp://0.0.0.0:0")
        refused(["http.listen[0]", "lets other machines in"], "--set", 'http.listen=["tcp://0.0.0.0:0"]')
        refused(["http.listen[0]", "needs `tls`"], "--set", 'http.listen=["tls://*:0"]')
        refused(["http.timeout_ms"], "--set", "http.timeout_ms=1")
        refused(["module", "'mnist_cn'", "Did you mean mnist_cnn?"], "--server", daemon.address, "--module", "mnist_cn")
        refused(["module", "lstm_lm", "has no outputs"], "--module", "lstm_lm:candidates=8")
        refused(["stages[0]", "no layer 'fc9'", "one of fc2"], "check", "--module", "mlp", "--set", 'stages=["fc9"]')
        refused(["micro_batches", "requires `stages`"], "check", "--set", "micro_batches=2")
        refused(["device: 'gpu' is not a device; expected auto, cpu or cuda:N"], "check", "--device", "gpu")
        refused(["device: cuda:63 is not there; this machine shows "], "check", "--device", "cuda:63")
        refused(["stages[0].device: cuda:63 is not there; this machine shows "], "check", "--module", "mlp", "--set",
                'stages=[{"layer":"fc2","device":"cuda:63"}]')
        refused(["device: cuda:0 cannot be combined with \"weights\": \"live\""], "--server", daemon.address, "--device", "cuda:0", "--set",
                'weights="live"')
        refused(["memory_bytes"], "--set", "memory_bytes=1048576")
        refused(["module", "lstm_lm", "has no outputs"], "check", "--module", "lstm_lm:candidates=8")
        refused(["memory_bytes"], "check", "--set", "memory_bytes=1048576")
        config = self.write("executor.json", '{"listen": ["tcp://localhost:0"], "contexts": "many"}')
        refused([f"{config}: contexts"], "--config", config)
        refused(["--set contexts.most=3: contexts: must be an integer"], "check", "--set", "contexts.most=3")
        refused(["--listen tcp:/: listen[1]"], "check", "--listen", "tcp://localhost:0", "--listen", "tcp:/")
        checked = subprocess.run([EXECUTOR, "check", "--set", "workers=3"], capture_output=True, text=True, timeout=processes.WAIT_S, check=True)
        self.assertEqual(json.loads(checked.stdout)["workers"], 3)
        self.assertEqual(json.loads(checked.stdout)["device"], "auto")

        for flag in (["--model", "mlp"], ["--data-plan", "dynamic"]):
            self.assert_fails(self.remote(more=flag), flag[0], "--execute")
        self.assert_fails(self.remote(more=["--connect-timeout", "0.2"]), "--execute", "no executor answered")
        self.assert_fails(self.start_trainer("train", "--execute", "unix:///a,unix:///b", "--data", "synthetic:128"),
                          "--execute: takes one address")
        self.assert_fails(self.remote(more=["--metrics", self.folder / "nowhere" / "steps.jsonl"]), "--metrics")  # before it connects

    def test_data_that_the_module_does_not_take_are_refused_before_the_daemon_is_asked(self):
        daemon = self.unix_daemon()
        self.executor(daemon)
        data = self.write("points.csv", "x,label\n" + "1,0\n" * 20)
        self.assert_fails(self.remote(data=data), "'image' is not there")
        self.assertEqual(daemon.status()["trainers"], [])


if __name__ == "__main__":
    processes.main()
