"""scripts/check_includes: what it accepts, and one violation of each rule."""

import unittest

from checkout import REPO, CheckoutTest


class CheckIncludes(CheckoutTest):
    def check(self, files):
        """The violations that check_includes prints for a checkout of these files."""
        for path, text in files.items():
            self.write(path, text)
        result = self.run_script("check_includes")
        lines = result.stdout.splitlines()
        if result.returncode == 0:
            self.assertEqual(len(lines), 1, result.stdout)
            return []
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        return lines

    def test_includes_down_the_layers_pass(self):
        self.assertEqual([], self.check({
            "common/a.h": "#include <vector>\n",
            "server/optimizer/b.h": '#include "common/a.h"\n',
            "server/store/c.cu": '#include "server/optimizer/b.h"\n',
            "server/policy/d.h": '#include "server/store/c.cu"\n#include "common/a.h"\n',
            "server/rpc/e.cc": '#include "server/policy/d.h"\n#include "schema/psd.capnp.h"\n',
            "server/main.cc": '#include "server/policy/d.h"\n',
            "trainer/model/f.cc": "#include <torch/torch.h>\n",
            "trainer/client/api/client.h": "",
            "trainer/loop/h.cc": '#include "trainer/client/api/client.h"\n',
            "test/g.cc": '#include "server/policy/d.h"\n#include <torch/torch.h>\n#include "schema/psd.capnp.h"\n',
        }))

    def test_each_broken_rule_is_one_line_with_its_place(self):
        cases = [
            ("common/x.h", '#include "server/store/y.h"', "common may not include server/store/y.h"),
            ("server/store/x.h", '#include "server/policy/y.h"', "server/store may not include server/policy/y.h"),
            ("server/policy/x.h", '#include "server/config/y.h"', "server/policy may not include server/config/y.h"),
            ("server/metrics/x.h", '#include "server/status/y.h"', "server/metrics may not include server/status/y.h"),
            ("server/rpc/x.h", '#include "server/daemon/y.h"', "server/rpc may not include server/daemon/y.h"),
            ("server/service/x.h", '#include "server/rpc/y.h"', "server/service may not include server/rpc/y.h"),
            ("server/push/x.h", '#include "server/hosting/y.h"', "server/push may not include server/hosting/y.h"),
            ("server/coordination/x.h", '#include "server/store/y.h"', "server/coordination may not include server/store/y.h"),
            ("server/loop/x.h", '#include "server/model/y.h"', "server/loop may not include server/model/y.h"),
            ("server/daemon/x.h", '#include "trainer/client/y.h"', "server/daemon may not include trainer/client/y.h"),
            ("trainer/loop/x.h", '#include "server/store/y.h"', "trainer/loop may not include server/store/y.h"),
            ("trainer/client/x.h", '#include "trainer/loop/y.h"', "trainer/client may not include trainer/loop/y.h"),
            ("trainer/loop/x.h", '#include "trainer/client/session.h"', "trainer/client/session.h is a part of the client library"),
            ("common/x.cc", "#include <torch/torch.h>", "LibTorch (torch/torch.h) is only for"),
            ("trainer/client/x.cc", '#  include "c10/util/y.h"', "LibTorch (c10/util/y.h) is only for"),
            ("server/daemon/x.cc", '#include "schema/psd.capnp.h"', "generated header schema/psd.capnp.h is only for"),
            ("common/x.cc", '#include "y.h"', '"y.h" is no file of this repository'),
        ]
        for path, include, reason in cases:
            with self.subTest(path=path, include=include):
                target = include.split('"')[1] if '"' in include else None
                if target and "/" in target:
                    self.write(target, "")
                self.assertRegex("\n".join(self.check({path: f"// one\n{include}\n"})), f"^{path}:2: [^\n]*$")
                self.assertIn(reason, self.check({})[0])
                (self.root / path).unlink()

    def test_a_circle_of_units_is_one_line_and_names_all_of_them(self):
        self.assertEqual([], self.check({
            "server/policy/a.h": "", "server/policy/a.cc": '#include "server/policy/a.h"\n#include "server/policy/some_list.h"\n',
            "server/policy/some_list.h": '#include "server/policy/b.h"\n', "server/policy/b.h": '#include "server/policy/a.h"\n'}))
        found = self.check({"server/policy/a.cc": '#include "server/policy/c.h"\n', "server/policy/b.h": "",
                            "server/policy/c.h": '#include "server/policy/b.h"\n',
                            "server/policy/b.cc": '\n#include "server/policy/a.h"\n'})
        self.assertEqual(found, ["server/policy/a.cc:1: includes run in a circle between server/policy/a, server/policy/b, "
                                 "server/policy/c"])

    def test_a_page_that_shows_another_order_is_named(self):
        page = (REPO / "docs/internals/code_map.md").read_text(encoding="utf-8")
        for rule in ("tools → daemon", "{cli, python}", "`trainer/allreduce`, `test`.", "`server/client`, `trainer", "600 lines"):
            self.assertIn(rule, page)
            self.write("docs/internals/code_map.md", page.replace(rule, "other"))
            self.assertRegex("\n".join(self.check({})), "^docs/internals/code_map.md:1: does not show the rule: [^\n]+$")

    def test_a_file_over_the_limit_is_reported_once(self):
        self.assertEqual([], self.check({"common/long.h": "\n" * 600}))
        found = self.check({"common/long.h": "\n" * 601})
        self.assertEqual(len(found), 1)
        self.assertIn("common/long.h:601: 601 lines, at most 600", found[0])


if __name__ == "__main__":
    unittest.main()
