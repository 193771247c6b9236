"""An operator's mistakes with psd alone: one clear line, a non-zero exit, and a running daemon is unharmed."""

import json
import os
import socket
import subprocess
import threading

import processes


class WrongConfiguration(processes.ProcessTest):
    def refuse(self, arguments, *words):
        """psd with these arguments does not start, and says why."""
        with self.subTest(arguments=arguments):
            return self.assert_fails(self.start_psd(*arguments), *words)

    def refuse_file(self, text, *words):
        """Neither psd serve nor psd check accepts such a file; both report the same error."""
        path = self.write("wrong.json", text)
        served = self.refuse(["--config", path], *words)
        self.assertEqual(self.refuse(["check", path], *words), served)

    def test_unknown_keys(self):
        self.refuse_file('{"shrads": 4}', "wrong.json", "shrads", "did you mean 'shards'")
        self.refuse_file('{"policy": {"tpye": "locked"}}', "policy.tpye", "did you mean 'type'")
        self.refuse_file('{"optimizer": {"type": "sgd", "betas": [0.9, 0.99]}}', "optimizer.betas")
        self.refuse(["--set", "lr=3"], "lr: unknown key; did you mean 'optimizer.lr'?")
        self.refuse_file('{"policy": "hogwild"}', 'policy: must be an object, not "hogwild"; did you mean {"type": "hogwild"}?')
        self.refuse(["--set", "policy=sycn"], 'did you mean {"type": "sync"}?')

    def test_types_and_ranges(self):
        self.refuse_file('{"shards": "four"}', "shards", "integer", '"four"')
        self.refuse_file('{"shards": 0}', "shards", "1")
        self.refuse_file('{"optimizer": {"lr": -1}}', "optimizer.lr", "-1")
        self.refuse_file('{"policy": {"type": "lockd"}}', "policy.type", '"hogwild", "locked"', 'did you mean "locked"')
        self.refuse_file('{"listen": ["tpc://localhost"]}', "listen[0]", "tpc://localhost", "tcp://")
        self.refuse_file('[]', "wrong.json", "object")

    def test_malformed_json_names_line_and_column(self):
        self.refuse_file('{\n  "shards": 4\n  "threads": 1\n}', "wrong.json", "line 3, column 3")
        self.refuse_file('{\n  "shards": 4,', "wrong.json", "line 2")
        self.refuse_file('', "wrong.json", "line 1")
        self.refuse_file('{"shards": 4, "shards": 5}', "wrong.json", "shards")

    def test_groups_that_match_nothing(self):
        model = '"model": {"tensors": [{"name": "w", "shape": [4]}, {"name": "b[0]", "shape": []}]}'

        def groups(match):
            return f'{{"groups": [{{"match": {match}}}], {model}}}'

        self.refuse_file(groups('"v*"'), "wrong.json: groups[0].match: v* matches no tensor of model 'model'")
        self.refuse_file(groups('["w", ""]'), 'groups[0].match: holds ""')
        self.refuse_file(groups('"w["'), 'groups[0].match: "w[" lacks the \']\'')
        self.refuse_file(groups('"[]w"'), "lacks the ']'")
        for right in ('"w"', '"[w]"', '"b\\\\[0]"', '"[!b]"', '"[]w]"'):
            self.assert_ends(self.start_psd("check", self.write("right.json", groups(right))))

    def test_flags_that_are_no_utf8_text(self):
        byte = "\udcff"  # stands for the byte 0xff
        self.refuse(["--listen", f"{self.unix_address()}{byte}"], "--listen", "psd.sock?", "UTF-8")
        self.refuse(["--listen", "tcp://localhost:0", "--listen", f"tcp://{byte}"], "--listen", "tcp://?", "UTF-8")
        self.refuse(["check", "--device", f"cpu{byte}"], "--device", "cpu?", "UTF-8")
        for key in ("save", "durability.path", "log.file"):
            self.refuse(["--set", f"{key}={byte}"], "--set", f"{key}=?", "UTF-8")
        self.refuse(["--config", f"{byte}.json"], "?.json", "No such file")
        self.refuse(["--listen", "tcp://localhost:0", "--port-file", f"absent{byte}/port"], "--port-file", "absent?/port")

    def test_of_long_flags_a_part_is_quoted(self):
        long = "x" * 100_000
        for arguments in (["--listen", f"tcp://{long}"], ["--listen", f"unix:///{long}"], ["--listen", long], ["--device", long],
                          ["--set", f"policy.type={long}"], ["--set", f"{long}=1"], ["--set", f"policy.{long}=1"], ["--set", long],
                          ["--set", f"save=/{long}"], [f"--{long}"], [long], ["--config", long],
                          ["status", "--server", f"tcp://{long}"], ["status", "--timeout", long], ["inspect", long],
                          ["--set", "policy.type=locked", "--set", "durability.type=log", "--set", f"durability.path={long}"]):
            complaint = self.refuse(arguments)
            self.assertLess(len(complaint), 2000)
            self.assertFalse(complaint.endswith("xxx..."), "the reason is lost")

    def test_files_that_cannot_be_read(self):
        self.refuse(["--config", "absent.json"], "absent.json", "No such file")
        self.refuse(["--config", self.folder], str(self.folder), "directory")

    def test_a_pipe_is_read_to_its_end(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        threading.Thread(target=pipe.write_text, args=['{"listen": ["tcp://127.0.0.1:0"], "shards": 3}' + " " * 100_000],
                         daemon=True).start()
        daemon = processes.Daemon(self.folder, "piped", ["--config", str(pipe)])
        self.processes.append(daemon)
        reload = self.start_psd("reload", "--server", daemon.address)
        self.assert_fails(reload, f"{pipe}: is not a regular file, and cannot be read a second time")
        self.assert_stops(daemon)
        self.refuse(["check", "/dev/zero"], "'/dev/zero': is not a regular file, and yields more than")
        self.refuse(["check", "/dev/null"], "/dev/null, line 1")

    def test_flags(self):
        self.refuse(["--set", "optimizer.lr=fast"], "--set optimizer.lr=fast", "optimizer.lr")
        self.refuse(["--set", "optimizer"], "--set", "optimizer")
        self.refuse(["--device", "gpu"], "--device gpu", "cuda:N")
        self.refuse(["--lisen", "tcp://localhost:0"], "--lisen: no such option; did you mean --listen?")
        self.refuse(["status", "--jsn"], "--jsn: no such option; did you mean --json?")
        self.refuse(["trainer", "remove", "--servr", "x", "3"], "--servr: no such option; did you mean --server?")
        self.refuse(["token", "new", "--count", "3"], "--count: is an option of 'psd status', not of 'psd token new'")
        self.refuse(["trainer", "remove"], "see psd trainer remove --help")
        self.refuse(["status", "--port-file", "port"], "--port-file: is an option of 'psd', not of 'psd status'")
        self.refuse(["--port-file", "port", "--listen", self.unix_address()], "--port-file", "tcp://")
        self.assertNotIn(".tmp.", self.refuse(["--listen", "tcp://127.0.0.1:0", "--port-file", "no/such/port"],
                                              "--port-file: 'no/such/port'"))

    def test_help_tells_what_there_is(self):
        help_text = self.start_psd("check", "--help")
        self.assert_ends(help_text)
        for words in ("  hogwild            lock-free updates", "  local_sgd ", "policy.aggregator.type", "  trimmed_mean  the mean of"):
            self.assertIn(words, help_text.out)

    def test_the_short_form_of_an_aggregator(self):
        short = self.start_psd("check", "--set", "policy.type=sync", "--set", "policy.aggregator=median")
        long = self.start_psd("check", "--set", "policy.type=sync", "--set", "policy.aggregator.type=median")
        for process in (short, long):
            self.assert_ends(process)
        self.assertEqual(short.out, long.out)
        self.assertIn('"median"', short.out)
        self.refuse(["check", "--set", "policy.type=sync", "--set", "policy.aggregator=medain"], "policy.aggregator.type", 'did you mean "median"?')

    def test_unknown_subcommands(self):
        self.refuse(["statsu"], "'statsu': no such command; did you mean status?")
        self.refuse(["serve"], "'serve': no such command; omit it, as in 'psd --config FILE'")
        self.refuse(["serve", "--config", "psd.json"], "'serve': no such command; omit it, as in 'psd --config FILE'")
        self.refuse(["nothing"], "'nothing': no such command; see psd --help")
        self.refuse(["trainer", "evict", "--server", "x"], "'evict': no such command of psd trainer, which has: remove")
        self.refuse(["version"], "'version': no such command; did you mean 'psd --version'?")
        for flag in ("-v", "-V"):
            self.refuse([flag], f"{flag}: no such option; did you mean 'psd --version'?")
            self.refuse(["top", flag], f"{flag}: no such option; did you mean 'psd --version'?")
        file = self.write("mine.json", "{}")
        self.refuse([file], f"'{file}': no such command; did you mean 'psd --config {file}'?")
        self.refuse(["status", "tcp://h:1"], "'tcp://h:1' is not expected; did you mean 'psd status --server tcp://h:1'?")
        self.refuse(["check", "one.json", "two.json"], "'two.json' is not expected; see psd check --help")

    def test_flags_of_the_daemon_before_another_command(self):
        running = self.daemon()
        self.refuse(["--listen", running.address, "stop"], "--listen: is an option of 'psd', not of 'psd stop'")
        self.refuse(["--config", "mine.json", "status"], "--config: is an option of 'psd', not of 'psd status'")
        self.refuse(["--set", "shards=2", "check"], "--set: belongs after the command, as in 'psd check --set")
        self.assertTrue(running.runs())

    def test_check_without_a_file_shows_the_defaults(self):
        shown = [self.start_psd("check", *arguments) for arguments in ((), ("--config", self.write("empty.json", "{}")))]
        for process in shown:
            self.assert_ends(process)
        self.assertEqual(json.loads(shown[0].out)["policy"]["type"], "hogwild")
        self.assertEqual(shown[0].out, shown[1].out)

    def test_a_device_that_is_not_there(self):
        self.refuse(["--listen", "tcp://127.0.0.1:0", "--device", "cuda:63"], "cuda:63")

    def test_an_address_that_cannot_be_listened_on(self):
        self.refuse(["--listen", "tcp://no-such-host.invalid:0"], "no-such-host.invalid")
        self.refuse(["--listen", f"unix://{self.folder}/no/such/folder/psd.sock"], "no/such/folder")
        self.refuse(["--listen", f"unix://{self.folder}/{'x' * 200}"], "107 bytes")

    def test_model_files(self):
        def serve(path, *words):
            self.refuse(["--listen", "tcp://127.0.0.1:0", "--set", f"model.file={path}"], "psd: model.file: ", *words)

        serve("absent.safetensors", "absent.safetensors", "No such file")
        serve(self.write("text.safetensors", "these are no tensors, but text"), "text.safetensors")
        serve(self.write("empty.safetensors", ""), "empty.safetensors")
        header = '{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
        short = self.folder / "short.safetensors"
        short.write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"\0" * 15)
        serve(short, "short.safetensors")

    def test_folders_that_cannot_be_used(self):
        file = self.write("file", "")
        saving = ["--listen", "tcp://127.0.0.1:0", "--set", "durability.type=checkpoint", "--set"]
        for path in (file / "saved", file):
            self.refuse([*saving, f"durability.path={path}"], f"psd: durability.path: '{path}")
        self.refuse([*saving, f"durability.path={self.folder}/saved", "--set", f"durability.resume={self.folder}/absent"],
                    "psd: durability.resume: there is no checkpoint")

    def test_files_of_the_engine(self):
        engine = ('engine={"prefix": "/psd", "endpoints": ["https://127.0.0.1:1"], "user": "psd", "password_file": "absent-password", '
                  '"tls": {"ca": "absent-ca"}}')
        started = ["--listen", "tcp://127.0.0.1:0", "--set", "policy.type=locked", "--set", engine]
        self.refuse(started, "psd: engine.password_file: ", "absent-password")
        self.refuse([*started, "--set", "replication.token_file=absent-token"], "psd: replication.token_file: ", "absent-token")
        self.refuse([*started, "--set", "engine.user=", "--set", "engine.password_file="], "psd: engine.tls: ", "absent-ca")

    def test_log_files(self):
        def refuse(path, *words):
            process = self.start_psd("--listen", "tcp://127.0.0.1:0", "--set", f"log.file={path}")
            self.assert_fails(process, f"log.file: '{path}'", *words)
            self.assertEqual(process.wait(), 2)

        refuse(self.folder, "directory")
        refuse(self.folder / "absent" / "psd.log", "there is no folder")
        self.assertFalse((self.folder / "absent").exists())

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for arguments in (["check"], ["--help"]):
                end = subprocess.run([processes.PSD, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
                self.assertEqual((end.returncode, end.stderr), (1, "psd: standard output: No space left on device\n"))

    def test_a_place_for_the_model_is_looked_for_before_the_training(self):
        for path, words in ((self.folder / "absent" / "m.safetensors", f"there is no folder '{self.folder}/absent'"),
                            (self.folder, "is a folder")):
            process = self.start_psd("--listen", "tcp://127.0.0.1:0", "--set", f"save={path}")
            self.assert_fails(process, f"save: '{path}'", words)
            self.assertEqual(process.wait(), 2)
        before = sorted(path.name for path in self.folder.iterdir())
        self.assert_stops(self.daemon(save=str(self.folder / "m.safetensors")))
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name not in before and "psd-" not in path.name], [])


class AddressInUse(processes.ProcessTest):
    def test_tcp(self):
        daemon = self.daemon()
        second = self.start_psd("--listen", daemon.address)
        self.assert_fails(second, f"psd: listen[0]: {daemon.address}", "in use; 'ss -ltnp' shows which process")
        http = self.start_psd("--listen", "tcp://127.0.0.1:0", "--http", daemon.address)
        self.assert_fails(http, f"psd: http.listen[0]: {daemon.address}", "in use; 'ss -ltnp' shows which process")
        self.assert_serves(daemon)

    def test_unix(self):
        daemon = self.daemon(listen=(self.unix_address(),))
        second = self.start_psd("--listen", daemon.address)
        self.assert_fails(second, daemon.address, "in use")
        self.assert_serves(daemon)

    def test_a_stale_socket_is_replaced(self):
        killed = self.daemon(listen=(self.unix_address(),))
        killed.kill()
        self.assertTrue((self.folder / "psd.sock").is_socket())
        self.assert_serves(self.daemon(listen=(self.unix_address(),)))

    def test_a_file_that_is_no_socket_is_left_alone(self):
        path = self.write("psd.sock", "precious")
        self.assert_fails(self.start_psd("--listen", self.unix_address()), str(path), "there is a file that is not a socket")
        self.assertEqual(path.read_text(encoding="utf-8"), "precious")
        (self.folder / "folder").mkdir()
        self.assert_fails(self.start_psd("--listen", self.unix_address("folder")), "there is a folder that is not a socket")
        (self.folder / "link").symlink_to("nowhere")
        self.assert_fails(self.start_psd("--listen", self.unix_address("link")), "there is a symbolic link that is not a socket")

    def test_an_address_that_is_listed_twice(self):
        twice = ["--listen", "tcp://localhost:1", "--listen", "tcp://localhost:1"]  # checked, and not opened
        self.assert_fails(self.start_psd("check", *twice), "--listen tcp://localhost:1: listen[1]", "cannot be listened on beside")
        self.assert_ends(self.start_psd("check", "--listen", "tcp://localhost:0", "--listen", "tcp://localhost:0"))


class Operator(processes.ProcessTest):
    def free_port(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def test_no_daemon_at_the_address(self):
        address = f"tcp://127.0.0.1:{self.free_port()}"
        for command in ("status", "stop"):
            self.assert_fails(self.start_psd(command, "--server", address), address)
            self.assert_fails(self.start_psd(command, "--server", self.unix_address("none.sock")), "none.sock")

    def test_not_an_address(self):
        self.assert_fails(self.start_psd("status", "--server", "localhost"), "localhost", "tcp://")

    def test_somebody_else_at_the_address(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
            status = self.start_psd("status", "--server", address)
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" * 4)
            self.assert_fails(status, address)

    def test_human_readable_status(self):
        daemon = self.daemon()
        status = self.start_psd("status", "--server", daemon.address)
        self.assert_ends(status)
        for words in ("waiting for a model", daemon.address, "policy     hogwild", "trainers   0 of"):
            self.assertIn(words, status.out)

    def test_the_environment_names_the_server(self):
        daemon = self.daemon()
        done = self.start_psd("status", "--json", environment={"PSD_SERVER": daemon.address})
        self.assert_ends(done)
        self.assertIn(f'"pid": {daemon.pid}', done.out)

    def test_a_flag_wins_over_the_environment(self):
        named, asked = self.daemon(), self.daemon()
        environment = {"PSD_SERVER": named.address}
        status = self.start_psd("status", "--server", asked.address, environment=environment)
        self.assert_ends(status)
        self.assertIn(f"pid {asked.pid} ", status.out)
        for command in ("status", "reload", "stop"):
            wrong = self.start_psd(command, "--server", "localhost", environment=environment)
            self.assert_fails(wrong, "'localhost'", "tcp://")
        reload = self.start_psd("reload", "--server", asked.address, environment=environment)
        self.assert_ends(reload)
        self.assertIn(asked.address, reload.out)
        self.assert_ends(self.start_psd("stop", "--server", asked.address, environment=environment))
        self.assert_ends(asked)
        self.assertTrue(named.runs())


if __name__ == "__main__":
    processes.main()
