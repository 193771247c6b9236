"""Several daemons that serve one model, from the view of users and operators: psd-trainer, and the commands that
address all."""

import json
import resource
import shutil
import signal
import subprocess

from processes import PSD, WAIT_S, ProcessTest, main, safetensors, trained_samples, until


class SeveralDaemons(ProcessTest):
    def several(self, count=2, **settings):
        self.addresses = [self.unix_address(f"{i}.sock") for i in range(count)]
        return [self.one(i, **settings) for i in range(count)]

    def one(self, index, durable=None, **settings):
        if durable:
            settings.update(durability__type=durable, durability__path=str(self.folder / f"saved-{index}"))
        return self.daemon("--index", str(index), listen=(self.addresses[index],), daemons=self.addresses, **settings)

    def psd(self, *arguments, status=0):
        done = subprocess.run([PSD, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=WAIT_S,
                              check=False, cwd=self.folder)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stderr

    def export(self, daemon, name):
        self.psd("export", "--server", daemon.address, "--to", name)
        return safetensors(self.folder / name)

    def test_a_run_from_start_to_end(self):
        daemons = self.several(policy="locked", exit_when_done="true")
        trainers = [self.start_trainer("train", "--server", self.addresses[1], "--rank", rank, "--world-size", 2, "--model", "mlp", "--data",
                                       "synthetic:512", "--epochs", 4, "--threads", 1, "--device", "cpu") for rank in range(2)]
        for trainer in trainers:
            self.assert_ends(trainer)
            self.assertIn("8 shard(s) on 2 daemons: ", trainer.err)
        for daemon in daemons:
            self.assert_ends(daemon)
            self.assertIn("all 2 trainers are done", daemon.err)

    def test_a_trainer_gives_up_where_one_of_the_daemons_does_not_come(self):
        for missing in range(2):
            with self.subTest(missing=missing):
                self.addresses = [self.unix_address(f"{missing}-{i}.sock") for i in range(2)]
                there = self.one(1 - missing)
                trainer = self.train(there.address, 0, 1, data="synthetic:64", more=("--connect-timeout", 0.5))
                self.assert_fails(trainer, f"daemon {missing} of 2, {self.addresses[missing]}: no psd daemon answered within ")
                self.assert_stops(there)

    def test_samples_are_assigned_by_the_lead(self):
        daemons = self.several(policy="locked", durable="log")
        trainers = [self.train(self.addresses[0], rank, 2, data="synthetic:300", more=("--data-plan", "dynamic", "--batch-size", 7)) for rank in range(2)]
        for trainer in trainers:
            self.assert_ends(trainer)
        self.assertNotIn("whole", self.psd("checkpoint", "--server", self.addresses[0]))  # a log starts at each
        for daemon in daemons:
            self.assert_stops(daemon)
        self.assertIn("all epochs are done: 300 samples", daemons[0].err)
        trained = trained_samples(self.folder / "saved-0")
        self.assertTrue(trained)
        for counted in trained.values():
            self.assertEqual(counted, {(0, place): 1 for place in range(300)})

    def test_the_commands_go_to_all(self):
        daemons = self.several(policy="locked", durable="checkpoint", world_size=1)
        trainer = self.endless_trainer(daemons[0])
        other = daemons[1].address

        table = self.psd("status", "--server", other)
        self.assertEqual(table.count("psd 0."), 2)
        self.assertIn(f"partition  0 of 2, served by {self.addresses[0]} {self.addresses[1]}", table)
        self.assertIn("partition  1 of 2", table)
        whole = json.loads(self.psd("status", "--json", "--server", other))["daemons"]
        self.assertEqual([one["partition"]["index"] for one in whole], [0, 1])
        here = json.loads(self.psd("status", "--json", "--here", "--server", other))
        self.assertEqual((here["partition"]["index"], here["partition"]["of"]), (1, 2))
        self.assertEqual(sum(one["model"]["parameters"] for one in whole), 203_530)

        changed = self.psd("set", "optimizer.lr=0.001", "--server", other)
        self.assertEqual(changed.count("optimizer.lr"), 2, changed)
        for daemon in daemons:
            self.assertIn("lr=0.001", daemon.status()["optimizer"])
        paths = self.psd("checkpoint", "--server", other).splitlines()[:2]
        self.assertEqual([path.split("/")[-2] for path in paths], ["saved-0", "saved-1"])
        self.assertIn("reload", self.psd("reload", "--help"))

        top = self.psd("top", "--count", 2, "--server", other)
        self.assertEqual(top.count("psd 0."), 4, top)
        self.assertEqual(self.psd("top", "--count", 1, "--here", "--server", other).count("psd 0."), 1)
        self.assertEqual(self.psd("status", "--watch", "--count", 1, "--server", other).count("partition  "), 2)
        events = [json.loads(line) for line in self.psd("events", "--json", "--server", other).splitlines()]
        self.assertEqual({event["daemon"] for event in events}, {0, 1})
        self.assertEqual(events, sorted(events, key=lambda event: event["time"]))
        self.assertIn("daemon 1 ", self.psd("events", "--server", other))
        self.assertNotIn("daemon 0 ", self.psd("events", "--here", "--server", other))

        tensors = self.export(daemons[1], "whole.safetensors")
        self.assertEqual({name: shape for name, (shape, _) in tensors.items()},
                         {"fc1.weight": [256, 784], "fc1.bias": [256], "fc2.weight": [10, 256], "fc2.bias": [10]})
        self.assertEqual([len(values) for _, values in tensors.values()], [256 * 784, 256, 10 * 256, 10])

        plan = json.loads(self.psd("placement", "--json", "--daemons", 2, "whole.safetensors"))["daemons"]
        self.assertEqual([part["parameters"] for part in plan], [one["model"]["parameters"] for one in whole])
        self.assertIn("daemon 1 ", self.psd("placement", "--daemons", 2, "whole.safetensors"))
        self.assertIn("partition 0 of 2", self.psd("placement", "--daemons", 2, "saved-0", status=2))
        self.assertIn("--daemons", self.psd("placement", "--daemons", 0, "whole.safetensors", status=2))
        self.assertIn("as in 'psd placement model.safetensors --daemons 3'", self.psd("placement", "whole.safetensors", status=2))
        self.assertIn("nowhere", self.psd("placement", "--daemons", 2, "nowhere", status=1))

        removed = self.psd("trainer", "remove", 0, "--server", other)
        self.assertIn("was removed", removed)  # by the lead; the trainer may already have left the other
        self.assertGreater(trainer.wait(), 0)

        following = self.start_psd("events", "--follow", "--server", other)
        until("it has the events of both", lambda: "daemon 0 " in following.out and "daemon 1 " in following.out)
        stopped = self.psd("stop", "--discard", "--server", other)
        self.assertEqual([line.split()[0] for line in stopped.splitlines()], self.addresses[::-1])
        for daemon in daemons:
            self.assert_ends(daemon)
        self.assert_ends(following)
        self.assertEqual(following.out.count("  stopping  "), 2, following.out)
        self.assertIn("daemon 1 of 2 is no longer followed: ", following.err)

    def test_a_checkpoint_of_the_whole(self):
        settings = {"policy": "locked", "durability__keep": 1, "durability__every_seconds": 0, "durability__every_updates": 2}
        daemons, saved = self.several(2, durable="checkpoint", **settings), [self.folder / f"saved-{i}" for i in range(2)]
        self.assert_ends(self.train(self.addresses[0], steps=3))
        said = self.psd("checkpoint", "--server", daemons[1].address).splitlines()
        numbers = [int(path.rpartition("-")[2]) for path in said[:2]]
        self.assertEqual(said[2], f"together these are a checkpoint of the whole model: {numbers[0]}, {numbers[1]}")
        before = self.export(daemons[0], "before.safetensors")
        self.assert_ends(self.train(self.addresses[0], steps=9))
        daemons[1].until_status("it has taken another one", lambda status: status["durability"]["checkpoints"] > numbers[1])
        daemons[1].kill()
        daemons[1] = self.one(1, policy="locked")  # it keeps none
        complaint = self.psd("checkpoint", "--server", daemons[0].address, status=2)
        self.assertIn(f"{self.addresses[1]}: durability.type is none", complaint)
        for daemon in daemons:
            daemon.kill()
        for folder, number in zip(saved, numbers):
            shown = json.loads(self.psd("inspect", "--json", folder))
            self.assertEqual(shown["whole_model"]["checkpoints"], numbers)
            self.assertIn(number, [each["number"] for each in shown["checkpoints"] if each["whole"]])
            self.assertIn(f"checkpoint of the whole model: {numbers[0]}, {numbers[1]}", self.psd("inspect", folder))
        self.assert_ends(self.repartition(*saved, "--whole", "--daemons", 1, "--to", "one"))
        self.assert_fails(self.start_psd("--listen", self.unix_address("none.sock"), "--set", "durability.type=checkpoint", "--set",
                                         f"durability.path={self.folder / 'one'}"), "such as '", "/one/partition-0'")
        self.psd("export", "one/partition-0", "--to", "after.safetensors")
        self.assertEqual(safetensors(self.folder / "after.safetensors"), before)
        shutil.rmtree(saved[1] / f"checkpoint-{numbers[1]:010}")
        self.assert_fails(self.repartition(*saved, "--whole", "--daemons", 1, "--to", "two"), "is missing, or not the one that ")
        (saved[0] / "whole.json").unlink()
        self.assert_fails(self.repartition(*saved, "--whole", "--daemons", 1, "--to", "two"), "names no checkpoint of the whole model")

    def test_what_one_would_refuse_changes_nothing_at_the_others(self):
        self.addresses = [self.unix_address(f"{i}.sock") for i in range(2)]
        files = [self.folder / f"{i}.json" for i in range(2)]

        def write(index, **limits):
            limits = {"slice_bytes": (1 + 7 * index) << 20, "message_bytes": 16 << 20, **limits}  # the second one has larger slices
            files[index].write_text(json.dumps({"daemons": self.addresses, "index": index, "limits": limits}))

        for index in range(2):
            write(index)
        daemons = [self.daemon("--config", files[index], listen=(self.addresses[index],), policy="locked") for index in range(2)]
        most = lambda: [daemon.status()["limits"]["all_outgoing_bytes"] for daemon in daemons]
        reloads = lambda: [(daemon.status()["counters"]["reloads"], daemon.status()["counters"]["reloads_refused"]) for daemon in daemons]
        before = most()
        self.psd("set", f"limits.all_outgoing_bytes={5 << 20}", "--server", self.addresses[0])
        self.assertEqual(most(), [5 << 20] * 2)
        complaint = self.psd("set", f"limits.outgoing_bytes={4 << 20}", "--server", self.addresses[0], status=2)
        self.assertIn(f"daemon 1 of 2 would refuse it, so nothing was changed: {self.addresses[1]}: ", complaint)
        self.assertEqual(reloads(), [(1, 0), (1, 0)])  # a check is no reload

        write(0, all_outgoing_bytes=6 << 20)
        write(1, all_outgoing_bytes=1)
        complaint = self.psd("reload", "--server", self.addresses[1], status=2)
        self.assertIn(f"daemon 1 of 2 would refuse it, so nothing was changed: {self.addresses[1]}: ", complaint)
        self.assertEqual(most(), [5 << 20] * 2)
        write(1)
        self.assertEqual(self.psd("reload", "--server", self.addresses[1]).count("limits.all_outgoing_bytes"), 2)
        self.assertEqual(most(), [6 << 20, before[1]])

    def test_where_one_does_not_answer_nothing_changes(self):
        daemons = self.several(policy="locked")
        daemons[1].signal(signal.SIGSTOP)
        self.psd("set", "optimizer.lr=0.5", "--server", daemons[0].address, "--timeout", 0.5, status=3)
        daemons[1].kill()
        complaint = self.psd("set", "optimizer.lr=0.5", "--server", daemons[0].address, status=1)
        self.assertIn("daemon 1 of 2 does not answer, so nothing was done: ", complaint)
        self.assertIn("lr=0.01", daemons[0].status()["optimizer"])
        status = subprocess.run([PSD, "status", "--server", daemons[0].address], capture_output=True, text=True, timeout=WAIT_S, check=False)
        self.assertGreater(status.returncode, 0)
        self.assertIn("daemon 1 of 2: ", status.stdout)
        top = subprocess.run([PSD, "top", "--count", "1", "--server", daemons[0].address], capture_output=True, text=True, timeout=WAIT_S,
                             check=False)
        self.assertGreater(top.returncode, 0)
        self.assertIn("daemon 1 of 2: ", top.stdout)
        self.assertIn(f"daemon 0 of 2: {daemons[0].address}", top.stdout)
        self.assertEqual(top.stdout.count("psd 0."), 1)
        self.psd("stop", "--discard", "--server", daemons[0].address, status=1)
        self.assert_ends(daemons[0])

    def test_a_folder_is_of_one_partition(self):
        daemons = self.several(policy="locked", durable="log")
        self.assert_ends(self.train(self.addresses[0], steps=3))
        for daemon in daemons:
            self.assert_stops(daemon)
        swapped = self.start_psd("--listen", self.addresses[0], "--set", f"daemons={json.dumps(self.addresses)}", "--index", "0", "--set",
                                 "durability.type=log", "--set", f"durability.path={self.folder / 'saved-1'}", "--set", "policy.type=locked")
        self.assert_fails(swapped, "is of partition 1 of 2, and by `daemons` and `index` this daemon serves partition 0 of 2")
        alone = self.start_psd("--listen", self.addresses[0], "--set", "durability.type=log", "--set",
                               f"durability.path={self.folder / 'saved-1'}", "--set", "policy.type=locked")
        self.assert_fails(alone, "is of partition 1 of 2", "serves the whole model")

    def repartition(self, *arguments):
        return self.start_psd("repartition", *arguments)

    def divided(self, count):
        """Stops the running daemons, divides their saved state for `count` daemons, and starts these; returns them and
        the command's output."""
        before = sorted(self.folder.glob("saved-*"))
        command = self.repartition(*before, "--daemons", count, "--to", self.folder / "new")
        self.assert_ends(command)
        for folder in before:
            folder.rename(self.folder / f"old-{folder.name}")
        for index in range(count):
            (self.folder / f"new/partition-{index}").rename(self.folder / f"saved-{index}")
        return command.out

    def test_another_number_of_daemons_resumes_a_run(self):
        settings = {"policy": "locked", "exit_when_done": "true", "world_size": 2, "durable": "log"}
        daemons = self.several(2, **settings)
        data = {"data": "synthetic:1200", "more": ("--data-plan", "dynamic", "--batch-size", 3)}
        trainers = [self.train(self.addresses[0], rank, 2, **data) for rank in range(2)]
        daemons[0].until_status("samples are done", lambda status: status["samples"] and status["samples"]["done"] > 100)
        for process in trainers + daemons:
            process.kill()
        said = self.divided(3)
        self.assertIn("from       partition 1 of 2 in ", said)
        self.assertIn("wrote      partition 2 of 3 to ", said)
        daemons = self.several(3, **settings)
        self.assertIn("resuming 1 epochs of ", daemons[0].err)
        self.assertNotIn("samples: 0 are done", daemons[0].err)
        trainers = [self.train(self.addresses[2], rank, 2, **data) for rank in range(2)]
        for trainer in trainers:
            self.assert_ends(trainer)
        for daemon in daemons:
            self.assert_ends(daemon)
        self.assertIn("all epochs are done: ", daemons[0].err)

    def test_who_was_done_is_known_to_another_number_of_daemons(self):
        settings = {"policy": "locked", "exit_when_done": "true", "world_size": 2, "durable": "checkpoint"}
        daemons = self.several(2, **settings)
        stays = self.endless_trainer(daemons[0], 1, 2)
        self.assert_ends(self.train(self.addresses[0], 0, 2, steps=3))
        for process in [*daemons, stays]:
            process.kill() if process is stays else self.assert_stops(process)
        self.divided(1)
        (daemon,) = self.several(1, **settings)
        self.assertIn("1 of 2 ranks have departed already", daemon.err)
        self.assert_ends(self.train(self.addresses[0], 1, 2, steps=3))
        self.assert_ends(daemon)

    def test_wrong_folders_are_not_divided(self):
        daemons = self.several(2, policy="locked", durable="log")
        self.assert_ends(self.train(self.addresses[0], steps=3))
        zero, one = (self.folder / f"saved-{i}" for i in range(2))
        self.assert_fails(self.repartition(zero, one, "--daemons", 3, "--to", self.folder / "new"), f"'{zero}' is in use by another daemon")
        for daemon in daemons:
            self.assert_stops(daemon)
        (copy := self.folder / "copy").mkdir()
        shutil.copytree(zero, copy, dirs_exist_ok=True)
        self.addresses = [self.unix_address("alone.sock")]
        alone = self.one(0, policy="locked", durability__type="checkpoint", durability__path=str(self.folder / "alone"))
        self.assert_ends(self.train(self.addresses[0], steps=3))
        self.assert_stops(alone)
        (full := self.folder / "full").mkdir()
        (file := full / "a-file").touch()
        (empty := self.folder / "empty").mkdir()
        (link := self.folder / "link").symlink_to(zero)
        checkpoint = next(zero.glob("checkpoint-*"))
        three = ("--daemons", 3, "--to", self.folder / "new")
        wrong = (
            ((zero, *three), "the folder of partition 1 of 2 is missing; pass those of all daemons"),
            ((one, *three), "the folder of partition 0 of 2 is missing"),
            ((zero, one, zero, *three), f"'{zero}' is given twice"),
            ((zero, f"{zero}/", *three), f"'{zero}' is given twice"),
            ((zero, f"{zero}/../{zero.name}", *three), "is given twice"),
            ((zero, link, *three), f"'{link}' is given twice"),
            ((zero, one, "--daemons", 3, "--to", zero / "new"), f"'{zero}/new' is in '{zero}'"),
            ((zero, one, "--daemons", 3, "--to", link / "new"), f"'{link}/new' is in '{zero}'"),
            ((zero, one, copy, *three), f"'{zero}' and '{copy}' are both of partition 0 of 2"),
            ((zero, self.folder / "alone", *three), "is of partition 0 of 2, and ", " of the whole model: they are not of the same run"),
            ((zero, one, "--daemons", 2, "--to", empty), "the folders are of 2 daemons already"),
            ((self.folder / "alone", "--daemons", 1, "--to", empty), "the folders are of 1 daemon already"),
            ((zero, one, "--daemons", 3, "--to", full), f"'{full}' is not empty; expected a new folder"),
            ((zero, one, "--daemons", 3, "--to", file), f"'{file}' is a file; expected a folder"),
            ((zero, one, "--daemons", 3, "--to", file / "new"), "a-file"),
            ((zero, one, "--daemons", 3, "--to", ""), "--to: expected the name of a new folder"),
            ((zero, one, "--daemons", 3, "--to", f"{empty}/./"), "--to: expected the name of a new folder"),
            ((zero, self.folder / "absent", *three), "there is no ", "absent"),
            ((file, *three), f"'{file}' is a file; expected the folder with checkpoints"),
            ((checkpoint, *three), "is one checkpoint; expected the folder with checkpoints"),
            ((empty, *three), f"there is no whole checkpoint in '{empty}'"),
            ((zero, one, "--daemons", 0, "--to", empty), "--daemons"),
            ((zero, one, "--daemons", 257, "--to", empty), "--daemons"),
            ((zero, one, "--daemons", "x", "--to", empty), "--daemons"),
            ((zero, one, "--to", empty), "--daemons"),
            ((zero, one, "--daemons", 3), "--to"),
            (three, "folders"),
        )
        for arguments, *words in wrong:
            with self.subTest(arguments):
                self.assert_fails(self.repartition(*arguments), *words)
        self.assertFalse((self.folder / "new").exists())
        self.assertEqual(list(self.folder.glob("*.tmp.*")), [])
        limited = subprocess.run([PSD, "repartition", *map(str, (zero, one, *three))], capture_output=True, text=True, timeout=WAIT_S, check=False,
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256)))
        self.assertEqual(limited.returncode, 1, limited.stderr)
        self.assertIn("File too large", limited.stderr)
        self.assertFalse((self.folder / "new").exists())
        for damaged in one.glob("checkpoint-*/shard-00001.safetensors"):
            damaged.write_bytes(damaged.read_bytes()[:-1])
        self.assert_fails(self.repartition(zero, one, *three), "no checkpoint in ")

    def test_wrong_configurations(self):
        two = '["tcp://a:1","tcp://b:1"]'
        wrong = (
            (("daemons=[\"tcp://a:1\",\"tcp://a:1\"]", "index=0"), "daemons[1]: tcp://a:1 is daemon 0 already"),
            (("daemons=[\"tcp://a:1\",\"nonsense\"]", "index=0"), "daemons[1]: "),
            (("daemons=[\"tcp://a:1\",\"tcp://*:1\"]", "index=0"), "is no address that trainers could connect to"),
            ((f"daemons={two}",), "index: is needed"),
            ((f"daemons={two}", "index=2"), "index"),
            (("index=0",), "index: requires `daemons`"),
            ((f"daemons={two}", "index=0", "policy.type=sync", "policy.round_timeout_ms=9", "policy.aggregator=krum", "world_size=5"),
             "aggregator krum compares whole gradients"),
            ((f"daemons={two}", "index=0", "policy.type=sync", "policy.round_timeout_ms=9", "policy.aggregator=rda", "world_size=5"),
             "aggregator rda compares whole tensors"),
            ((f"daemons={two}", "index=0", "policy.type=sync"), "give policy.round_timeout_ms"),
            ((f"daemons={two}", "index=0", "policy.type=sync", "policy.round_timeout_ms=9", "policy.on_timeout=fail"), "give policy.round_timeout_ms"),
            ((f"daemons={two}", "index=0", "policy.type=locked", 'policy.clip={"norm":1}'), "clip.norm needs the whole gradient"),
            ((f"daemons={two}", "index=0", 'model={"file":"m.safetensors"}'), "model: requires a single daemon"),
        )
        for settings, complaint in wrong:
            with self.subTest(settings):
                process = self.start_psd("--listen", "tcp://127.0.0.1:0", *(part for setting in settings for part in ("--set", setting)))
                self.assert_fails(process, complaint)
        self.assert_fails(self.start_psd("--set", f"daemons={two}", "--index", "x"), "--index x: index")


if __name__ == "__main__":
    main()
