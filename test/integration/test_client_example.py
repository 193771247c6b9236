"""The program in docs/reference/client.md, extracted from the page by CMake (PSD_LINE_BIN), behaves as the page says."""

import os

import processes


class ClientExample(processes.ProcessTest):
    def line(self, *arguments):
        process = processes.Process(self.folder, self._name("line"), [os.environ["PSD_LINE_BIN"], *arguments])
        self.processes.append(process)
        return process

    def test_fits_the_line(self):
        daemon = self.daemon()
        for trainer in [self.line(daemon.address, rank, 2) for rank in (0, 1)]:
            self.assert_ends(trainer)
            self.assertEqual(trainer.out.splitlines(), ["joined: policy hogwild, 2 shard(s) on cpu", "y = 2.000 x + 1.000"])

    def test_refuses_a_rank_that_cannot_be(self):
        wrong = self.line(self.daemon().address, 7, 2)
        self.assert_ends(wrong, 1)
        self.assertEqual(wrong.err, "line: rank 7 is not below the world size 2\n")


if __name__ == "__main__":
    processes.main()
