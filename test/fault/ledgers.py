"""What counting trainers were promised, as their ledgers tell, and what of it does not hold. Knows no processes.

counting_trainer.cc says what is in a ledger, and what its gradients leave in the model. Each `…_findings()` gives lines, one for each
thing that is wrong; none: all holds.
"""

import dataclasses
import itertools

PERIOD = 16
CELLS_OF_RANK = 3
RANKS = (PERIOD - 1) // CELLS_OF_RANK
EXACT = 1 << 24  # below which float32 has every whole number
UNANSWERED_MAX = 12  # of which all subsets are looked at


def marks(step):
    """marksOf() of counting_trainer.cc."""
    return 1, step % 67, (step * 0x9E3779B97F4A7C15 % (1 << 64)) >> 58


@dataclasses.dataclass
class Push:
    step: int
    sent: int  # ns
    answered: int = 0  # ns; 0: it was not
    versions: tuple = ()
    by: tuple = ()  # (daemon, epoch), by partition
    sent_to: str = ""  # the daemons to which the model had moved by then, as the trainer had heard; empty: those of its start
    answered_at: str = ""  # the same when the answer was written down, which may be after a move that waited for it


@dataclasses.dataclass
class Pull:
    answered: int  # pushes, before it began
    sent: int
    low: int  # of the own pushes that it shows
    high: int


class Ledger:
    """Of one process of a trainer, which may be at work. `path`: nothing is there yet, or the file."""

    def __init__(self, rank, path=None):
        self.rank, self.path = rank, path
        self.pushes, self.pulls = {}, []
        self.count = 0  # answered
        self.place = ""  # the daemons to which the model has moved
        self.read = 0  # bytes

    def look(self):
        """Takes what was added."""
        if self.path is None or not self.path.exists():
            return self
        with open(self.path, "rb") as file:
            file.seek(self.read)
            added = file.read()
        whole = added[:added.rfind(b"\n") + 1]
        self.read += len(whole)
        for line in whole.decode().splitlines():
            self.take(*line.split())
        return self

    def take(self, kind, *fields):
        if kind == "S":
            step, sent = map(int, fields)
            self.pushes[step] = Push(step, sent, sent_to=self.place)
        elif kind == "A":
            step, time, versions, by = fields
            push = self.pushes[int(step)]
            push.answered, push.answered_at = int(time), self.place
            push.versions = tuple(map(int, versions.split(",")))
            push.by = tuple((daemon, int(epoch)) for daemon, epoch in (each.split(":") for each in by.split(",")))
            self.count += 1
        elif kind == "P":
            self.pulls.append(Pull(*map(int, fields[1:])))
        elif kind == "M":
            self.place = fields[0]  # told with each attempt to reach the new daemons
        else:
            raise AssertionError(f"'{kind}' begins no line of a ledger")

    def answered(self):
        """How many pushes were, by now."""
        return self.look().count

    def all_answered(self):
        return [push for push in self.pushes.values() if push.answered]

    def unanswered(self):
        return [push for push in self.pushes.values() if not push.answered]


def added(*several):
    return tuple(map(sum, zip((0,) * CELLS_OF_RANK, *several)))


def allowed_cells(ledgers):
    """What a rank's cells may be: every answered push once, every other one once or not at all."""
    base = added(*(marks(push.step) for ledger in ledgers for push in ledger.all_answered()))
    open_ones = [marks(push.step) for ledger in ledgers for push in ledger.unanswered()]
    if len(open_ones) > UNANSWERED_MAX:
        raise AssertionError(f"{len(open_ones)} pushes were not answered, more than can be looked at")
    found = {added(base, *some) for count in range(len(open_ones) + 1) for some in itertools.combinations(open_ones, count)}
    if max(max(cells) for cells in found) >= EXACT:
        raise AssertionError("so many pushes that float32 has not all numbers")
    return found


def count_findings(ledgers, tensors):
    """`tensors`: the values of each, by name, once nothing is under way any more."""
    allowed = {rank: allowed_cells([ledger for ledger in ledgers if ledger.rank == rank]) for rank in range(RANKS)}
    findings = set()
    for name, values in tensors.items():
        for begin in range(0, len(values), PERIOD):
            cells = values[begin:begin + PERIOD]
            for rank in range(RANKS):
                own = tuple(cells[rank * CELLS_OF_RANK:(rank + 1) * CELLS_OF_RANK])
                if not any(may[:len(own)] == own for may in allowed[rank]):  # at a tensor's end not all of them
                    findings.add((rank, name, own))
            if len(cells) == PERIOD and cells[-1] != sum(cells[:-1:CELLS_OF_RANK]):
                findings.add(("of all", name, cells[-1]))
    return [f"rank {rank}: {name} has {own}, not {sorted(allowed.get(rank, []))[:3]}" for rank, name, own in sorted(findings, key=str)]


def answerer_findings(ledgers):
    """No two daemons answered pushes of one epoch of one pair."""
    found = {}
    for ledger in ledgers:
        for push in ledger.all_answered():
            for partition, (daemon, epoch) in enumerate(push.by):
                if epoch != 0 and push.sent_to == push.answered_at:  # it has a standby, and is of that pair for sure
                    found.setdefault((push.answered_at, len(push.by), partition, epoch), set()).add(daemon)
    return [f"partition {partition} of {count}, epoch {epoch}: answered by {' and '.join(sorted(daemons))}"
            for (_, count, partition, epoch), daemons in sorted(found.items()) if len(daemons) > 1]


def version_findings(ledgers):
    """A push that was sent after the answer of another one, of the same daemons in the same epochs, has no lower version of any shard."""
    pushes = [push for ledger in ledgers for push in ledger.all_answered()]
    moments = sorted([(push.sent, 0, index) for index, push in enumerate(pushes)]
                     + [(push.answered, 1, index) for index, push in enumerate(pushes)])
    newest, findings, floors = {}, [], {}
    for _, is_answer, index in moments:
        push = pushes[index]
        key = push.answered_at, push.by
        if not is_answer:
            floors[index] = newest.get(key, ())
            continue
        if any(now < then for now, then in zip(push.versions, floors[index])):
            findings.append(f"step {push.step}: answered with versions {push.versions}, after {floors[index]} in the same epoch")
        before = newest.get(key, (0,) * len(push.versions))
        newest[key] = tuple(map(max, before, push.versions))
    return findings


def pull_findings(ledgers):
    """A trainer's pull shows all its pushes that were answered before it, and none that it has not sent."""
    return [f"rank {ledger.rank}: a pull shows from {pull.low} to {pull.high} of its pushes, of which {pull.answered} were answered "
            f"before it and {pull.sent} sent" for ledger in ledgers for pull in ledger.pulls if not pull.answered <= pull.low <= pull.high <= pull.sent]


def findings(ledgers, races=False):
    """All that the ledgers alone tell. `races`: updates may overwrite one another, so pulls need not show all."""
    for ledger in ledgers:
        ledger.look()
    return answerer_findings(ledgers) + version_findings(ledgers) + ([] if races else pull_findings(ledgers))


def longest_gap(ledgers, begin, end):
    """Seconds between two answers, whoever's, the longest of those that reach into that time (ns)."""
    times = sorted(push.answered for ledger in ledgers for push in ledger.all_answered())
    return max((after - before for before, after in zip(times, times[1:]) if after >= begin and before <= end), default=0) / 1e9


def longest_wait(ledgers, begin, end):
    """Seconds from a push to its answer, the longest of those that were under way in that time (ns)."""
    return max((push.answered - push.sent for ledger in ledgers for push in ledger.all_answered()
                if push.answered >= begin and push.sent <= end), default=0) / 1e9
