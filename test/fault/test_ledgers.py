"""The ledger checks find each kind of violation, and report nothing else. Ledgers and models here are synthetic."""

import pathlib
import tempfile
import unittest

import ledgers

TENSORS = {"a": 56, "b": 32}  # parameters; the last period of one is incomplete
IN_ORDER = range(1, 101)


def ledger(*steps, rank=0, by=(("d1", 1),), open_steps=(), begin=0):
    """Consecutive pushes of 1 ns each: step n from 10n to 10n + 1."""
    made = ledgers.Ledger(rank)
    for number, step in enumerate((*steps, *open_steps), begin):
        made.pushes[step] = ledgers.Push(step, 10 * number)
        if step not in open_steps:
            made.pushes[step] = ledgers.Push(step, 10 * number, 10 * number + 1, (number + 1,), by)
    return made


def model(**pushes):
    """The tensors with these steps of rank0, rank1, … in them."""
    period = [0.0] * ledgers.PERIOD
    for name, steps in pushes.items():
        at = int(name.removeprefix("rank")) * ledgers.CELLS_OF_RANK
        for step in steps:
            period[at:at + ledgers.CELLS_OF_RANK] = map(sum, zip(period[at:], ledgers.marks(step)))
            period[-1] += 1
    return {name: (period * (size // ledgers.PERIOD + 1))[:size] for name, size in TENSORS.items()}


class Counts(unittest.TestCase):
    def setUp(self):
        self.all_answered = [ledger(*IN_ORDER), ledger(*IN_ORDER, rank=3)]

    def findings(self, steps, of=None):
        return ledgers.count_findings(of or self.all_answered, model(rank0=steps, rank3=IN_ORDER))

    def test_each_push_once_is_right(self):
        self.assertEqual(self.findings(IN_ORDER), [])

    def test_a_lost_push_is_found(self):
        self.assertTrue(self.findings([step for step in IN_ORDER if step != 37]))

    def test_a_push_that_came_twice_is_found(self):
        self.assertTrue(self.findings([*IN_ORDER, 37]))

    def test_a_lost_push_is_not_made_up_for_by_another_that_came_twice(self):
        for lost in (1, 37, 100):
            for twice in range(max(1, lost - 64), min(101, lost + 65)):
                if lost != twice:
                    steps = [step for step in IN_ORDER if step != lost] + [twice]
                    self.assertTrue(self.findings(steps), (lost, twice))

    def test_a_loss_of_one_rank_is_not_made_up_for_by_another(self):
        self.assertTrue(ledgers.count_findings(self.all_answered, model(rank0=IN_ORDER[1:], rank3=[*IN_ORDER, 1])))

    def test_a_loss_in_one_place_is_found(self):
        for name, size in TENSORS.items():
            for place in range(size):
                cells = model(rank0=IN_ORDER, rank3=IN_ORDER)
                cells[name][place] += 1
                self.assertTrue(ledgers.count_findings(self.all_answered, cells), (name, place))

    def test_an_unknown_push_is_found(self):
        self.assertTrue(ledgers.count_findings(self.all_answered, model(rank0=IN_ORDER, rank3=IN_ORDER, rank4=[1])))

    def test_a_push_without_an_answer_is_there_once_or_not_at_all(self):
        of = [ledger(*range(1, 99), open_steps=(99, 100)), self.all_answered[1]]
        for last in ([], [99], [100], [99, 100]):
            self.assertEqual(self.findings([*range(1, 99), *last], of), [])
        for last in ([99, 99], [100, 100], [98], [101]):
            self.assertTrue(self.findings([*range(1, 99), *last], of), last)
        self.assertTrue(self.findings([*range(1, 98), 99], of))

    def test_lives_of_one_rank_add_up(self):
        of = [ledger(1, 2, 3), ledger(1, 2), self.all_answered[1]]
        self.assertEqual(self.findings([1, 2, 3, 1, 2], of), [])
        self.assertTrue(self.findings([1, 2, 3, 1], of))


class Answers(unittest.TestCase):
    def test_one_daemon_in_each_epoch_is_right(self):
        self.assertEqual(ledgers.answerer_findings([ledger(1, 2, by=(("d1", 1),)), ledger(1, 2, by=(("d2", 2),)), ledger(1, by=(("d1", 3),))]), [])

    def test_two_in_one_epoch_are_found(self):
        for others in ([ledger(5, by=(("d2", 1),))], [ledger(5, by=(("d2", 1),), rank=1)]):
            [found] = ledgers.answerer_findings([ledger(1, 2), *others])
            self.assertIn("epoch 1: answered by d1 and d2", found)

    def test_each_partition_has_epochs_of_its_own(self):
        self.assertEqual(ledgers.answerer_findings([ledger(1, by=(("d1", 1), ("d2", 1)))]), [])
        self.assertEqual(len(ledgers.answerer_findings([ledger(1, by=(("d1", 1), ("d2", 1))), ledger(1, by=(("d1", 1), ("d3", 1)))])), 1)

    def test_daemons_without_standbys_have_no_epochs(self):
        self.assertEqual(ledgers.answerer_findings([ledger(1, by=(("d1", 0),)), ledger(1, by=(("d2", 0),))]), [])

    def test_epochs_start_again_after_the_model_has_moved(self):
        moved = ledger(1, by=(("d2", 1),))
        for push in moved.pushes.values():
            push.sent_to = push.answered_at = "unix:///b"
        self.assertEqual(ledgers.answerer_findings([ledger(1), moved]), [])

    def written(self, *lines):
        made = ledgers.Ledger(0)
        for line in lines:
            made.take(*line.split())
        return made

    def test_an_answer_that_is_written_down_after_a_move_is_of_neither_place(self):
        before, after = ("S 1 10", "A 1 11 1 d1:1", "S 2 20"), ("S 3 40", "A 3 41 3 d2:1")
        moved = self.written(*before, "M unix:///b", "A 2 21 2 d1:1", *after)
        self.assertEqual(ledgers.answerer_findings([moved]), [])
        again = self.written(*before, "M unix:///b", "M unix:///b", "A 2 21 2 d1:1", *after)
        self.assertEqual(ledgers.answerer_findings([moved, again]), [])
        self.assertEqual(len(ledgers.answerer_findings([moved, self.written("M unix:///b", "S 1 50", "A 1 51 4 d3:1")])), 1)


class Versions(unittest.TestCase):
    def test_rising_ones_are_right(self):
        self.assertEqual(ledgers.version_findings([ledger(1, 2, 3), ledger(4, 5, rank=1, begin=3)]), [])

    def test_one_that_falls_is_found(self):
        fell = ledger(1, 2, 3)
        fell.pushes[3].versions = (1,)
        self.assertEqual(len(ledgers.version_findings([fell])), 1)

    def test_one_that_falls_behind_another_trainers_is_found(self):
        self.assertEqual(len(ledgers.version_findings([ledger(1, 2, 3), self.late((2,))])), 1)

    def test_what_was_under_way_meanwhile_may_be_lower(self):
        other = self.late((2,))
        other.pushes[1].sent = 20  # like the other trainer's third push, which is answered at 21 with version 3
        self.assertEqual(ledgers.version_findings([ledger(1, 2, 3), other]), [])

    def test_another_epoch_may_begin_lower(self):
        other = self.late((2,))
        other.pushes[1].by = (("d2", 2),)
        self.assertEqual(ledgers.version_findings([ledger(1, 2, 3), other]), [])

    @staticmethod
    def late(versions):
        made = ledger(1, rank=1, begin=5)
        made.pushes[1].versions = versions
        return made


class Pulls(unittest.TestCase):
    def findings(self, *pull):
        made = ledger(1)
        made.pulls.append(ledgers.Pull(*pull))
        return ledgers.pull_findings([made])

    def test_those_that_were_answered_must_be_there_and_others_may(self):
        self.assertEqual(self.findings(7, 9, 7, 7), [])
        self.assertEqual(self.findings(7, 9, 8, 9), [])
        self.assertTrue(self.findings(7, 9, 6, 8))
        self.assertTrue(self.findings(7, 9, 8, 10))


class Times(unittest.TestCase):
    def test_the_longest_that_reaches_into_a_time(self):
        made = ledger(1, 2, 3, 4)
        made.pushes[4].answered = 1_000_000_021
        self.assertEqual(ledgers.longest_gap([made], 25, 500), 1.0)
        self.assertEqual(ledgers.longest_gap([made], 0, 15), 1e-8)
        self.assertEqual(ledgers.longest_wait([made], 25, 500), (1_000_000_021 - 30) / 1e9)


class Files(unittest.TestCase):
    def test_lines_are_taken_as_they_come(self):
        with tempfile.TemporaryDirectory(prefix="psd-") as folder:
            path = pathlib.Path(folder) / "ledger"
            made = ledgers.Ledger(2, path)
            self.assertEqual(made.answered(), 0)
            path.write_text("S 1 100\nA 1 105 3,4 00ab:1,00cd:2\nM unix:///b,unix:///c\nS 2 110\nP 111 1 2 1 2\nA 2 1")
            self.assertEqual(made.answered(), 1)
            self.assertEqual([push.step for push in made.unanswered()], [2])
            with open(path, "a", encoding="utf-8") as file:
                file.write("20 5,6 00ef:1\n")
            self.assertEqual(made.answered(), 2)
            self.assertEqual(made.pushes[1], ledgers.Push(1, 100, 105, (3, 4), (("00ab", 1), ("00cd", 2))))
            self.assertEqual(made.pushes[2], ledgers.Push(2, 110, 120, (5, 6), (("00ef", 1),), *["unix:///b,unix:///c"] * 2))
            self.assertEqual(made.pulls, [ledgers.Pull(1, 2, 1, 2)])
            with open(path, "a", encoding="utf-8") as file:
                file.write("X 1\n")
            with self.assertRaises(AssertionError):
                made.read_new_lines()


if __name__ == "__main__":
    unittest.main(verbosity=2)
