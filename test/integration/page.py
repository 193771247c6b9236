"""A browser that shows a daemon's page.

Needs Chromium with its driver (Debian: chromium, chromium-driver) and Python's selenium. PSD_SCREENSHOTS: a folder for
screenshots.
"""

import json
import os
import pathlib
import shutil
import unittest

from processes import ProcessTest, until

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    MISSING = "" if shutil.which("chromium") and shutil.which("chromedriver") else "chromium or chromedriver is missing"
except ModuleNotFoundError:
    By = None
    MISSING = "Python's selenium is missing: scripts/setup --tests installs it"

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
            self.scheme(driver, "dark")
        driver.get(page)
        return driver

    def text(self, driver, name):
        return driver.execute_script("return document.getElementById(arguments[0]).innerText", name)

    def level(self, driver):
        return driver.find_element(By.ID, "state").get_attribute("data-level")

    def click(self, driver, selector):
        """Clicks, and confirms the dialog that follows."""
        driver.execute_script("document.querySelector(arguments[0]).click()", selector)
        until("it asks", lambda: self.dialog_open(driver))
        driver.find_element(By.ID, "dialog-yes").click()

    def requests_elsewhere(self, driver, page):
        """The browser's requests to other servers than the daemon."""
        for entry in driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            url = message.get("params", {}).get("request", {}).get("url", "")
            if message["method"] == "Network.requestWillBeSent" and not url.startswith((page, "data:", "chrome://")):
                yield url

    def cells(self, driver, name):
        """The texts of a table's cells, by rows, its header first."""
        return driver.execute_script(
            "return [...document.querySelectorAll(`#${arguments[0]} tr`)].map(row => [...row.children].map(cell => cell.innerText))", name)

    def column(self, driver, name, head):
        heads, *rows = self.cells(driver, name)
        return [row[heads.index(head)] for row in rows]

    def formatted(self, driver, name, values):
        """Numbers as formatted by a function of format.js."""
        return driver.execute_async_script(
            "const [name, values, done] = arguments; import('/format.js').then((format) => done(values.map(format[name])))", name, values)

    def histograms(self, driver):
        """For each trainer shown, by rank: the number of gradients in its bars, and the number of bars with a height."""
        return driver.execute_script("""return [...document.querySelectorAll('#trainers .bars')].map(bars => [
            bars.title.split("\\n").map(line => Number(line.split(": ")[1].replaceAll(",", ""))).reduce((one, other) => one + other, 0),
            [...bars.children].filter(bar => bar.getBoundingClientRect().height > 1).length])""")

    def picture(self, driver, name):
        """Takes a screenshot once nothing moves: CSS transitions have ended, and the drawing is on the screen."""
        driver.execute_async_script("""const done = arguments[0];
            Promise.all(document.getAnimations().map(each => each.finished.catch(() => null)))
              .then(() => requestAnimationFrame(() => requestAnimationFrame(() => done())))""")
        if folder := os.environ.get("PSD_SCREENSHOTS"):
            driver.save_screenshot(str(pathlib.Path(folder) / f"{name}.png"))

    def wide(self, driver, width, height=1500):
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def scheme(self, driver, name):
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def dialog_open(self, driver, name="dialog"):
        return driver.execute_script("return document.getElementById(arguments[0]).open", name)

    def until_updated(self, driver, times=1):
        """Waits for updates of the page during training."""
        for _ in range(times):
            shown = self.step_shown(driver)
            until("steps continue", lambda: self.step_shown(driver) > shown)

    def complaints(self, driver):
        return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def points(self, driver, chart):
        return driver.execute_script(
            "const c = Chart.getChart('chart-' + arguments[0]); return c.data.datasets.map(d => [d.label, d.data.length])", chart)

    def step_shown(self, driver):
        """The step shown for the first trainer."""
        return int(driver.execute_script("return document.querySelector('#trainers tbody td:nth-child(4)').innerText"))
