"""A running daemon reloads its configuration file: psd reload and SIGHUP. For the effects on trainers see
reload_test.cc."""

import json
import signal

import processes


class Reload(processes.ProcessTest):
    def serve(self, config):
        self.config = {"device": "cpu", "shards": 2, **config}
        self.save()
        daemon = processes.Daemon(self.folder, "psd", ["--config", "psd.json", "--listen", "tcp://127.0.0.1:0"])
        self.processes.append(daemon)
        return daemon

    def save(self):
        self.write("psd.json", json.dumps(self.config))

    def reload(self, daemon):
        return self.start_psd("reload", "--server", daemon.address)

    def test_psd_reload(self):
        daemon = self.serve({"policy": {"type": "locked"}, "optimizer": {"lr": 0.5}})
        self.config["optimizer"]["lr"] = 0.25
        self.config["policy"] = {"type": "bounded_staleness", "bound": 2}
        self.save()
        command = self.reload(daemon)
        self.assert_ends(command)
        self.assertIn("optimizer.lr: 0.5 -> 0.25", command.out)
        status = daemon.status()
        self.assertEqual((status["policy"], status["optimizer"]), ("bounded_staleness", "sgd lr=0.25"))
        self.assertIn("reloaded the configuration: ", daemon.err)

        again = self.reload(daemon)
        self.assert_ends(again)
        self.assertIn("no changes", again.out)
        self.assert_stops(daemon)

    def test_sighup(self):
        daemon = self.serve({"optimizer": {"lr": 0.5}})
        self.config["optimizer"]["lr"] = 0.125
        self.save()
        daemon.signal(signal.SIGHUP)
        daemon.until_status("the new rate", lambda status: status["optimizer"] == "sgd lr=0.125")
        self.assert_stops(daemon)

    def test_a_log_that_was_moved_away(self):
        log, moved = self.folder / "psd.log", self.folder / "psd.log.1"
        logging = self.start_psd("--listen", self.unix_address(), "--set", f"log.file={log}")
        processes.until("it serves", lambda: log.exists() and "ready" in log.read_text(encoding="utf-8"))
        log.rename(moved)
        logging.signal(signal.SIGHUP)
        processes.until("it says so in a new file", lambda: log.exists() and "no changes" in log.read_text(encoding="utf-8"))
        before = moved.read_text(encoding="utf-8")
        log.unlink()
        self.assert_ends(self.start_psd("reload", "--server", self.unix_address()))
        self.assert_stops(logging)
        self.assertIn("stopped", log.read_text(encoding="utf-8"))
        self.assertEqual(moved.read_text(encoding="utf-8"), before)

    def test_what_is_logged(self):
        daemon = self.serve({"log": {"level": "info"}})
        lines = 0
        for level, logged in (("warn", False), ("info", True), ("error", False), ("debug", True)):
            self.config["log"]["level"] = level
            self.save()
            self.assert_ends(self.reload(daemon))
            lines += logged
            self.assertEqual(daemon.err.count("reloaded the configuration: log.level"), lines, level)
        self.config["shards"] = 3
        self.config["log"]["level"] = "error"
        self.save()
        self.assert_fails(self.reload(daemon), "shards: cannot change")
        self.assertIn("the configuration is unchanged: ", daemon.err)
        self.assert_stops(daemon)

    def test_what_cannot_change_is_refused(self):
        daemon = self.serve({})
        self.config["shards"] = 3
        self.save()
        self.assert_fails(self.reload(daemon), "shards: cannot change while the daemon runs (2 -> 3)")
        self.write("psd.json", '{"shards": ')
        self.assert_fails(self.reload(daemon), "psd.json", "line 1")
        self.assertEqual(daemon.counter("reloads_refused"), 2)
        self.assertIn("the configuration is unchanged: ", daemon.err)
        self.assert_stops(daemon)


if __name__ == "__main__":
    processes.main()
