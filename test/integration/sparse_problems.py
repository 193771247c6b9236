"""Files of sparse examples whose best log loss is known, and the psd-trainer of tests that are to reach it."""

import json
import math
import random

import numpy as np
import processes


def log_loss(logits, labels):
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))


def logistic_optimum(features, labels):
    """The least log loss of a logistic regression on a dense matrix, by Newton's method with halved steps."""
    weights = np.zeros(features.shape[1])
    loss = log_loss(features @ weights, labels)
    for _ in range(100):
        chances = 1 / (1 + np.exp(-(features @ weights)))
        gradient = features.T @ (chances - labels) / len(labels)
        hessian = (features.T * (chances * (1 - chances))) @ features / len(labels)
        step = np.linalg.lstsq(hessian + 1e-12 * np.eye(len(weights)), gradient, rcond=None)[0]
        scale = 1.0
        while (next_loss := log_loss(features @ (weights - scale * step), labels)) > loss and scale > 1e-6:
            scale /= 2
        weights = weights - scale * step
        if loss - next_loss < 1e-10:
            return min(loss, next_loss)
        loss = next_loss
    raise AssertionError("Newton's method did not converge")


class CriteoProblem:
    """Lines of Criteo's form, as a text and as a dense matrix of its distinct features, whose first column is one."""

    def __init__(self, count, seed=1, values=6):
        draw = random.Random(seed)
        effects = [[draw.gauss(0, 0.4) for _ in range(values + 1)] for _ in range(26)]
        slopes = [draw.gauss(0, 0.25) for _ in range(13)]
        matrix = np.zeros((count, 14 + 26 * (values + 1)))
        matrix[:, 0] = 1
        labels, lines = [], []
        for row in range(count):
            numbers = [None if draw.random() < 0.2 else int(draw.expovariate(0.05)) - 2 for _ in range(13)]
            # The value 0 is missing.
            categories = [min(values, int(draw.expovariate(0.5))) for _ in range(26)]
            logit = -1.0
            for i, number in enumerate(numbers):
                matrix[row, 1 + i] = 0 if number is None else math.log1p(max(number, 0))
                logit += slopes[i] * (matrix[row, 1 + i] - 2)
            for field, value in enumerate(categories):
                matrix[row, 14 + field * (values + 1) + value] = 1
                logit += effects[field][value]
            labels.append(int(draw.random() < 1 / (1 + math.exp(-logit))))
            lines.append("\t".join([str(labels[-1]), *("" if number is None else str(number) for number in numbers),
                                    *(self.category(field, value) for field, value in enumerate(categories))]))
        self.labels = np.array(labels)
        self.matrix = matrix[:, matrix.any(0)]
        self.text = "\n".join(lines) + "\n"

    @staticmethod
    def category(field, value):
        return "" if value == 0 else f"{value * 0x1234567 + field:08x}"


class PairsProblem:
    """Lines of libsvm with two features of `count` each. The label depends on the pair alone: without products of features
    there is nothing to learn. The best log loss is that of each pair's own frequency, which a factorization machine of
    `count` factors can reach: the problem is that of a logistic regression with a weight for every pair."""

    def __init__(self, examples, count=4, seed=1):
        draw = random.Random(seed)
        table = [[(-1) ** (row + column) * (0.6 + draw.random()) for column in range(count)] for row in range(count)]
        positives, alls = np.zeros((count, count)), np.zeros((count, count))
        lines = []
        for _ in range(examples):
            row, column = draw.randrange(count), draw.randrange(count)
            label = draw.random() < 1 / (1 + math.exp(-table[row][column]))
            alls[row, column] += 1
            positives[row, column] += label
            lines.append(f"{'+1' if label else '-1'} {row * 1000003}:1 {2**64 - 1 - column}:1")
        self.text = "\n".join(lines) + "\n"
        share = positives / alls
        entropies = -(positives * np.log(share) + (alls - positives) * np.log(1 - share))
        self.optimum = float(entropies.sum() / examples)
        all_share = positives.sum() / examples
        self.constant = float(-(all_share * math.log(all_share) + (1 - all_share) * math.log(1 - all_share)))


class SparseTest(processes.ProcessTest):
    def configured(self, name, *arguments, run=None, policy=None, **settings):
        """A daemon with an example configuration; socket and folder are named after the run, by default after the configuration."""
        run = run or name
        return self.daemon("--config", processes.REPO / "configs" / f"{name}.json", *arguments, listen=(self.unix_address(f"{run}.sock"),),
                           policy=policy, optimizer=None, durability__path=str(self.folder / f"{run}_saved"), exit_when_done=False,
                           limits__table_bytes=1 << 30, device=None, **settings)

    def train(self, daemon, model, data, *more, count=1):
        trainers = [self.start_trainer("train", "--server", daemon.address, "--rank", rank, "--world-size", count, "--model", model,
                                       "--data", data, "--threads", 1, *more) for rank in range(count)]
        for trainer in trainers:
            self.assert_ends(trainer)
        return trainers

    def score(self, daemon, model, data, *more):
        scored = self.start_trainer("eval", "--server", daemon.address, "--model", model, "--data", data, "--json", *more)
        self.assert_ends(scored)
        return json.loads(scored.out)
