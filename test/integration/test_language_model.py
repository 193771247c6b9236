"""A language model on a text: trained, watched during training, and refused if data and model do not match."""

import json
import math
import pathlib
import random
import re
import signal

import processes

MODEL = "lstm_lm:embedding=8,hidden=24,vocabulary=8"
WORDS = 7


def interleaved_text(words, seed=3):
    """Nine in ten words are the successor of the word before the last; the last word alone predicts nothing."""
    numbers = random.Random(seed)
    text = [0, 3]
    while len(text) < words:
        text.append(numbers.randrange(WORDS) if numbers.random() < 0.1 else (text[-2] + 1) % WORDS)
    return " ".join(f"w{number}" for number in text)


class LanguageModelTest(processes.ProcessTest):
    def setUp(self):
        self.data = f"text:{self.write('words.txt', interleaved_text(8000))}:length=20"

    def language_daemon(self, **settings):
        return self.daemon(optimizer='{"type":"adam","lr":0.01}', shards=2, listen=(self.unix_address(),), **settings)

    def train_words(self, daemon, rank=0, world_size=1, steps=400, more=()):
        return self.train(daemon.address, rank, world_size, MODEL, self.data, steps, ("--batch-size", 16, *more))

    def watch(self, daemon, *more, model=MODEL, every=0.05):
        return self.start_trainer("eval", "--server", daemon.address, "--model", model, "--data", self.data, "--threads", 1,
                                  "--every", every, *more)

    def lines(self, path):
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


class Training(LanguageModelTest):
    def test_two_trainers_learn_more_than_how_often_words_come(self):
        for policy, plan in (("hogwild", "static"), ("locked", "dynamic")):
            with self.subTest(policy):
                daemon = self.daemon(policy=policy, optimizer='{"type":"adam","lr":0.01}', listen=(self.unix_address(f"{policy}.sock"),))
                length = ("--steps", 250) if plan == "static" else ("--epochs", 22)
                trainers = [self.start_trainer("train", "--server", daemon.address, "--rank", rank, "--world-size", 2, "--model", MODEL,
                                               "--data", self.data, "--threads", 1, "--batch-size", 16, "--data-plan", plan, *length)
                            for rank in range(2)]
                for trainer in trainers:
                    self.assert_ends(trainer)
                self.assertRegex(trainers[0].out, r"test loss \d\.\d{4}, perplexity \d\.\d\d, accuracy \d\d\.\d\d % on 39 sequences of 20 words")
                scored = self.start_trainer("eval", "--server", daemon.address, "--model", MODEL, "--data", self.data, "--json")
                self.assert_ends(scored)
                score = json.loads(scored.out)
                # Words alone are equally likely; knowing the rule gives a loss of 0.52.
                self.assertLess(score["perplexity"], 0.4 * WORDS)
                self.assertAlmostEqual(score["perplexity"], math.exp(score["loss"]), places=9)
                self.assertEqual(score["samples"], 39)
                self.assert_stops(daemon)


    def test_a_transformer_learns_characters(self):
        data = f"{self.data},level=char"
        model = "gpt:layers=1,width=32,heads=2,context=20,vocabulary=10"
        daemon = self.language_daemon()
        trainer = self.train(daemon.address, model=model, data=data, steps=150, more=("--batch-size", 16))
        self.assert_ends(trainer)
        scored = self.start_trainer("eval", "--server", daemon.address, "--model", model, "--data", data, "--json")
        self.assert_ends(scored)
        # Every third character is one of seven digits, which its position does not predict; the two between are always
        # the same.
        self.assertLess(json.loads(scored.out)["loss"], 1.2 * math.log(WORDS) / 3)


class Reports(LanguageModelTest):
    def test_a_trainer_on_a_text_tells_the_tokens_of_its_samples(self):
        daemon = self.language_daemon()
        trainer = self.train_words(daemon, steps=1_000_000)
        status = daemon.until_status("it reports", lambda status: status["trainers"] and status["trainers"][0]["reports"])
        values = {each["name"]: each["value"] for each in status["trainers"][0]["reports"]}
        self.assertGreater(values["samples_per_second"], 0)
        self.assertAlmostEqual(values["tokens_per_second"], 20 * values["samples_per_second"], delta=1e-6 * values["tokens_per_second"])
        trainer.signal(signal.SIGINT)
        self.assert_ends(trainer, 128 + signal.SIGINT)


class Watching(LanguageModelTest):
    def test_scores_get_better_while_a_trainer_trains_and_the_daemons_end_is_the_end(self):
        daemon = self.language_daemon(exit_when_done=True)
        metrics = self.folder / "scores.jsonl"
        watcher = self.watch(daemon, "--metrics", metrics)
        processes.until("it waits for a model", lambda: "waiting for a model" in watcher.err)
        trainer = self.train_words(daemon, steps=1_000_000)
        # On SIGINT the trainer leaves in an orderly way, and the daemon, whose last trainer it was, ends.
        processes.until("the model is good", lambda: any(score["perplexity"] < 3.5 for score in self.lines(metrics)))
        trainer.signal(signal.SIGINT)
        self.assert_ends(trainer, 128 + signal.SIGINT)
        self.assert_ends(daemon)
        self.assert_ends(watcher)
        self.assertIn("the daemon is gone", watcher.err)
        scores = self.lines(metrics)
        self.assertGreater(scores[0]["perplexity"], 3.5)
        self.assertGreater(len(scores), 2)
        self.assertEqual(scores, sorted(scores, key=lambda score: (score["seconds"], score["versions"])))
        self.assertEqual(set(scores[0]), {"seconds", "model", "data", "samples", "loss", "perplexity", "accuracy", "versions"})
        self.assertEqual(len(watcher.out.splitlines()), len(scores))
        self.assertRegex(watcher.out.splitlines()[0], r"^[\d.]+ m?s  versions? \d+( to \d+)?  loss .*, perplexity .*, accuracy .* % on 39 ")

    def test_it_is_no_trainer(self):
        daemon = self.language_daemon(policy="sync", world_size=1)
        watcher = self.watch(daemon)
        self.assert_ends(self.train_words(daemon, steps=5))
        processes.until("it has a score", lambda: watcher.out)
        status = daemon.status()
        self.assertEqual((status["counters"]["trainers_joined"], status["trainers_lost"]), (1, 0))
        self.assert_stops(daemon)
        self.assert_ends(watcher)

    def test_signals_end_it(self):
        daemon = self.language_daemon()
        waiting = self.watch(daemon)
        processes.until("it waits for a model", lambda: "waiting for a model" in waiting.err)
        waiting.signal(signal.SIGTERM)
        self.assert_ends(waiting, 128 + signal.SIGTERM)
        self.assert_ends(self.train_words(daemon, steps=2))
        for number in (signal.SIGINT, signal.SIGTERM):
            watcher = self.watch(daemon, "--json", every=3600)
            processes.until("it has a score", lambda: watcher.out)
            watcher.signal(number)
            self.assert_ends(watcher, 128 + number)
            self.assertIn("perplexity", json.loads(watcher.out))
        self.assertEqual(daemon.counter("connections_dropped"), 0)

    def test_signals_interrupt_no_thread_that_computes(self):
        # A signal handler's frame on the stack of oneDNN's LSTM kernels corrupts the heap.
        daemon = self.language_daemon()
        trainer = self.train_words(daemon, steps=1_000_000)
        processes.until("it trains", lambda: daemon.counter("gradients") > 20)
        taken = {signal.SIGINT, signal.SIGTERM}
        takers = []
        for task in pathlib.Path(f"/proc/{trainer.pid}/task").iterdir():
            blocked = int(re.search(r"^SigBlk:\s*(\w+)", (task / "status").read_text(), re.MULTILINE)[1], 16)
            if any(not blocked >> (number - 1) & 1 for number in taken):
                takers.append(task.name)
        self.assertEqual(len(takers), 1, takers)
        self.assertNotEqual(takers[0], str(trainer.pid))
        trainer.signal(signal.SIGTERM)
        self.assert_ends(trainer, 128 + signal.SIGTERM)

    def test_a_daemon_that_dies_ends_it_too(self):
        daemon = self.language_daemon()
        self.assert_ends(self.train_words(daemon, steps=2))
        watcher = self.watch(daemon)
        processes.until("it has a score", lambda: watcher.out)
        daemon.kill()
        self.assert_ends(watcher)
        self.assertIn("the daemon is gone", watcher.err)

    def test_a_daemon_that_is_not_there_or_has_another_model_is_an_error(self):
        daemon = self.language_daemon()
        self.assert_ends(self.train_words(daemon, steps=2))
        self.assert_fails(self.watch(daemon, model="lstm_lm:embedding=9,hidden=24,vocabulary=8"), "embedding.weight")
        daemon.kill()
        self.assert_fails(self.watch(daemon, "--connect-timeout", 0.2), "no psd daemon answered")


class Refused(LanguageModelTest):
    def refuse(self, model, data, *words):
        trainer = self.start_trainer("train", "--server", self.unix_address("none.sock"), "--model", model, "--data", data)
        self.assert_fails(trainer, *words)
        self.assertEqual(trainer.wait(), 2)

    def test_data_and_models_that_do_not_fit(self):
        self.refuse("mlp", self.data, "tokens i64[21] below 8", "the model mlp takes image f32[1,28,28], label i64 below 10")
        self.refuse(MODEL, "synthetic:64", "image f32[1,28,28], label i64 below 10", "the model lstm_lm takes tokens i64[any] below 8")
        self.refuse("lstm_lm:vocabulary=7", self.data, "tokens i64[21] below 8", "takes tokens i64[any] below 7")

    def test_options(self):
        self.refuse("lstm_lm:hidden=no", self.data, "--model", "hidden must be a whole number", "'no'")
        self.refuse(MODEL, self.data + ",level=line", "--data", "level must be word or char", "'line'")


if __name__ == "__main__":
    processes.main()
