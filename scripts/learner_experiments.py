"""The claims of scripts/experiments about learners that communicate little, for docs/reference/performance_diloco.md."""

import math
import statistics
import sys

from experiment_lab import mean_curve, spread, table, verdict

LEARNERS, BATCH, SEEDS = 4, 8, 2
STEPS = 1200  # per learner
MODEL = "gpt:layers=2,width=64,heads=4,context=32,vocabulary=65,dropout=0"
LOOKS = 10  # evaluations of the loss during a run
NOISE = {"byzantine": 1, "byzantine_deviation": 0.1}
FOUR_BITS = {"codecs": {"push": {"default": "e3m0"}}}
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.5


class Learners:
    """Runs of four learners over one text."""

    def __init__(self, lab):
        self.lab = lab
        self.steps = 240 if lab.quick else STEPS
        self.inner = self.adamw("steps")
        self.outer = {"type": "sgd", "lr": OUTER_RATE, "momentum": OUTER_MOMENTUM, "nesterov": True}

    def adamw(self, unit):
        """A schedule counts steps at a learner and updates at the daemon: with `sync` the two are equal."""
        schedule = {"type": "cosine", f"warmup_{unit}": self.steps // 24, f"total_{unit}": self.steps, "lr_min": 0.0003}
        return {"type": "adamw", "lr": 0.003, "schedule": schedule}

    def run(self, what, policy, optimizer, config=None, **flags):
        steps = LEARNERS * self.steps
        return self.lab.over_seeds(
            SEEDS, what, policy=policy, optimizer=optimizer, config=config, trainers=LEARNERS, steps=steps, score_every=steps // LOOKS,
            batch_size=BATCH, device="cpu", model=MODEL, data=f"text:{self.lab.text}:level=char,length=32,vocabulary=65", **flags)

    def every_step(self):
        return self.run("sync", {"type": "sync"}, self.adamw("updates"))

    def diloco(self, what, period, config=None, flags=None, **policy):
        return self.run(f"diloco, {what}", {"type": "diloco", "period": period, "inner": self.inner, **policy}, self.outer, config, **(flags or {}))

    def arrivals(self, what, period, flags=None, **policy):
        """Without rounds: each learner's difference is a step at once."""
        optimizer = {"type": "delayed_nesterov", "lr": OUTER_RATE, "momentum": OUTER_MOMENTUM, "delay": LEARNERS}
        return self.run(f"async_diloco, {what}", {"type": "async_diloco", "period": period, "inner": self.inner, **policy}, optimizer, **(flags or {}))

    def text(self):
        return (f"`{MODEL.removesuffix(',dropout=0')}` on Tiny Shakespeare, {LEARNERS} virtual "
                f"[learners](../reference/trainer.md#virtual-trainers) with {self.steps:,} steps each of {BATCH} sequences of 32 characters, AdamW with a "
                f"warm-up of {self.steps // 24} steps to 0.003 and a cosine to 0.0003. Outer SGD with rate {OUTER_RATE} and Nesterov's momentum "
                f"{OUTER_MOMENTUM}; with the papers' 0.9 all end higher in so few rounds. Held-out loss in nats, the least and the most of {SEEDS} seeds.")


def final_losses(reports):
    return [report["score"]["loss"] if report["score"] else math.inf for report in reports]


def losses(reports):
    return spread(final_losses(reports), 3)


def mean_loss(reports):
    return statistics.mean(final_losses(reports))


def loss_curve(reports, x):
    """The mean of [(x, loss)], x "time", or "bytes": a learner's in both directions, proportional to its steps."""
    points = mean_curve(reports, "time", "loss")
    if x == "time":
        return points
    return [(time / points[-1][0] * learner_bytes(reports), loss) for time, loss in points]


def learner_bytes(reports):
    return statistics.mean(report["bytes_pulled"] + report["bytes_pushed"] for report in reports) / LEARNERS


def megabytes(reports, ways):
    return f"{statistics.mean(sum(run[way] for way in ways) for run in reports) / LEARNERS / 1e6:.2f}"


def learner_traffic(lab, pictures):
    """Douillard et al. 2023, 2025."""
    learners = Learners(lab)
    runs = {"`sync`: a round each step": learners.every_step()}
    for period in (20, 50, 100):
        runs[f"`period` {period}"] = learners.diloco(f"period {period}", period)
    pieces = {"fragments": 5, "delay": 5, "blend": 0.5}
    runs["`period` 50, four bits"] = learners.diloco("four bits", 50, FOUR_BITS, deltas="e3m0")
    runs["`period` 50, fragments"] = learners.diloco("fragments", 50, **pieces)
    runs["`period` 50, fragments, four bits"] = learners.diloco("fragments in four bits", 50, FOUR_BITS, deltas="e3m0", **pieces)
    first = next(iter(runs))
    means = {name.replace("`", ""): mean_loss(found) for name, found in runs.items()}
    fewer = {name.replace("`", ""): learner_bytes(runs[first]) / learner_bytes(found) for name, found in runs.items()}
    best = means["sync: a round each step"]
    return [
        "### Loss and bytes", "",
        learners.text(),
        "*Four bits*: `e3m0` pushed and as `deltas`; *fragments*: 5, with `delay` 5 and `blend` 0.5. "
        "MB of one learner.", "",
        *table(("`diloco`, or `sync` with AdamW in the daemon", "loss", "MB pushed", "MB pulled", "fewer bytes"),
               [(name, losses(found), *(megabytes(found, [way]) for way in ("bytes_pushed", "bytes_pulled")),
                 f"{fewer[name.replace('`', '')]:.0f} ×") for name, found in runs.items()]),
        *verdict([("with 50 steps between exchanges the loss is within 0.05 of a round each step", means["period 50"] < best + 0.05),
                  ("four bits both ways cost less than 0.02", means["period 50, four bits"] < means["period 50"] + 0.02),
                  ("fragments that come late and are blended in cost less than 0.03", means["period 50, fragments"] < means["period 50"] + 0.03),
                  ("in four bits a learner sends and gets at least 300 times less, whole or in fragments",
                   min(fewer["period 50, four bits"], fewer["period 50, fragments, four bits"]) >= 300)]),
        *pictures.lines("learner_traffic", "Four learners: loss by what each sends and gets", "bytes of a learner, both ways", "held-out loss",
                        [(name.replace("`", ""), loss_curve(found, "bytes")) for name, found in runs.items()], (1.8, 3.4), "log")]


def learner_faults(lab, pictures):
    """DiLoCo with a noisy learner, and with a slow one; Liu et al. 2024."""
    learners = Learners(lab)
    period, factor = 20, 4
    aggregators = ("mean", "median")
    noisy = {(name, bad): learners.diloco(f"{name}, {bad} noisy", period, aggregator=name, flags=NOISE if bad else {})
             for name in aggregators for bad in (0, 1)}
    slow = {"schedule": f"straggler:factor={factor}"}
    rounds = {"none is slow": noisy["mean", 0],
              "rounds wait for all": learners.diloco("slow, all", period, flags=slow),
              "`quorum` 3": learners.diloco("slow, quorum 3", period, flags=slow, quorum=3, grace_ms=0),
              "`async_diloco`": learners.arrivals("slow", period, flags=slow),
              "`async_diloco`, `dynamic_period`": learners.arrivals("slow, dynamic", period, flags=slow, dynamic_period=True)}
    means = {name: mean_loss(found) for name, found in {**noisy, **rounds}.items()}
    took = {name: statistics.mean(report["time"] for report in found) for name, found in rounds.items()}
    gain = took["rounds wait for all"] / took["`quorum` 3"]
    return [
        "### A noisy learner, and a slow one", "",
        f"The same learners, `period` {period}. One of {LEARNERS} pushes noise with a deviation of {NOISE['byzantine_deviation']} (`--byzantine`), "
        f"or takes {factor} times as long for a step; time is in steps of the others.", "",
        *table(("`aggregator`", "loss, all are honest", "one pushes noise"),
               [(f"`{name}`", losses(noisy[name, 0]), losses(noisy[name, 1])) for name in aggregators]),
        *table((f"one is {factor} times slower", "loss", "time", "tokens per time", "MB of a learner, both ways"),
               [(name, losses(found), f"{took[name]:,.0f}", f"{LEARNERS * learners.steps * BATCH * 32 / took[name]:,.0f}",
                 megabytes(found, ("bytes_pushed", "bytes_pulled"))) for name, found in rounds.items()]),
        *verdict([("the mean is spoilt by noise", means["mean", 1] > means["mean", 0] + 0.5),
                  ("the median comes within 0.1 of honest learners", means["median", 1] < means["median", 0] + 0.1),
                  ("rounds with a quorum have at least 2.8 times the tokens of rounds that wait for a slow learner", gain >= 2.8),
                  ("and end at a loss no more than 0.05 higher", means["`quorum` 3"] < means["rounds wait for all"] + 0.05),
                  ("without rounds, a dynamic period costs no loss",
                   means["`async_diloco`, `dynamic_period`"] < means["`async_diloco`"] + 0.02)]),
        *pictures.lines("learner_faults", f"Four learners, period {period}, and what one of them does", "virtual time", "held-out loss",
                        [*((f"{name}, {'one pushes noise' if bad else 'all are honest'}", loss_curve(found, "time")) for (name, bad), found in noisy.items()),
                         *((f"one is slow, {name.replace('`', '')}", loss_curve(found, "time"))
                           for name, found in rounds.items() if found is not noisy["mean", 0])],
                        (1.8, 4.2))]


def learner_reference(lab, _):
    """psd.torch.DiLoCo compared with a reference in PyTorch alone."""
    names = {"rounds": "`diloco`", "fragments": "`fragments` 2, `delay` a tenth of `period`, `blend` 0.5",
             "arrivals": "`async_diloco`, learners that take turns"}
    periods, rows, most = (20, 50), [], 0.0
    for kind, name in names.items():
        row = [name]
        for period in periods:
            print(f"  {kind}, period {period}", file=sys.stderr)
            found = [lab.by_torch(kind, period, seed) for seed in lab.seeds(SEEDS)]
            most = max(most, *(abs(each["psd"] - each["torch"]) for each in found))
            row += (", ".join(f"{each[whose]:.3f}" for each in found) for whose in ("torch", "psd"))
        rows.append(row)
    return [
        "### A reference by PyTorch", "",
        f"{LEARNERS} learners of `psd.torch.DiLoCo` against the same algorithm in PyTorch alone (`test/bench/torch_diloco.py`): two layers, characters "
        f"of Tiny Shakespeare, inner AdamW with a rate of 0.003, 10 rounds. Held-out loss in nats, {SEEDS} seeds.", "",
        *table(("", *(column for period in periods for column in (f"`period` {period}: PyTorch", "psd"))), rows),
        *verdict([(f"psd's loss is within 0.03 of the reference's (the most was {most:.4f})", most < 0.03)])]
