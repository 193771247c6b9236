"""Checks of the ledgers of counting trainers: what they were promised, and violations of it. Independent of processes.

counting_trainer.cc describes the ledger, and what its gradients leave in the model. Each `…_findings()` returns one
line for each violation; none if everything holds.
"""

import dataclasses
import itertools

PERIOD = 16
CELLS_OF_RANK = 3
RANKS = (PERIOD - 1) // CELLS_OF_RANK
EXACT = 1 << 24  # below which float32 is exact for whole numbers
UNANSWERED_MAX = 12  # all subsets of them are tried


def marks(step):
    """marksOf() of counting_trainer.cc."""
    return 1, step % 67, (step * 0x9E3779B97F4A7C15 % (1 << 64)) >> 58


@dataclasses.dataclass
class Push:
    step: int
    sent: int  # ns
    answered: int = 0  # ns; 0: not answered
    versions: tuple = ()
    by: tuple = ()  # (daemon, epoch), by partition
    sent_to: str = ""  # the daemons to which the model had moved as far as the trainer knew; empty: those of its start
    answered_at: str = ""  # the same when the answer was recorded, which may be after a move that delayed it


@dataclasses.dataclass
class Pull:
    answered: int  # pushes, before it started
    sent: int
    low: int  # of the own pushes that it shows
    high: int


class Ledger:
    """Ledger of one process of a trainer, which may still run. `path`: the file, which need not exist yet."""

    def __init__(self, rank, path=None):
        self.rank, self.path = rank, path
        self.pushes, self.pulls = {}, []
        self.count = 0  # answered pushes
        self.place = ""  # the daemons to which the model has moved
        self.read = 0  # bytes

    def read_new_lines(self):
        """Reads the lines that were added."""
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
            self.place = fields[0]  # recorded at each attempt to reach the new daemons
        else:
            raise AssertionError(f"'{kind}' begins no line of a ledger")

    def answered(self):
        """The number of answered pushes so far."""
        return self.read_new_lines().count

    def all_answered(self):
        return [push for push in self.pushes.values() if push.answered]

    def unanswered(self):
        return [push for push in self.pushes.values() if not push.answered]


def added(*several):
    return tuple(map(sum, zip((0,) * CELLS_OF_RANK, *several)))


def allowed_cells(ledgers):
    """The possible values of a rank's cells: every answered push once, every other one once or not at all."""
    base = added(*(marks(push.step) for ledger in ledgers for push in ledger.all_answered()))
    open_ones = [marks(push.step) for ledger in ledgers for push in ledger.unanswered()]
    if len(open_ones) > UNANSWERED_MAX:
        raise AssertionError(f"{len(open_ones)} pushes were not answered, more than can be looked at")
    found = {added(base, *some) for count in range(len(open_ones) + 1) for some in itertools.combinations(open_ones, count)}
    if max(max(cells) for cells in found) >= EXACT:
        raise AssertionError("too many pushes for exact float32 sums")
    return found


def count_findings(ledgers, tensors):
    """`tensors`: the values of each, by name. Requires that no push is in flight."""
    allowed = {rank: allowed_cells([ledger for ledger in ledgers if ledger.rank == rank]) for rank in range(RANKS)}
    findings = set()
    for name, values in tensors.items():
        for begin in range(0, len(values), PERIOD):
            cells = values[begin:begin + PERIOD]
            for rank in range(RANKS):
                own = tuple(cells[rank * CELLS_OF_RANK:(rank + 1) * CELLS_OF_RANK])
                if not any(may[:len(own)] == own for may in allowed[rank]):  # a tensor may end within a group
                    findings.add((rank, name, own))
            if len(cells) == PERIOD and cells[-1] != sum(cells[:-1:CELLS_OF_RANK]):
                findings.add(("of all", name, cells[-1]))
    return [f"rank {rank}: {name} has {own}, not {sorted(allowed.get(rank, []))[:3]}" for rank, name, own in sorted(findings, key=str)]


def answerer_findings(ledgers):
    """No two daemons answered pushes of one term of one replica set."""
    found = {}
    for ledger in ledgers:
        for push in ledger.all_answered():
            for partition, (daemon, epoch) in enumerate(push.by):
                if epoch != 0 and push.sent_to == push.answered_at:  # it has a standby, and certainly belongs to that pair
                    found.setdefault((push.answered_at, len(push.by), partition, epoch), set()).add(daemon)
    return [f"partition {partition} of {count}, epoch {epoch}: answered by {' and '.join(sorted(daemons))}"
            for (_, count, partition, epoch), daemons in sorted(found.items()) if len(daemons) > 1]


def version_findings(ledgers):
    """A push sent after the answer of another one, at the same daemons in the same epochs, has no lower version of any
    shard."""
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
    """Everything that follows from the ledgers alone. `races`: updates may overwrite one another, so pulls may miss
    some."""
    for ledger in ledgers:
        ledger.read_new_lines()
    return answerer_findings(ledgers) + version_findings(ledgers) + ([] if races else pull_findings(ledgers))


def longest_gap(ledgers, begin, end):
    """The longest time in seconds between two answers of any trainers that overlaps with [begin, end] (ns)."""
    times = sorted(push.answered for ledger in ledgers for push in ledger.all_answered())
    return max((after - before for before, after in zip(times, times[1:]) if after >= begin and before <= end), default=0) / 1e9


def longest_wait(ledgers, begin, end):
    """The longest time in seconds from a push to its answer, among those in flight in [begin, end] (ns)."""
    return max((push.answered - push.sent for ledger in ledgers for push in ledger.all_answered()
                if push.answered >= begin and push.sent <= end), default=0) / 1e9
