"""The page in a real headless browser during training: it shows the status, and clicks perform their actions."""

import json
import re
import signal
import unittest

import etcd
from page import By, PageTest
from processes import Daemon, main, until

try:
    import numpy as np

    import psd
except ModuleNotFoundError:
    psd = None


class ShownTest(PageTest):
    def test_what_it_shows(self):
        saved = json.dumps({"type": "checkpoint", "path": str(self.folder / "saved"), "every_seconds": 3})
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked", durability=saved)
        driver = self.browser(daemon.page)
        until("it says what it waits for", lambda: "Waiting for a model" in self.text(driver, "state"))
        self.assertIn("No trainers have joined", self.text(driver, "trainers-empty"))
        self.assertEqual(self.level(driver), "warn")
        trainers = [self.train(daemon.address, rank, 2, steps=10_000_000) for rank in (0, 1)]
        until("both are shown", lambda: "2 of 2" in self.text(driver, "trainers-count"))
        until("it is well", lambda: self.level(driver) == "good")
        self.assertIn("Serving mlp", self.text(driver, "state"))
        status = daemon.status()
        self.assertEqual(self.text(driver, "model"), status["model"]["name"])
        for words in (status["policy"], status["optimizer"]):
            self.assertIn(words, self.text(driver, "where"))
        for trainer, process in zip(sorted(status["trainers"], key=lambda each: each["rank"]), trainers):
            self.assertIn(f"{process.pid}@{trainer['host']}", self.text(driver, "trainers"))
        until("a loss for each rank", lambda: [label for label, count in self.points(driver, "reports") if count > 3] == ["rank 0", "rank 1"])
        until("gradients over time", lambda: self.points(driver, "gradients")[0][1] > 4)
        shown = self.step_shown(driver)
        until("steps continue", lambda: self.step_shown(driver) > shown)
        before = min(trainer["step"] for trainer in daemon.status()["trainers"])
        until("the page has caught up", lambda: self.step_shown(driver) >= before)
        until("a checkpoint is announced", lambda: "ago" in self.text(driver, "durability") and "checkpoint 1" in self.text(driver, "event-kinds"))
        self.assertEqual(len(self.cells(driver, "shards")) - 1, len(daemon.status()["shards"]))
        self.assertIn("joined", self.text(driver, "events"))
        self.picture(driver, "light")
        self.assertEqual(self.complaints(driver), [])
        self.assertEqual(list(self.requests_elsewhere(driver, daemon.page)), [])
        daemon.kill()
        until("it misses the daemon", lambda: self.level(driver) == "bad")
        self.assertIn("No response from the daemon", self.text(driver, "state"))
        for selector in ("[data-action=stop]", "#trainers button.danger"):
            self.assertFalse(driver.find_element(By.CSS_SELECTOR, selector).is_enabled(), selector)
        self.assertLess(float(driver.find_element(By.CSS_SELECTOR, "main > .card").value_of_css_property("opacity")), 0.6)

    @unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
    def test_the_standby(self):
        engine = {"type": "etcd", "endpoints": [etcd.Etcd(self).endpoint], "prefix": "/psd/page"}
        primary = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked", engine=engine)
        driver = self.browser(primary.page)
        until("it says that there is none", lambda: "no follower" in self.text(driver, "durability"))
        self.endless_trainer(primary)
        standby = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked", engine=engine)
        group = primary.until_status("it is in sync", lambda status: status["replica_set"]["waits_for_standby"])["replica_set"]
        until("it is shown", lambda: f"{group['standby']}; " in self.text(driver, "durability"))
        until("both are shown", lambda: "in sync, " in self.text(driver, "daemons") and "standby" in self.text(driver, "daemons"))
        driver.get(standby.page)
        until("it says whose standby it is", lambda: f"this one, of {group['primary']}; " in self.text(driver, "durability"))
        until("it says so first", lambda: self.level(driver) == "good" and "Standby of mlp" in self.text(driver, "state"))
        self.assertIn(f"in sync with its primary {group['primary']}", self.text(driver, "state"))
        self.assertEqual(self.text(driver, "trainers-empty"), "Trainers join at the primary.")

    def test_which_of_several_daemons_it_is(self):
        addresses = [self.unix_address(f"{i}.sock") for i in range(2)]
        daemons = [self.daemon("--http", "tcp://127.0.0.1:0", "--index", str(i), listen=(addresses[i],), policy="locked", daemons=addresses)
                   for i in range(2)]
        self.endless_trainer(daemons[0])
        driver = self.browser(daemons[1].page)
        until("it says which", lambda: "partition 1 of 2 · 101,610 parameters in 4 tensors" in self.text(driver, "where"))

    def test_all_of_several_daemons(self):
        addresses = [self.unix_address(f"{i}.sock") for i in range(2)]

        def one(index):
            return self.daemon("--http", "tcp://127.0.0.1:0", "--index", str(index), listen=(addresses[index],), policy="locked", daemons=addresses)

        daemons = [one(0), one(1)]
        self.endless_trainer(daemons[0])
        driver = self.browser(daemons[0].page)
        until("both serve, and count", lambda: self.text(driver, "daemons").count("serving") == 2 and "0/s" not in self.text(driver, "daemons").split())
        links = driver.execute_script("return [...document.querySelectorAll('#daemons a')].map(link => link.href)")
        self.assertEqual(links, [daemons[1].pages[0]])
        driver.find_element(By.CSS_SELECTOR, "#daemons a").click()
        until("it is the other one's page", lambda: "partition 1 of 2" in self.text(driver, "where"))
        daemons[0].kill()
        until("it is unreachable", lambda: "1 unreachable" in self.text(driver, "daemons-count"))
        until("it is said first", lambda: self.level(driver) == "bad" and f"no response from daemon 0 at {addresses[0]}" in self.text(driver, "state"))
        self.assertIn("Training is stalled", self.text(driver, "state"))
        self.assertEqual(self.column(driver, "trainers", "state"), ["waits for daemon 0"])
        self.assertIn(f"rank 0 waits for daemon 0 at {addresses[0]}", self.text(driver, "waiting"))

    def test_what_it_does(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked", durability=json.dumps(
            {"type": "checkpoint", "path": str(self.folder / "saved"), "every_seconds": 0}))
        trainer = self.endless_trainer(daemon)
        driver = self.browser(daemon.page)
        until("the trainer is shown", lambda: str(trainer.pid) in self.text(driver, "trainers"))
        self.click(driver, "[data-action=reload]")
        until("it says so", lambda: "no changes" in self.text(driver, "toast"))
        self.click(driver, "[data-action=checkpoint]")
        until("it says so", lambda: "is complete" in self.text(driver, "toast"))
        self.assertGreaterEqual(daemon.status()["durability"]["checkpoints"], 1)
        driver.execute_script("document.querySelector('[data-action=stop]').click()")
        until("it asks", lambda: self.dialog_open(driver))
        driver.find_element(By.CSS_SELECTOR, "#dialog [value=no]").click()
        self.click(driver, "#trainers button.danger")
        self.assertNotEqual(trainer.wait(), 0)
        until("no trainer is shown", lambda: self.text(driver, "trainers-empty") == "All trainers have left.")
        self.assertTrue(daemon.runs())  # Cancel did not stop it
        self.click(driver, "[data-action=stop]")
        self.assert_ends(daemon)

    @unittest.skipUnless(psd, "the Python package is not built")
    def test_reports_by_names_that_objects_have(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked")
        model = psd.Model("line", {"weight": (1,)})
        # A table has space for six values, the number that psd-trainer reports for a text.
        names = ("constructor", "toString", "__proto__", "valueOf", "tokens_per_second")
        driver = self.browser(daemon.page)
        with psd.Client(daemon.address) as client:
            client.join(model, model.zeros(), 0, 1)

            def step():
                client.push(model.zeros())
                client.report({**dict.fromkeys(names, 1.5), "loss": 0.25})

            # The page adds to the data from before it was opened, and to data that arrives while it is open.
            for _ in range(2):
                until("a loss over time", lambda: step() or [count > 2 for _, count in self.points(driver, "reports")] == [True])
                chosen = driver.execute_script("return [...document.querySelectorAll('#report option')].map(each => [each.value, each.selected])")
                self.assertEqual(chosen, [[name, name == "loss"] for name in sorted((*names, "loss"))])
                heads = self.cells(driver, "trainers")[0]
                self.assertLessEqual({"constructor", "toString", "__proto__", "valueOf", "tokens/s", "loss"}, set(heads))
                self.assertEqual(self.complaints(driver), [])
                driver.refresh()
            until("the trainer is shown again", lambda: step() or "constructor" in self.text(driver, "trainers"))
            shown = self.step_shown(driver)
            until("steps continue", lambda: step() or self.step_shown(driver) > shown)
        self.assertEqual(self.complaints(driver), [])
        self.assert_stops(daemon)

    def test_narrow_and_wide_light_and_dark(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="sync", shards=40)
        for rank in (0, 1):
            self.train(daemon.address, rank, 2, steps=10_000_000)
        driver = self.browser(daemon.page)
        until("both are shown", lambda: "2 of 2" in self.text(driver, "trainers-count"))
        until("a loss for each rank", lambda: [count > 3 for _, count in self.points(driver, "reports")] == [True, True])
        self.assertEqual(len(driver.find_elements(By.CSS_SELECTOR, "#shards-strip span")), len(daemon.status()["shards"]))
        for scheme, ground in (("light", "rgb(244, 246, 250)"), ("dark", "rgb(13, 18, 27)")):
            self.scheme(driver, scheme)
            until("it has the colours", lambda: driver.execute_script("return getComputedStyle(document.body).backgroundColor") == ground)
            for width in (380, 700, 1600):
                self.wide(driver, width)
                until("the charts have the width", lambda: driver.execute_script(
                    "const c = document.querySelector('.plot'); return Math.abs(c.clientWidth - c.firstChild.clientWidth) < 2"))
                wide = driver.execute_script("return document.documentElement.scrollWidth")
                self.picture(driver, f"{scheme}-{width}")
                self.assertLessEqual(wide, width, f"it scrolls sideways, {scheme}")
        self.assertEqual(self.complaints(driver), [])

    def test_who_waits_for_whom(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="sync", shards=2, membership__lease_ms=600_000)
        trainers = [self.train(daemon.address, rank, 2, steps=10_000_000) for rank in (0, 1)]
        driver = self.browser(daemon.page)
        until("both are shown", lambda: "2 of 2" in self.text(driver, "trainers-count"))
        until("rounds close", lambda: int(self.text(driver, "tile-rounds").split("\n")[1].replace(",", "")) > 2)
        self.assertEqual(self.column(driver, "rounds", "in last"), ["0, 1"])
        trainers[1].signal(signal.SIGSTOP)
        until("it says who waits", lambda: re.search(r"rank 0 waits for rank 1 \(\d+\.\d s\)", self.text(driver, "waiting")))
        until("it says so first", lambda: self.level(driver) == "warn" and "waiting for rank 1 for" in self.text(driver, "state"))
        self.assertRegex(self.column(driver, "rounds", "missing")[0], r"1 \(\d")
        self.assertEqual(self.column(driver, "rounds", "contributed"), ["0"])
        status = daemon.status()  # when nothing changes
        self.assertEqual(self.column(driver, "rounds", "closed"), self.formatted(driver, "number", [status["rounds"][0]["closed"]]))
        self.assertEqual(self.text(driver, "tile-rounds").split("\n")[1],
                         self.formatted(driver, "number", [status["histograms"]["round_seconds"]["count"]])[0])
        self.assertGreater(status["staged_bytes"], 0)
        held = [("in_flight_bytes",) * 2, ("staged_bytes",) * 2, ("snapshot_bytes",) * 2, ("outgoing_bytes", "all_outgoing_bytes"),
                ("ring_bytes", "all_rings_bytes"), ("log_pending_bytes",) * 2]

        def same():
            now = daemon.status()
            used = self.formatted(driver, "bytes", [now[name] for name, _ in held])
            limits = self.formatted(driver, "bytes", [now["limits"][name] for _, name in held])
            shown = driver.execute_script("return [...document.querySelectorAll('#memory .row span:last-child')].map(each => each.innerText)")
            expected = [f"{one} of {most}" for one, most in zip(used, limits)]
            outgoing = 3  # the answer with the status counts itself
            shown[outgoing], expected[outgoing] = shown[outgoing].split(" of ")[1], limits[outgoing]
            return shown == expected

        until("what is held is that of the status", same)
        trainers[1].signal(signal.SIGCONT)
        until("no trainer waits", lambda: self.level(driver) == "good")
        self.assertEqual(self.complaints(driver), [])

    def test_rounds_of_fragments_and_who_is_left_out(self):
        policy = {"type": "diloco", "period": 4, "fragments": 2, "quorum": 2, "grace_ms": 150, "start_trainers": 3}
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", "--set", f"policy={json.dumps(policy)}", membership__lease_ms=600_000)
        learners = [self.train(daemon.address, rank, 3, steps=10_000_000) for rank in range(3)]
        driver = self.browser(daemon.page)
        until("both are shown", lambda: self.cells(driver, "rounds")[1:] and self.column(driver, "rounds", "group") == ["fragment 0", "fragment 1"])
        learners[2].signal(signal.SIGSTOP)
        until("it is left out of both", lambda: all(re.search(r"rank 2 of \d+ rounds, the last \d+ in a row", text)
                                                   for text in self.column(driver, "rounds", "left out")))
        self.assertEqual(len(driver.find_elements(By.CSS_SELECTOR, "#rounds .badge.bad")), 2)
        self.assertEqual(self.column(driver, "rounds", "in last"), ["0, 1, without 2"] * 2)
        for text in self.column(driver, "rounds", "grace"):
            self.assertRegex(text, r"\d+ ms used|\d\.\d s used")
        learners[2].signal(signal.SIGCONT)
        until("it is in again", lambda: not driver.find_elements(By.CSS_SELECTOR, "#rounds .badge.bad"))
        self.assertEqual(self.complaints(driver), [])

    def test_the_staleness_of_each_trainer(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked")
        trainers = [self.endless_trainer(daemon, rank, 2) for rank in (0, 1)]
        driver = self.browser(daemon.page)
        until("some are stale", lambda: any(heights > 1 for _, heights in self.histograms(driver)))
        for trainer in trainers:
            trainer.signal(signal.SIGSTOP)
        counts = [trainer["staleness_histogram"]["count"] for trainer in sorted(daemon.status()["trainers"], key=lambda one: one["rank"])]
        self.assertGreater(min(counts), 0)

        def same():
            now = [trainer["staleness_histogram"]["count"] for trainer in sorted(daemon.status()["trainers"], key=lambda one: one["rank"])]
            return now == [count for count, _ in self.histograms(driver)]

        until("the bars tell of all gradients of each", same)
        self.assertEqual(self.complaints(driver), [])

    def test_after_the_training(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked")
        trainer = self.train(daemon.address, steps=400)
        self.assert_ends(trainer)
        daemon.until_status("it has left", lambda status: not status["trainers"])
        driver = self.browser(daemon.page)
        until("no trainer is joined", lambda: self.text(driver, "trainers-empty") == "All trainers have left.")
        self.assertIn("all trainers have left", self.text(driver, "state"))
        for seconds in (120, 600, 3600, 86400):
            driver.execute_script("document.querySelector('[data-range=\"' + arguments[0] + '\"]').click()", seconds)
            self.assertEqual([label for label, count in self.points(driver, "reports") if count > 0], ["rank 0"], seconds)
            gradients = driver.execute_script("return Math.max(...Chart.getChart('chart-gradients').data.datasets[0].data.map(each => each.y))")
            self.assertGreater(gradients, 0, seconds)
        names = driver.execute_script("return [...document.querySelectorAll('[data-range]')].map(each => [each.innerText, each.ariaPressed])")
        self.assertEqual(names, [["2 min", "false"], ["10 min", "false"], ["1 h", "false"], ["1 day", "true"]])
        self.assertEqual(self.complaints(driver), [])

    def test_another_policy_by_a_reload(self):
        config = {"device": "cpu", "policy": {"type": "locked"}, "optimizer": {"type": "sgd", "lr": 0.5}}
        self.write("psd.json", json.dumps(config))
        daemon = Daemon(self.folder, "psd", ["--config", "psd.json", "--listen", "tcp://127.0.0.1:0", "--http", "tcp://127.0.0.1:0"])
        self.processes.append(daemon)
        driver = self.browser(daemon.page)
        until("the old one is shown", lambda: "locked · sgd lr=0.5" in self.text(driver, "where"))
        self.assertFalse(driver.find_element(By.ID, "rounds-card").is_displayed())
        self.write("psd.json", json.dumps({**config, "policy": {"type": "sync"}}))
        self.click(driver, "[data-action=reload]")
        until("it says so", lambda: "locked" in self.text(driver, "toast") and "sync" in self.text(driver, "toast"))
        until("the new one is shown", lambda: "sync · sgd lr=0.5" in self.text(driver, "where"))
        self.assertEqual(self.complaints(driver), [])

    @unittest.skipUnless(psd, "the Python package is not built")
    def test_embedding_tables(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked")
        driver = self.browser(daemon.page)
        until("it waits", lambda: "Waiting for a model" in self.text(driver, "state"))
        self.assertFalse(driver.find_element(By.ID, "tables-card").is_displayed())
        model = psd.Model("ratings", {"bias": (1,)}, [psd.Table("user", 4), psd.Table("item", 8)])
        with psd.Client(daemon.address) as client:
            values = model.zeros()
            client.join(model, values, 0, 1)
            rows = client.rows()
            rows.make([("user", np.arange(7, dtype=np.uint64)), ("item", np.arange(3, dtype=np.uint64))])
            client.pull(values, rows)
            rows.gradients("user")[:] = 1
            rows.gradients("item")[:] = 1
            client.push(model.zeros(), samples=1, rows=rows)
            until("both are shown", lambda: self.cells(driver, "tables")[1:] and self.column(driver, "tables", "new") == ["7", "3"])
            tables = daemon.status()["tables"]
            self.assertEqual([row[:3] for row in self.cells(driver, "tables")[1:]], [[each["name"], str(each["dim"]), str(each["rows"])] for each in tables])
            memory = [each["row_bytes"] + each["index_bytes"] for each in tables]
            self.assertEqual(self.column(driver, "tables", "memory"), self.formatted(driver, "bytes", memory))
            self.assertEqual(self.column(driver, "tables", "pulled"), ["7", "3"])
        self.assertEqual(self.complaints(driver), [])


if __name__ == "__main__":
    main()
