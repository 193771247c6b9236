"""The page in a real browser, headless, while trainers train: it shows what the status says, and does what is clicked.

Needs Chromium with its driver (Debian: chromium, chromium-driver) and Python's selenium. PSD_SCREENSHOTS: a folder for pictures.
"""

import json
import os
import pathlib
import shutil
import unittest

import etcd
from processes import ProcessTest, main, until

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    MISSING = "" if shutil.which("chromium") and shutil.which("chromedriver") else "chromium or chromedriver is missing"
except ModuleNotFoundError:
    MISSING = "Python's selenium is missing: scripts/setup --tests installs it"

try:
    import psd
except ModuleNotFoundError:
    psd = None

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb",
         "--disable-background-networking", "--disable-component-update", "--no-first-run")


@unittest.skipIf(MISSING, MISSING)
class PageTest(ProcessTest):
    def browser(self, page, width=1280, height=1500, dark=False):
        options = Options()
        options.binary_location = shutil.which("chromium")
        for flag in (*FLAGS, f"--window-size={width},{height}", f"--user-data-dir={self.folder / 'chromium'}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.addCleanup(driver.quit)
        driver.set_page_load_timeout(60)
        if dark:
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        driver.get(page)
        return driver

    def text(self, driver, name):
        return driver.execute_script("return document.getElementById(arguments[0]).innerText", name)

    def level(self, driver):
        return driver.find_element(By.ID, "state").get_attribute("data-level")

    def click(self, driver, selector):
        """Clicks, and confirms what is asked then."""
        driver.execute_script("document.querySelector(arguments[0]).click()", selector)
        until("it asks", lambda: driver.execute_script("return document.getElementById('dialog').open"))
        driver.find_element(By.ID, "dialog-yes").click()

    def requests_elsewhere(self, driver, page):
        """What the browser asked for that is not the daemon's."""
        for entry in driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            url = message.get("params", {}).get("request", {}).get("url", "")
            if message["method"] == "Network.requestWillBeSent" and not url.startswith((page, "data:", "chrome://")):
                yield url

    def picture(self, driver, name):
        if folder := os.environ.get("PSD_SCREENSHOTS"):
            driver.save_screenshot(str(pathlib.Path(folder) / f"{name}.png"))

    def complaints(self, driver):
        return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def points(self, driver, chart):
        return driver.execute_script(
            "const c = Chart.getChart('chart-' + arguments[0]); return c.data.datasets.map(d => [d.label, d.data.length])", chart)

    def step_shown(self, driver):
        """Of the first trainer."""
        return int(driver.execute_script("return document.querySelector('#trainers tr:nth-child(2) td:nth-child(4)').innerText"))

    def test_what_it_shows(self):
        saved = json.dumps({"type": "checkpoint", "path": str(self.folder / "saved"), "every_seconds": 3})
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked", durability=saved)
        driver = self.browser(daemon.page)
        until("it says what it waits for", lambda: "Waiting for a model" in self.text(driver, "state"))
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
        until("a loss for each rank", lambda: [label for label, count in self.points(driver, "loss") if count > 3] == ["rank 0", "rank 1"])
        until("gradients over time", lambda: self.points(driver, "gradients")[0][1] > 4)
        shown = self.step_shown(driver)
        until("steps go on", lambda: self.step_shown(driver) > shown)
        before = min(trainer["step"] for trainer in daemon.status()["trainers"])
        until("the page has caught up", lambda: self.step_shown(driver) >= before)
        until("a checkpoint is told of", lambda: "ago" in self.text(driver, "durability") and "checkpoint" in self.text(driver, "events"))
        self.assertEqual(len(driver.find_elements(By.CSS_SELECTOR, "#shards .gauge")), len(daemon.status()["shards"]))
        self.assertIn("joined", self.text(driver, "events"))
        self.picture(driver, "light")
        self.assertEqual(self.complaints(driver), [])
        self.assertEqual(list(self.requests_elsewhere(driver, daemon.page)), [])
        daemon.kill()
        until("it misses the daemon", lambda: self.level(driver) == "bad")
        self.assertIn("No word from the daemon", self.text(driver, "state"))

    @unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
    def test_the_standby(self):
        engine = {"type": "etcd", "endpoints": [etcd.Etcd(self).endpoint], "prefix": "/psd/page"}
        primary = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked", engine=engine)
        driver = self.browser(primary.page)
        until("it says that there is none", lambda: "nobody follows" in self.text(driver, "durability"))
        self.endless_trainer(primary)
        standby = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked", engine=engine)
        group = primary.until_status("it is in sync", lambda status: status["group"]["waits_for_standby"])["group"]
        until("it is shown", lambda: f"{group['standby']}; " in self.text(driver, "durability"))
        until("both are shown", lambda: "in sync, " in self.text(driver, "daemons") and "standby" in self.text(driver, "daemons"))
        driver.get(standby.page)
        until("it says whose standby it is", lambda: f"this one, of {group['primary']}; " in self.text(driver, "durability"))

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
        links = [link.get_attribute("href") for link in driver.find_elements(By.CSS_SELECTOR, "#daemons a")]
        self.assertEqual(links, [daemons[1].pages[0]])
        driver.find_element(By.CSS_SELECTOR, "#daemons a").click()
        until("it is the other one's page", lambda: "partition 1 of 2" in self.text(driver, "where"))
        daemons[0].kill()
        until("it is away", lambda: "1 away" in self.text(driver, "daemons-count"))
        until("it is said first", lambda: self.level(driver) == "warn" and f"away: daemon 0 at {addresses[0]}" in self.text(driver, "state"))

    def test_what_it_does(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked", durability=json.dumps(
            {"type": "checkpoint", "path": str(self.folder / "saved"), "every_seconds": 0}))
        trainer = self.endless_trainer(daemon)
        driver = self.browser(daemon.page)
        until("the trainer is shown", lambda: str(trainer.pid) in self.text(driver, "trainers"))
        self.click(driver, "[data-action=reload]")
        until("it says so", lambda: "nothing differs" in self.text(driver, "toast"))
        self.click(driver, "[data-action=checkpoint]")
        until("it says so", lambda: "is complete" in self.text(driver, "toast"))
        self.assertGreaterEqual(daemon.status()["durability"]["checkpoints"], 1)
        driver.execute_script("document.querySelector('[data-action=stop]').click()")
        until("it asks", lambda: driver.execute_script("return document.getElementById('dialog').open"))
        driver.find_element(By.CSS_SELECTOR, "#dialog [value=no]").click()
        self.click(driver, "#trainers button")
        self.assertNotEqual(trainer.wait(), 0)
        until("nobody is shown", lambda: "Nobody is in yet" in self.text(driver, "trainers-empty"))
        self.assertTrue(daemon.runs())  # Cancel was no stop
        self.click(driver, "[data-action=stop]")
        self.assert_ends(daemon)

    @unittest.skipUnless(psd, "the Python package is not built")
    def test_reports_by_names_that_objects_have(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked")
        model = psd.Model("line", {"weight": (1,)})
        names = ("constructor", "toString", "__proto__", "valueOf")  # a table has room for five values
        driver = self.browser(daemon.page)
        with psd.Client(daemon.address) as client:
            client.join(model, model.zeros(), 0, 1)

            def step():
                client.push(model.zeros())
                client.report({**{name: 1.5 for name in names}, "loss": 0.25})

            # The page adds to what was there before it, and to what comes to be while it looks.
            for _ in range(2):
                until("a loss over time", lambda: step() or [count > 2 for _, count in self.points(driver, "loss")] == [True])
                for name in names:
                    self.assertIn(name, self.text(driver, "trainers"))
                self.assertEqual(self.complaints(driver), [])
                driver.refresh()
            until("the trainer is shown again", lambda: step() or "constructor" in self.text(driver, "trainers"))
            shown = self.step_shown(driver)
            until("steps go on", lambda: step() or self.step_shown(driver) > shown)
        self.assertEqual(self.complaints(driver), [])
        self.assert_stops(daemon)

    def test_narrow_wide_and_dark(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="sync", shards=40)
        for rank in (0, 1):
            self.train(daemon.address, rank, 2, steps=10_000_000)
        driver = self.browser(daemon.page, dark=True)
        until("both are shown", lambda: "2 of 2" in self.text(driver, "trainers-count"))
        until("a loss for each rank", lambda: [count > 3 for _, count in self.points(driver, "loss")] == [True, True])
        self.assertEqual(driver.execute_script("return getComputedStyle(document.body).backgroundColor"), "rgb(13, 18, 27)")
        self.assertEqual(len(driver.find_elements(By.CSS_SELECTOR, "#shards .strip span")), len(daemon.status()["shards"]))
        for width in (380, 700, 1600):
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                   {"width": width, "height": 1500, "deviceScaleFactor": 1, "mobile": False})
            until("the charts have the width", lambda: driver.execute_script(
                "const c = document.querySelector('.plot'); return Math.abs(c.clientWidth - c.firstChild.clientWidth) < 2"))
            wide = driver.execute_script("return document.documentElement.scrollWidth")
            self.picture(driver, f"dark-{width}")
            self.assertLessEqual(wide, width, "it scrolls sideways")
        self.assertEqual(self.complaints(driver), [])


if __name__ == "__main__":
    main()
