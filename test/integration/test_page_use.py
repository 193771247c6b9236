"""The page in use, in a real headless browser: the keyboard, selections and clicks while it updates; signing in; charts,
filters and tables; contrast and narrow screens."""

import json
import unittest

from page import MISSING, By, PageTest
from processes import main, quietly, until

if not MISSING:
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

try:
    import psd
except ModuleNotFoundError:
    psd = None

# The texts whose contrast with what lies behind them is below 4.5, as defined by WCAG 2.
FAINT_TEXTS = """
  const rgb = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return {c: [r, g, b], a}; };
  const luminance = (c) => { const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                             return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) { const {c, a} = rgb(getComputedStyle(e).backgroundColor); if (a === 1) return c; if (a > 0) return [NaN]; }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility({visibilityProperty: true}) || element.closest(':disabled')) continue;
    const [one, other] = [luminance(rgb(getComputedStyle(element).color).c), luminance(behind(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (!(contrast >= 4.5)) found.push(`${node.data.trim()}: ${contrast.toFixed(2)}`);
  }
  return found;
"""


class UseTest(PageTest):
    def focused(self, driver):
        """What has the keyboard focus: a text that identifies it."""
        return driver.execute_script("const e = document.activeElement; return e.getAttribute('aria-label') ?? e.innerText.split('\\n')[0]")

    def shown(self, driver, selector):
        return [each for each in driver.find_elements(By.CSS_SELECTOR, selector) if each.is_displayed()]

    def imported(self, driver, file, expression):
        """The value of a JavaScript expression, with `it` the page's file."""
        return driver.execute_async_script(
            f"const done = arguments[0]; import('/{file}').then((it) => done({expression}), (error) => done(String(error)))")

    def training(self, policy):
        """A daemon with two trainers, and a browser that shows them."""
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy=policy)
        trainers = [self.train(daemon.address, rank, 2, steps=10_000_000) for rank in (0, 1)]
        driver = self.browser(daemon.page)
        until("both are shown", lambda: "2 of 2" in self.text(driver, "trainers-count"))
        return daemon, driver, trainers

    def test_the_keyboard_selections_and_clicks_while_it_updates(self):
        _, driver, trainers = self.training("locked")
        for width in (380, 1600):
            self.wide(driver, width)
            driver.execute_script("document.activeElement.blur(); getSelection().collapse(document.body, 0)")
            reached = []
            while "Remove rank 1" not in reached and len(reached) < 80:
                ActionChains(driver).send_keys(Keys.TAB).perform()
                reached.append(self.focused(driver))
                if "Remove" in reached[-1] or reached[-1] in ("Reload", "rank"):
                    self.until_updated(driver)
                    self.assertEqual(self.focused(driver), reached[-1])
            for name in ("Reload", "Stop", "2 min", "Reported value", "mean", "rank", "Remove rank 0", "Remove rank 1"):
                self.assertIn(name, reached, width)
        process = driver.find_element(By.CSS_SELECTOR, "#trainers tbody td:nth-child(2)")
        driver.execute_script("getSelection().selectAllChildren(arguments[0])", process)
        self.until_updated(driver, 2)
        self.assertEqual(driver.execute_script("return String(getSelection())"), process.text)
        driver.execute_script("getSelection().empty()")
        button = driver.find_element(By.CSS_SELECTOR, "[aria-label='Remove rank 1']")
        ActionChains(driver).click_and_hold(button).perform()
        self.until_updated(driver, 2)
        ActionChains(driver).release().perform()
        self.assertTrue(self.dialog_open(driver))
        ActionChains(driver).send_keys(Keys.ESCAPE).perform()
        until("it is closed", lambda: not self.dialog_open(driver))
        self.assertTrue(all(trainer.runs() for trainer in trainers))
        self.assertEqual(self.complaints(driver), [])

    def test_sorting_and_tables_that_scroll(self):
        _, driver, _ = self.training("locked")
        self.assertEqual(self.column(driver, "trainers", "rank"), ["0", "1"])
        name = next(each for each in driver.find_elements(By.CSS_SELECTOR, "#trainers .sort") if each.text == "rank")
        for key, order, ranks in ((Keys.ENTER, "ascending", ["0", "1"]), (Keys.SPACE, "descending", ["1", "0"])):
            driver.execute_script("arguments[0].focus()", name)
            ActionChains(driver).send_keys(key).perform()
            self.assertEqual(driver.find_element(By.CSS_SELECTOR, "#trainers th").get_attribute("aria-sort"), order)
            self.assertEqual(self.column(driver, "trainers", "rank"), ranks)
        self.until_updated(driver)
        self.assertEqual(self.column(driver, "trainers", "rank"), ["1", "0"])
        align = "return getComputedStyle([...document.querySelectorAll('#trainers tbody tr:first-child td')][arguments[0]]).textAlign"
        self.assertEqual([driver.execute_script(align, index) for index in range(4)], ["left", "left", "left", "right"])
        more = lambda: driver.execute_script("return document.getElementById('trainers').closest('.scroll').dataset.more")
        self.wide(driver, 1600)
        until("nothing is hidden", lambda: more() == "")
        self.wide(driver, 380)
        until("it continues to the right", lambda: more() == "right")
        self.assertNotEqual(driver.execute_script("return getComputedStyle(document.querySelector('[data-more=right]')).boxShadow"), "none")
        driver.execute_script("document.getElementById('trainers').closest('.scroll').focus()")
        ActionChains(driver).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
        until("it continues on both sides", lambda: more() == "left right")
        self.assertEqual(self.complaints(driver), [])

    def test_signing_in(self):
        reader, admin = self.make_token("looks", "reader"), self.make_token("ops", "admin")
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", listen=(self.unix_address(),), policy="locked", auth__tokens=str(self.folder / "tokens"))
        driver = self.browser("about:blank")
        # Retries come at once.
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": """
            const later = window.setTimeout; window.setTimeout = (call, ms) => later(call, Math.min(ms, 1));"""})
        driver.get(daemon.page)
        until("it asks", lambda: self.dialog_open(driver, "sign-in-dialog"))
        field = driver.find_element(By.ID, "token")
        self.assertEqual((field.get_attribute("type"), self.focused(driver)), ("password", ""))
        ActionChains(driver).send_keys(Keys.ESCAPE).perform()
        until("it does not ask", lambda: not self.dialog_open(driver, "sign-in-dialog"))
        driver.find_element(By.ID, "sign-in").click()
        until("it asks", lambda: self.dialog_open(driver, "sign-in-dialog"))
        ActionChains(driver).send_keys(Keys.ESCAPE).perform()
        until("it does not ask", lambda: not self.dialog_open(driver, "sign-in-dialog"))
        asked = driver.execute_script("return performance.getEntriesByType('resource').filter(each => each.name.includes('/api/')).length")
        self.assertEqual(asked, 1)
        self.assertIn("Not signed in", self.text(driver, "state"))

        def enter(token):
            if not self.dialog_open(driver, "sign-in-dialog"):
                driver.find_element(By.ID, "sign-in").click()
            field.send_keys(token, Keys.ENTER)

        enter("wrong")
        until("it says why", lambda: self.dialog_open(driver, "sign-in-dialog") and "does not know this token" in self.text(driver, "sign-in-why"))
        enter(reader)
        until("it is shown", lambda: "Waiting for a model" in self.text(driver, "state"))
        self.assertEqual(self.text(driver, "caller"), "token 'looks', reader")
        self.assertEqual(self.shown(driver, "[data-action], #events-card, #config-card"), [])
        driver.refresh()
        until("it is remembered", lambda: self.text(driver, "caller") == "token 'looks', reader")
        self.assertFalse(self.dialog_open(driver, "sign-in-dialog"))

        def sign_out():
            driver.find_element(By.ID, "sign-out").click()
            until("a button remains", lambda: quietly(lambda: self.shown(driver, "#sign-in"), WebDriverException))
            self.assertFalse(self.dialog_open(driver, "sign-in-dialog"))
            return driver.find_element(By.ID, "token")

        field = sign_out()
        enter(admin)
        until("the other one is shown", lambda: self.text(driver, "caller") == "token 'ops', admin")
        self.assertEqual([each.text for each in self.shown(driver, "[data-action]")], ["Reload", "Stop"])
        until("the configuration is shown", lambda: self.shown(driver, "#config-card"))
        tokens = self.folder / "tokens"
        self.assertIn(str(tokens), driver.page_source)
        self.assert_ends(self.start_psd("reload", "--server", daemon.address))
        until("the event is shown", lambda: "reload" in self.text(driver, "event-kinds"))
        # Nothing that an administrator was shown outlives the sign-out.
        field = sign_out()
        self.assertNotIn(str(self.folder), driver.page_source)
        self.assertEqual(driver.execute_script("return [...document.querySelectorAll('#events li, tbody tr, .tile, #caller *')].length"), 0)
        self.assertIn("Not signed in", self.text(driver, "state"))
        enter(admin)
        until("the configuration is shown", lambda: self.shown(driver, "#config-card"))
        tokens.write_text(tokens.read_text().replace("ops admin", "ops reader"))
        self.assert_ends(self.start_psd("reload", "--server", daemon.address))
        until("the role is lowered", lambda: quietly(lambda: self.text(driver, "caller") == "token 'ops', reader", WebDriverException))
        self.assertEqual(self.shown(driver, "[data-action], #events-card, #config-card"), [])
        self.assertNotIn(str(tokens), driver.page_source)
        self.assertEqual([line for line in self.complaints(driver) if "401" not in line and "403" not in line], [])

    def test_the_configuration_is_asked_for_until_it_is_there(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked")
        self.endless_trainer(daemon)
        until("it trains", lambda: daemon.status()["state"] == "serving")
        driver = self.browser("about:blank")
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": """
            const get = window.fetch;
            window.asked = [];
            window.fetch = (path, options) => path !== '/api/config.json' ? get(path, options)
              : new Promise((resolve, reject) => window.asked.push({fail: () => reject(new TypeError('lost')),
                                                                    pass: () => resolve(get(path, options))}));"""})
        driver.get(daemon.page)
        asked = lambda: driver.execute_script("return window.asked.length")
        until("it asks", lambda: asked() == 1)
        self.until_updated(driver, 2)
        self.assertEqual(asked(), 1)
        driver.execute_script("window.asked[0].fail()")
        until("it asks again", lambda: asked() == 2)
        self.assertFalse(self.shown(driver, "#config-card"))
        driver.execute_script("window.asked[1].pass()")
        until("the configuration is shown", lambda: self.shown(driver, "#config-card"))
        self.until_updated(driver, 2)
        self.assertEqual(asked(), 2)
        self.assertEqual(self.complaints(driver), [])

    def test_published_versions(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked", publish={"keep": 3}, limits__version_bytes=8 << 20)
        driver = self.browser(daemon.page)
        until("the card is shown", lambda: self.shown(driver, "#versions-card"))
        self.assertTrue(self.shown(driver, "#versions-empty"))
        self.endless_trainer(daemon)
        for _ in range(4):
            self.assert_ends(self.start_psd("publish", "--server", daemon.address))
        until("the newest is shown", lambda: self.column(driver, "versions", "version") == ["4", "3", "2"])
        self.assertEqual(set(self.column(driver, "versions", "moment")), {"snapshot"})
        self.assertFalse(self.shown(driver, "#leases"))
        self.assert_ends(self.start_psd("set", "limits.version_bytes=65536", "--server", daemon.address))
        self.start_psd("publish", "--server", daemon.address)
        until("the failure is shown", lambda: "must admit three" in self.text(driver, "versions-error"))
        self.assertEqual(self.text(driver, "state-title"), "Publishing is failing")
        self.assertEqual(self.complaints(driver), [])

    def test_events_checkpoints_and_the_configuration(self):
        saved = json.dumps({"type": "checkpoint", "path": str(self.folder / "saved"), "every_seconds": 1, "keep": 2})
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked", durability=saved)
        self.endless_trainer(daemon)
        driver = self.browser(daemon.page)
        until("two are on the disk", lambda: len(self.cells(driver, "checkpoints")) == 3 and "checkpoint 3" in self.text(driver, "event-kinds"))
        first, second = (int(name.removeprefix("checkpoint ")) for name in self.column(driver, "checkpoints", "checkpoint"))
        self.assertEqual(first, second + 1)
        kinds = lambda: set(driver.execute_script("return [...document.querySelectorAll('#events li')].map(each => each.dataset.kind)"))
        self.assertEqual(kinds() & {"joined", "checkpoint"}, {"joined"})

        def press(kind):
            next(each for each in driver.find_elements(By.CSS_SELECTOR, "#event-kinds button") if each.text.startswith(kind)).click()

        press("checkpoint")
        self.assertLessEqual({"joined", "checkpoint"}, kinds())
        press("joined")
        self.assertNotIn("joined", kinds())
        until("the configuration is shown", lambda: self.shown(driver, "#config-card"))
        driver.find_element(By.CSS_SELECTOR, "#config-card summary").click()
        keys = self.column(driver, "config", "key")
        self.assertIn("durability.every_seconds", keys)
        self.assertNotIn("membership.lease_ms", keys)
        self.assertEqual(set(self.column(driver, "config", "origin")), {"changed"})
        driver.find_element(By.ID, "config-only").click()
        values = dict(zip(self.column(driver, "config", "key"), zip(self.column(driver, "config", "value"), self.column(driver, "config", "origin"))))
        self.assertEqual(values["membership.lease_ms"], ("10000", "default"))
        self.assertEqual(values["durability.keep"], ("2", "changed"))
        self.assert_ends(self.start_psd("set", "durability.every_seconds=2", "--server", daemon.address))
        until("it is read again", lambda: ["durability.every_seconds", "2", "changed"] in self.cells(driver, "config"))
        driver.find_element(By.CSS_SELECTOR, "[data-action=stop]").click()
        until("it asks", lambda: self.dialog_open(driver))
        self.assertFalse(daemon.status()["loses_model"])
        self.assertFalse(self.shown(driver, "#dialog-warning"))
        self.assertEqual(self.complaints(driver), [])

    @unittest.skipUnless(psd, "the Python package is not built")
    def test_charts_of_what_trainers_report(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked",
                             optimizer='{"type": "sgd", "lr": 0.5, "schedule": {"type": "step", "every_updates": 1, "gamma": 0.5}}')
        driver = self.browser(daemon.page)
        empty = lambda: driver.execute_script("return [...document.querySelectorAll('.no-data')].map(each => !each.hidden)")
        until("it waits", lambda: "Waiting for a model" in self.text(driver, "state"))
        self.assertTrue(empty()[1] and empty()[2])
        model = psd.Model("line", {"weight": (1,)})
        clients = [psd.Client(daemon.address) for _ in range(2)]
        for rank, client in enumerate(clients):
            self.addCleanup(client.close)
            client.join(model, model.zeros(), rank, 2)

        def step():
            for rank, client in enumerate(clients):
                client.push(model.zeros())
                client.report({"loss": 2.0 + rank, "accuracy": 0.5 + rank / 10})
            return True

        labels = lambda: [label for label, count in self.points(driver, "reports") if count > 2]
        until("the loss comes first", lambda: step() and labels() == ["rank 0", "rank 1"])
        self.assertEqual(driver.execute_script("return document.getElementById('report').value"), "loss")
        axis = driver.execute_script("const {min, max} = Chart.getChart('chart-reports').scales.y; return [min, max]")
        self.assertTrue(0 <= axis[0] < 2 and 3 <= axis[1] < 4, axis)
        driver.find_element(By.CSS_SELECTOR, "#report option[value=accuracy]").click()
        newest = lambda: driver.execute_script("return Chart.getChart('chart-reports').data.datasets.map(each => each.data.at(-1).y)")
        self.assertEqual(newest(), [0.5, 0.6])
        next(each for each in driver.find_elements(By.CSS_SELECTOR, ".choices button") if each.text == "mean").click()
        self.assertEqual([label for label, _ in self.points(driver, "reports")], ["mean of ranks"])
        self.assertAlmostEqual(newest()[0], 0.55)
        rates = lambda: driver.execute_script("return Chart.getChart('chart-rate').data.datasets[0].data.map(each => each.y).filter(each => each !== null)")
        until("the learning rate falls", lambda: step() and len(set(rates())) > 2)
        drawn_rates = rates()
        self.assertEqual(drawn_rates, sorted(drawn_rates, reverse=True))
        self.assertFalse(empty()[1] or empty()[2])
        marks = driver.execute_script("return Chart.getChart('chart-reports').$marks.map(each => each.text)")
        self.assertTrue(any(text.startswith("joined: ") for text in marks), marks)
        # A tile has the newest value of its chart.
        tile, drawn = driver.execute_script("""return [document.querySelector('#tile-gradients .value').firstChild.data,
            Chart.getChart('chart-gradients').data.datasets[0].data.at(-1).y]""")
        self.assertEqual(self.formatted(driver, "number", [drawn]), [tile])
        self.assertEqual(self.complaints(driver), [])

    @unittest.skipUnless(psd, "the Python package is not built")
    def test_thirty_trainers(self):
        daemon = self.daemon("--http", "tcp://127.0.0.1:0", policy="locked")
        model = psd.Model("line", {"weight": (1,)})
        for rank in range(30):
            client = psd.Client(daemon.address)
            self.addCleanup(client.close)
            client.join(model, model.zeros(), rank, 30)
            client.push(model.zeros())
            if rank < 29:
                client.report({"loss": 1.0 + rank % 7})
        driver = self.browser(daemon.page)
        until("all are shown", lambda: self.column(driver, "trainers", "loss")[-2:] == ["1", "–"] if self.cells(driver, "trainers") else False)
        height = driver.execute_script("return document.querySelector('#trainers tbody').getBoundingClientRect().height")
        self.assertLess(height, 30 * 25)
        losses = [str(1 + i) for i in range(7) for _ in range(5 if i == 0 else 4)]
        for order in (losses, losses[::-1]):
            next(each for each in driver.find_elements(By.CSS_SELECTOR, "#trainers .sort") if each.text == "loss").click()
            self.assertEqual(self.column(driver, "trainers", "loss"), [*order, "–"])
        until("many ranks are shown by their mean", lambda: [label for label, count in self.points(driver, "reports") if count] == ["mean of ranks"])
        self.assertEqual(self.complaints(driver), [])

    def test_lines(self):
        driver = self.browser(self.daemon("--http", "tcp://127.0.0.1:0").page)
        line = lambda *points: json.dumps([{"x": x, "y": y} for x, y in points])
        rates = line(*((i, 20 if i % 2 else 0) for i in range(40)), (40, None))
        means = self.imported(driver, "series.js", f"it.averaged({rates}).map(each => each.y)")
        self.assertEqual(means[:2] + means[9:40], [0, 10] + [10] * 31)
        one, other = line((0, 1), (10, 2), (20, 3)), line((13, 8), (23, 9))
        self.assertEqual(self.imported(driver, "series.js", f"[5, 10, 25].map(each => it.valueAt({one}, each))"), [1.5, 2, None])
        self.assertEqual(self.imported(driver, "series.js", f"it.meanOf([{one}, {other}]).map(each => [each.x, each.y])"),
                         [[0, 1], [10, 2], [13, 5], [20, 5.5], [23, 6]])
        for points, limits in ((line(), [0, 1]), (line((0, 0)), [0, 1]), (line((0, 3)), [0, 6]), (line((0, 0.1), (1, 1)), [0, 1.05])):
            self.assertEqual(self.imported(driver, "series.js", f"it.range([{{points: {points}}}])"), limits)
        # At the pointer every line has its value at the same moment, or none.
        title, lines = driver.execute_script(f"""
            const chart = Chart.getChart('chart-reports'), {{x}} = chart.options.scales;
            chart.data.datasets = [{{label: 'rank 0', data: {one}}}, {{label: 'rank 1', data: {other}}}];
            [x.min, x.max] = [0, 30];
            chart.update('none');
            return [10, 20].map((time) => {{
              const place = {{x: chart.scales.x.getPixelForValue(time), y: 50}};
              chart.tooltip.setActiveElements(Chart.Interaction.modes.moment(chart, place), place);
              chart.tooltip.update(true);
              return [chart.tooltip.title[0].slice(-2), chart.tooltip.body.map(each => each.lines[0].trim())];
            }})[1]""")
        self.assertEqual((title, lines), ("20", ["rank 0: 3", "rank 1: 8.7"]))
        alone = driver.execute_script("""const chart = Chart.getChart('chart-reports'), place = {x: chart.scales.x.getPixelForValue(10), y: 50};
            return Chart.Interaction.modes.moment(chart, place).map(each => each.datasetIndex)""")
        self.assertEqual(alone, [0])
        self.assertEqual(self.complaints(driver), [])

    def test_contrast_and_the_stop_dialog(self):
        daemon, driver, _ = self.training("sync")
        until("a loss for each rank", lambda: [count > 3 for _, count in self.points(driver, "reports")] == [True, True])
        until("the configuration is shown", lambda: self.shown(driver, "#config-card"))
        driver.find_element(By.CSS_SELECTOR, "#config-card summary").click()
        # Badges of every level.
        driver.execute_script("""for (const level of ['good', 'warn', 'bad', '']) {
            const badge = document.createElement('span'); badge.className = 'badge ' + level; badge.textContent = 'badge ' + level;
            document.querySelector('main').append(badge); }""")
        self.assertTrue(daemon.status()["loses_model"])
        for scheme in ("light", "dark"):
            self.scheme(driver, scheme)
            self.assertEqual(driver.execute_script(FAINT_TEXTS), [], scheme)
            driver.find_element(By.CSS_SELECTOR, "[data-action=stop]").click()
            until("it asks", lambda: self.dialog_open(driver))
            self.assertIn("Stopping discards the model", self.text(driver, "dialog-warning"))
            red, green, blue = (int(part) for part in driver.find_element(By.ID, "dialog-yes").value_of_css_property("background-color")
                                .split("(")[1].rstrip(")").split(",")[:3])
            self.assertGreater(red, 1.4 * max(green, blue), "Stop is red")
            self.assertEqual(driver.execute_script(FAINT_TEXTS), [], scheme)
            self.picture(driver, f"stop-{scheme}")
            driver.find_element(By.CSS_SELECTOR, "#dialog [value=no]").click()
            driver.find_element(By.CSS_SELECTOR, "[data-action=reload]").click()
            until("it asks", lambda: self.dialog_open(driver))
            self.assertEqual(driver.execute_script(FAINT_TEXTS), [], scheme)
            self.assertFalse(self.shown(driver, "#dialog-warning"))
            driver.find_element(By.CSS_SELECTOR, "#dialog [value=no]").click()
        self.assertEqual(self.complaints(driver), [])


if __name__ == "__main__":
    main()
