@0xd5f1a0c3b7e24689;
# The wire of psd, with what it imports from beside it. docs/protocol.md tells the story; these files are the reference.
#
# Ids of fields and methods are never reused: what is added gets the next number. Element offsets and counts are in float32
# elements of the flat arena (common/types/model_layout.h). Names say where a number counts bytes. Every method answers with a
# union of its result and a typed Error. A Cap'n Proto exception means a broken connection or a defect, never an expected condition.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "daemons.capnp".ArriveResult;
using import "daemons.capnp".BeginMoveResult;
using import "daemons.capnp".MoveOutcome;
using import "daemons.capnp".MoveTermsResult;
using import "daemons.capnp".ReplicaSink;
using import "daemons.capnp".ReplicateResult;
using import "model.capnp".AllReduce;
using import "model.capnp".LocalSteps;
using import "model.capnp".ModelSpec;
using import "model.capnp".RowRun;
using import "model.capnp".RowShard;
using import "model.capnp".ShardRange;
using import "session.capnp".GroupResult;
using import "session.capnp".ProgressResult;
using import "session.capnp".RoundDueResult;
using import "session.capnp".StepAsideResult;
using import "status.capnp".Acknowledgement;
using import "status.capnp".Error;

const protocolVersion :UInt32 = 2;
# Raised when an older peer could misread a newer one. Both sides compare their versions in Login.login.

struct ModelAccess {
  # What a peer must know before it pulls or pushes.
  shards @0 :List(ShardRange);   # in order; shard i is element i of this list
  policy @1 :Text;               # for people: "hogwild"; of several groups "fc*: locked, others: hogwild"
  device @2 :Text;               # for people: where the shards lie
  sliceElementsMax @3 :UInt64;   # largest slice that the daemon takes or sends; of rows, an id and a run count as 2 each
  sharedModel @4 :SharedModel;   # map of the parameters; null where the daemon offers none
  notShared @5 :Text;            # for people: why sharedModel is null
  ringBytesMax @6 :UInt64;       # largest ring that Trainer.openRing gives on this connection; 0: none
  localSteps @7 :LocalSteps;     # null: trainers push the gradient of every step
  deviceOfShard @8 :List(UInt32);  # per shard, the number of its device for Trainer.openDeviceRing; empty where that gives no ring
  rowShards @9 :List(RowShard);    # their numbers go on after those of `shards`
  # Of several daemons that serve a model: what all agree in, a line "KEY: VALUE" for each key of the configuration, and which of
  # `groups` take nothing of this partition. Trainers look whether all agree, and whether a group takes nothing anywhere.
  rules @10 :Text;
  emptyGroups @11 :List(UInt32);
  fragmentOfShard @12 :List(UInt32);   # per shard, below LocalSteps.fragments; empty where that is 0 or 1
  allReduce @13 :AllReduce;        # null: each trainer pushes its gradients
  outgoingBytes @14 :UInt64;       # of answers with values that wait for one connection; a pull beyond them is refused (overloaded).
                                   # 0: not told, by an older daemon
}

interface SharedMemory {
  # A memory file. Its descriptor travels with the capability (SCM_RIGHTS), over Unix sockets only. The interface has
  # no methods. Nobody can make the file shorter or longer.
}

struct SharedModel {
  # The parameters as they lie in the daemon's memory, to be read while they change. They cannot be written through the
  # file unless the daemon's configuration says so (shm_writable). All places are byte offsets in the file.
  memory @0 :SharedMemory;
  valuesAt @1 :UInt64;     # element 0 of the arena; the other elements follow
  versionsAt @2 :UInt64;   # version of shard 0, a UInt64 in the machine's byte order. Read a shard's version, with an
                           # acquiring load, before its values.
  versionStep @3 :UInt64;  # distance from one shard's version to the next shard's
  readableAt @4 :UInt64;   # a UInt64. While it is 0 the policy has changed, and parameters must be pulled by calls. Look
                           # at it before every use of the map.
}

interface Login {
  # The bootstrap capability of a connection: all that a peer has before login() gave it more.

  login @0 (protocolVersion :UInt32, peer :Text, token :Text) -> LoginResult;
  # Answers with what the caller may do. `peer` names the caller in the daemon's log ("psd-trainer 0.1.0"). Another
  # protocolVersion than the daemon's is refused with protocolMismatch. `token` tells who the caller is; empty where a client's
  # certificate or the user behind a Unix socket does. A daemon without authentication passes it over. unauthenticated: the
  # daemon does not know the token, or wants one. That answer takes a while, and after some of them the connection ends.
  # A second login() on a connection gives what the first one gave.

  moveOutcome @1 (move :UInt64, daemon :UInt64) -> (outcome :MoveOutcome);
  # What became of the move with that number, of the process `daemon`, or as one knows that the model was to come to. For a daemon that
  # takes part in the move and has no token: the
  # number, which nobody else was told but those who take part, is what it shows. Before login() and after.
}

struct LoginResult {
  protocolVersion @0 :UInt32;   # the daemon's own, whatever the outcome
  serverVersion @1 :Text;       # for people
  status @2 :Acknowledgement;
  # One capability for each thing that the caller may do; null where it may not, and where login() was refused. A daemon
  # without authentication gives all.
  reading @3 :Reading;
  training @4 :Training;
  admin @5 :Admin;
  # Whom the daemon takes the caller for, by name and role (reader, trainer, admin), for people; empty where login() was refused.
  caller @6 :Text;
  role @7 :Text;
  # Of a model that several daemons serve together: all of them, in the order of their partitions, each with the addresses at
  # which trainers reach it or its standby; and which of them this one is. Empty: the daemon serves its model alone.
  daemons @8 :List(List(Text));
  daemon @9 :UInt32;
  # The model is served by these daemons now, in the order of their partitions, and here by nobody: it was moved, by the move of that
  # number. Empty: it was not.
  movedTo @10 :List(List(Text));
  move @11 :UInt64;
}

interface Reading {
  # What a caller may do that may read the model.

  observe @0 (model :ModelSpec) -> ObserveResult;
  # Reads the model without being a trainer. An empty model matches any. notReady: the model has no values yet.

  ping @1 () -> ();
  # Does nothing. Its round trip is the least that any call takes.

  status @2 () -> (json :Text);
  # The daemon's state as JSON. docs/operations.md lists the fields.

  hotRows @3 () -> (status :Acknowledgement, json :Text);
  # The rows of each embedding table with the most updates, as JSON. docs/operations.md lists the fields. The daemon looks at
  # all rows for it. notReady: it does so already.

  takeover @4 (known :UInt64, primary :UInt64) -> (epoch :UInt64);
  # Parked until the daemon serves as the primary of an epoch above `known`, having followed the daemon `primary`; 0: any. For a
  # trainer that is told by the standby of its daemon when to come over. A connection has one such call outstanding; another one
  # fails.

  waiters @5 () -> (ranks :List(UInt32));
  # The ranks of the trainers whose push or pull waits for other trainers as things are, ascending: of a round that is open, or
  # too far ahead of the slowest. A trainer is not among them from when the last that it waits for has come, before anyone is
  # answered. For who drives several trainers and must know which of their calls are answered without another one's.

  moved @6 () -> (to :List(List(Text)), move :UInt64);
  # Parked until the model has moved from here to other daemons: `to` and `move` are as LoginResult.movedTo and move. Both are empty
  # where the daemon ends without. For who observes, and is to go on there. A connection has one such call outstanding; another one
  # fails.
}

interface Training {
  # What a caller may do that may train the model.

  join @0 (rank :UInt32, worldSize :UInt32, model :ModelSpec, host :Text, pid :UInt32, codec :Text,
           pullCodec :Text, incarnation :UInt64, daemon :UInt64, anyRank :Bool,
           held :List(HeldSamples), averages :Bool, move :UInt64, bridges :Bool) -> JoinResult;
  # Becomes a trainer.
  # `codec` and `pullCodec` say how gradients and parameters are to travel, NAME[:option=value[,…]]; empty leaves the choice to
  # the daemon.
  # `incarnation` is a random number that a trainer draws once in its life. A trainer that joins again with the incarnation that
  # has the rank goes on with its session, and the daemon knows its pushes. 0: the trainer is not recognised.
  # `daemon` is joined.daemon of the trainer's last join; 0 in its first. `anyRank`: take the lowest free rank in place of `rank`;
  # where all ranks are taken, that of a trainer that is no longer connected. `worldSize` 0: the world size of the daemon's
  # configuration, or of the trainers that are in; with `anyRank` 1 if neither has one.
  # `held`: samples that takeSamples dealt to this trainer, at this daemon or one before it, and of whose gradients no answer
  # came. Where another trainer has some of them by now, their gradient is answered `late`.
  # `averages`: the trainer goes by ModelAccess.allReduce where that is set; who does not is refused there (invalidArgument).
  # `move`: the number of the move by which the model came to this daemon, of a trainer that a daemon of before has sent here: it
  # knows that the move is done, and from then on so does this daemon. 0: nobody has.
  # `bridges`: the caller is no trainer but the bridge of this machine, of which there is one: it has these parameters averaged with
  # other machines'. It has no rank, and `rank`, `worldSize` and `anyRank` mean nothing. What it pushes are differences, subtracted
  # from the parameters as they are, w ← w − g. No update, trainer or end of the run waits for it, but the end with exit_when_done.
  # invalidArgument: a group's policy takes no differences, or the model has tables.
  # Checked in this order; the first fault is the answer: overloaded (too many capabilities on this connection), invalidArgument
  # (the model is not well formed, its signature is not that of its tensors, a codec may not be used, `averages` is needed),
  # shuttingDown or unavailable (the daemon is ending), standby (the model has moved: LoginResult.movedTo), unavailable (a move is
  # under way, from here or to here), modelMismatch, invalidArgument (a world size above limits.connections or unfit for the
  # rounds), worldSizeMismatch, invalidArgument (rank not below the world size), rankTaken (the rank is in use, or another incarnation has
  # had it since), overloaded (the daemon has no model yet, and this one is too large). A holder of the rank that is no longer
  # connected gives way and counts as lost.

  attach @1 (rank :UInt32, incarnation :UInt64, attachment :UInt32) -> AttachResult;
  # Makes this connection one more of a trainer that has joined over another one. `rank` and `attachment` are those of
  # JoinResult.joined, `incarnation` is that of the trainer's join(). Refused: shuttingDown, overloaded, sessionEnded (that trainer
  # has not joined, has left, counts as lost, has joined again since, or said no incarnation).
}

struct AttachResult {
  union {
    session @0 :Trainer;
    # The session of the join, over this connection. What was agreed in join() holds here. Pulls and pushes may come over any
    # connection of the trainer; those of one shard go over one of them. Initial values, takeSamples, rings and leave() are for
    # the connection that joined. The trainer counts as connected as long as that one stands. When any of the connections
    # breaks, join again.
    error @1 :Error;
  }
}

struct HeldSamples {
  # Samples that a trainer has: `count` places from `begin` on in the order of `epoch`, dealt to the gradient of `step`.
  step @0 :UInt64;
  epoch @1 :UInt64;
  begin @2 :UInt64;
  count @3 :UInt32;
}

struct SamplesResult {
  union {
    dealt :group {
      # `count` samples, at the places from `begin` on in the order of `epoch` (from 0). The trainers alone know which
      # sample is at a place.
      epoch @0 :UInt64;
      begin @1 :UInt64;
      count @2 :UInt32;
      unweighted @6 :List(Bool);  # with `nominal`, for each shard: its policy applies every gradient by itself, so the
                                  # trainer multiplies the gradient of n samples by n / nominal there before it pushes
      mixed @7 :Bool;             # some groups of the configuration are like that, and others are not
    }
    nothingNow @3 :Void;  # other trainers have what is left, and `wait` was not said
    finished @4 :Void;    # every sample of every epoch is done
    error @5 :Error;
  }
}

struct JoinResult {
  union {
    joined :group {
      session @0 :Trainer;
      access @1 :ModelAccess;
      mustInitialize @2 :Bool;   # this trainer is the first: it sends values, then calls initialized()
      codec @4 :Text;            # codec that pushes are to use, with all options: as asked, or the daemon's choice
      pullCodec @5 :Text;        # codec that pulls are to use, with all options: as asked, or the daemon's choice
      leaseMs @6 :UInt64;        # after so long without a call of its session the trainer counts as lost
      daemon @7 :UInt64;         # random number that this daemon drew when it started
      resumed @8 :Bool;          # the trainer's session from before goes on
      rank @9 :UInt32;           # rank that the trainer got
      worldSize @10 :UInt32;     # ranks are below it
      attachment @11 :UInt32;    # number of this join, for Training.attach; rises each time that the session is joined
      epoch @13 :UInt64;         # of the primary that the daemon is, see Reading.takeover; 0: it can have no standby
      goesOn @12 :Bool;          # the daemon began with what a daemon before it had saved. Else the rows of embedding tables that
                                 # trainers had at another daemon are lost.
    }
    error @3 :Error;
  }
}

struct ObserveResult {
  union {
    observing :group {
      reader @0 :Reader;
      access @1 :ModelAccess;
      model @2 :ModelSpec;
    }
    error @3 :Error;
  }
}

interface Reader {
  # Reads the parameters.

  pull @0 (pull :UInt64, shard :UInt32, offset :UInt64, count :UInt64, codec :Text,
           deltas :Bool, view :UInt64, held :UInt64) -> PullResult;
  # One slice of one shard. `offset` is relative to the shard's begin. Slices with one `pull` number belong together:
  # where the policy promises whole shards (locked), all slices of a shard in one pull show one version. Numbers
  # rise; a new number ends the pull before it. `codec`: empty for float32, else the name of the codec agreed in join().
  # `deltas`: where LocalSteps.deltas is set, pull in differences. The answer is of the newest values that all who pull so have, its
  # view. `view` and `held` name what the caller has of just this slice: the view and version of the answer before; 0: nothing.

  pullRows @1 (pull :UInt64, shard :UInt32, first :UInt64, runs :List(RowRun), ids :Data, codec :Text) -> RowsResult;
  # Rows of one row shard, by id. `ids`: 8 bytes each, little endian, of the tables that `runs` names one after the other; their
  # hashes lie in the shard's range. Ids may come in any order and more than once. A call shows one version where the policy
  # promises that (locked, bounded_staleness, sync). It creates no row. `first` means nothing to the daemon.
}

struct SharedRowsResult {
  union {
    rows :group {
      # As in RowsResult; the values are where the call said.
      version @0 :UInt64;
      known @1 :UInt64;
    }
    error @2 :Error;
  }
}

struct PullResult {
  union {
    slice :group {
      # `pull`, `shard` and `offset` repeat the request, so that the receiver knows where the values belong before it has
      # read the rest of the message.
      pull @0 :UInt64;
      shard @1 :UInt32;
      offset @2 :UInt64;
      version @3 :UInt64;   # updates that the shard had applied
      values @4 :Data;      # count × float32, little endian, or bytes of the codec asked for
      view @6 :UInt64;      # with `deltas`: the values, with what follows, are of this view. 0: they are of none, and not to be held
      what @7 :PulledValues;
    }
    error @5 :Error;
  }
}

enum PulledValues {
  whole @0;   # `values` are what they say
  delta @1;   # `values` are what the codec LocalSteps.deltas made of the difference to what the caller holds, to be added in float32
  same @2;    # `values` is empty: the caller holds the newest
}

struct RowsResult {
  union {
    rows :group {
      # `pull`, `shard` and `first` repeat the request, as those of PullResult.slice do.
      pull @0 :UInt64;
      shard @1 :UInt32;
      first @2 :UInt64;
      version @3 :UInt64;   # updates that the shard had applied
      known @4 :UInt64;     # rows that some push has touched; the others have the values that they begin with
      values @5 :Data;      # row after row in the order of the ids, dim × float32 each, or the bytes of the codec asked for
    }
    error @6 :Error;
  }
}

interface Trainer extends(Reader) {
  # One trainer's session. It ends with leave(); membership.grace_ms after the capability or its connection was dropped; or
  # when no call came for the lease. Without leave() the trainer counts as lost. Every call renews the lease. Calls of a
  # session that has ended are refused with sessionEnded.

  initialize @0 (shard :UInt32, offset :UInt64, values :Data) -> (status :Acknowledgement);
  # One slice of the initial values, from the trainer that was told mustInitialize. Every element is sent once.

  initialized @1 (step :UInt64) -> (status :Acknowledgement);
  # Says that all initial values are sent. badSlice when some element was not. `step`: the newest whose gradient the trainer has
  # begun to push, at a daemon before this one, which is how far its values are; 0: none.

  awaitModel @2 () -> AwaitResult;
  # Parked until the model has values, or until this trainer is asked to bring them because the one that was to do so is
  # gone. A session may have one such call outstanding; a second one is refused with invalidArgument.

  push @3 (head :PushHead, gradient :Data, codec :Text, count :UInt32) -> PushResult;
  # One slice of one gradient. `gradient` holds float32, or the bytes that the codec agreed in join(), `codec`, made of `count`
  # values. The slices of a shard come in any order and do not overlap. Together they cover the shard, which makes the shard's
  # part of the gradient whole. All of them name one `basis`. The gradient is complete when as many parts are whole as `parts` says.
  # `step` rises with every gradient. A larger step drops what is unfinished of the gradient before it: with several
  # connections a push begins when all slices of the one before are answered. A smaller step is a badSlice. Pushes of different
  # fragments alone know nothing of each other: neither drops the other, and either step may be the larger one.
  # A slice that comes again, on this connection or after the trainer joined again, is not applied again. It is answered
  # `received` while its update is unfinished, then with what became of its shard's update. The daemon knows the unfinished
  # update and the last 64 finished ones of each trainer and shard.
  # Where a gradient must wait for others (sync), its last slice is answered when the outcome is known, all other slices at once.

  takeSamples @9 (step :UInt64, count :UInt32, samples :UInt64, epochs :UInt64, firstEpoch :UInt64,
                  wait :Bool, nominal :UInt32, sampleSeconds :Float64) -> SamplesResult;
  # Asks for at most `count` samples for the gradient of `step`. Every sample of every epoch is dealt to one gradient,
  # however fast trainers are, and though some die. Asking again for a step gives the samples that were dealt to it. Once the
  # gradient is applied its samples are done. When the gradient is dropped, or the trainer is gone before, they are dealt again.
  # `samples` of an epoch and `epochs`: one number for all trainers; the first trainer to ask decides. `firstEpoch`: where a daemon
  # that knows of no plan begins.
  # `wait`: where other trainers have all that is left, the call is parked until some of it comes back or all is done. Meanwhile
  # nobody waits for this trainer, so it says `wait` only when its pushes are answered. A session may have one such call
  # outstanding; a second one is refused with invalidArgument. `nominal`: 0 for `count` samples. Else the daemon chooses how many,
  # from 1 to `count`, so that all trainers with `nominal` compute as long for a step: in proportion to 1 / sampleSeconds, in sum
  # `nominal`, one number for all of them, times their number but for rounding. `sampleSeconds`: how long this trainer computes for
  # a sample; 0: not known yet, and it gets `nominal`.
  # invalidArgument: samples, epochs or count is 0; samples, epochs or nominal differ from the other trainers'; count is below
  # nominal; sampleSeconds is negative or not finite.

  leave @4 () -> (status :Acknowledgement);
  # The trainer is done. Answered when the departure is kept for a daemon after this one; at once where nothing keeps it. Pushes
  # that are still under way may be applied after it or not.

  notice @5 (move :UInt64) -> (shuttingDown :Bool, reason :Text, comesBack :Bool, revoked :Error, move :UInt64, moveDaemons :UInt32);
  # Parked until the daemon is about to end. A session may have one such call outstanding; a second one is answered at once,
  # without `shuttingDown`. The trainer hangs up, for which the daemon waits up to limits.drain_ms. `comesBack`: another daemon is
  # to go on with the model. The trainer then comes back to it as after a connection that broke, and sends again what
  # was not answered. `revoked`, where it is set: the caller may not train any more (unauthenticated, forbidden), and the daemon
  # ends the connection; it does not end itself. `move`: the model is about to move to `moveDaemons` other daemons, and waits for
  # stepAside(); the trainer asks for notice() again, with the number that it knows then. 0: it was told of none.

  stepAside @19 (move :UInt64, cannot :Text) -> StepAsideResult;
  # The trainer makes no call until this is answered: the daemon waits for that of all trainers, to give what it has to others.
  # All that the trainer has sent, at all daemons, is answered by then; meanwhile nobody waits for it. Parked until the move is
  # over. A trainer says it of the move that the lead told of, to all daemons, and goes by the lead's answer. `cannot`: why this
  # trainer cannot go on at other daemons, and so the model cannot move; empty: it can. A call that is dropped takes it back.

  keepAlive @8 () -> (status :Acknowledgement);
  # Renews the lease and does nothing else, for a trainer that computes for long or waits in a parked call.

  progress @20 (settled :Bool) -> ProgressResult;
  # For a bridge: how far training is here. `settled`: answered when the updates that there are, those that a pull before it showed
  # among them, can no longer be lost; at once where nothing is kept.

  openRing @6 (bytes :UInt64) -> RingResult;
  # Once per session, over a Unix socket: makes a memory file for gradients to be pushed and for rows of embedding tables both
  # ways, at most ModelAccess.ringBytesMax. What lies where in it is the trainer's business alone. The ring is the session's, and the
  # daemon drops it at the session's end.

  pushShared @7 (head :PushHead, at :UInt64, count :UInt64) -> PushResult;
  # push() of `count` float32 that lie in the ring at byte `at`, a multiple of 64. The trainer leaves them as
  # they are until the answer is there.

  openDeviceRing @10 (device :UInt32, bytes :UInt64) -> DeviceRingResult;
  # Once per session and device of the daemon's, over a Unix socket: makes a ring of zeros in the memory of that CUDA device, at
  # most ModelAccess.ringBytesMax. The trainer maps it; both sides write and read it. What lies where in it is the trainer's
  # business alone. The ring is the session's, and the daemon frees it at the session's end.

  pushFromDevice @11 (head :PushHead, at :UInt64, count :UInt64) -> PushResult;
  # push() of `count` float32 that lie at byte `at`, a multiple of 64, of the ring of the shard's device. The trainer's copy into
  # the ring has ended before the call. The values stay as they are until the answer is there. A leave() that is called before
  # the answer may overtake the push.

  pullToDevice @12 (pull :UInt64, shard :UInt32, offset :UInt64, count :UInt64, at :UInt64) -> DevicePullResult;
  # pull() of `count` float32 to byte `at`, a multiple of 64, of the ring of the shard's device. The values are there when the
  # answer is.

  pushRows @13 (head :PushHead, runs :List(RowRun), ids :Data, gradient :Data, codec :Text) -> PushResult;
  # One slice of a gradient's part for one row shard: gradients of rows by id. `runs` and `ids` as in pullRows; `gradient` holds
  # row after row, dim × float32 each, or what the codec agreed in join() made of all of them. `head.offset` is the number of the
  # slice's first row among the part's `head.total` rows. A row that comes twice in a part is updated twice, in the order of the
  # rows' numbers. A part without rows (`total` 0) is one slice without rows. Else the rules of push() hold.

  pushRowsShared @14 (head :PushHead, runs :List(RowRun), ids :Data, at :UInt64) -> PushResult;
  # pushRows() of a slice whose gradients, float32, lie in the ring row after row from byte `at` on, a multiple of 64. The ids are
  # in the message, never in the ring. The trainer leaves the gradients as they are until the answer is there.

  pullRowsShared @15 (shard :UInt32, runs :List(RowRun), ids :Data, at :UInt64) -> SharedRowsResult;
  # pullRows() that writes the values, float32, to the ring from byte `at` on, a multiple of 64. They are there when the answer is.
  # Until then the daemon may write there, also after the connection broke.

  report @16 (step :UInt64, values :List(NamedValue)) -> (status :Acknowledgement);
  # Tells how training goes at `step`, for people: at most 16 values, each name once. The daemon shows the newest of each rank and
  # keeps how they came about. invalidArgument: there are more, or a name is none. overloaded: the session's report before is not
  # answered.

  roundDue @17 (version :UInt64, shard :UInt32) -> RoundDueResult;
  # Parked until the round that begins with the parameters of this `version` of `shard`, the first of its fragment, is about to close
  # without this trainer, or has closed. Without rounds (policy async_diloco, whose call begins a trainer's time): until it has
  # taken as many steps as it is to by its speed. Without LocalSteps.endsEarly a policy of rounds tells of closed ones alone, and any
  # other says invalidArgument. A session has one such call outstanding for each fragment: a newer one ends the one before. badSlice:
  # there is no such shard. notReady: that has
  # happened, or another policy has taken over, and may be asked.
  # Where ModelAccess.allReduce is set: parked until somebody waits in formGroup() while a group is at work (`closing`), or a new
  # group is there (`closed`). `version` then means nothing.

  formGroup @18 (after :UInt64, host :Text, port :UInt32) -> GroupResult;
  # Where ModelAccess.allReduce is set; else invalidArgument. The trainer is to be in the next group of trainers that average their
  # gradients; it is in the group `after` no more (0: it was in none). Parked until that group is formed: of all trainers that wait
  # here, when nobody else is in, or AllReduce.timeoutMs / 2 after the first who was in the group before came here. `host` and
  # `port`: where the others reach this trainer. A session has one such call outstanding; a newer one ends the one before.
}

struct NamedValue {
  # A number that a trainer tells of its training, as its loss.
  name @0 :Text;       # 1 to 64 letters, digits, or . _ - /
  value @1 :Float64;
}

struct PushHead {
  # Which elements of which gradient a slice carries.
  step @0 :UInt64;      # number of the gradient, from 1; rises with every gradient of the trainer
  shard @1 :UInt32;
  offset @2 :UInt64;    # elements, from the shard's begin; of a row shard the number of the first row
  basis @3 :UInt64;     # version of the shard that the gradient was computed from
  samples @4 :UInt32;   # examples behind the gradient
  parts @5 :UInt32;     # parts that the gradient has, one of each shard; with LocalSteps.fragments above 1 it may have one of each
                        # shard of a fragment alone, and where ModelAccess.allReduce is set one of each row shard or one of each
                        # other shard. Another number is a badSlice.
  total @6 :UInt64;     # elements that the part has: all of the shard's. Of a row shard: rows.
  localSteps @7 :UInt32;  # steps that the trainer took by itself, of which this is the difference; 0: it is a gradient
}

struct DeviceRingResult {
  union {
    handle @0 :Data;   # a cudaIpcMemHandle_t, 64 bytes, by which the trainer maps the ring
    error @1 :Error;
  }
}

struct DevicePullResult {
  union {
    version @0 :UInt64;   # updates that the shard had applied
    error @1 :Error;
  }
}

struct RingResult {
  union {
    memory @0 :SharedMemory;   # the ring: zeros, to be read and written
    error @1 :Error;
  }
}

struct AwaitResult {
  union {
    ready @0 :Void;            # the model has values
    mustInitialize @1 :Void;   # this trainer brings the values: initialize(), then initialized()
    error @2 :Error;
  }
}

enum PushOutcome {
  # The later in this list, the worse.
  received @0;   # part of an update that is applied when its last slice is there
  applied @1;    # in the model
  stale @2;      # dropped: computed from values that are older than the policy allows
  late @3;       # dropped in all shards of its parameter group: the gradient's round is closed
}

struct PushResult {
  union {
    accepted :group {
      outcome @0 :PushOutcome;
      version @1 :UInt64;     # of the shard, after this slice
      staleness @2 :UInt64;   # updates that the shard applied between basis and this one
    }
    error @3 :Error;
  }
  dropped @4 :List(UInt32);
  # Set in the answer to the slice that completed a gradient: the shards of whose part nothing is in the model, nor will be by
  # this push. `outcome` is then the worst outcome of all shards whose part waited, or `error` that of one of them. Where
  # `dropped` names shards, a shard that no other answer told of is in the model unless it is named.
}

interface Admin {
  # What a caller may do that may administer the daemon.

  reload @0 () -> (status :Acknowledgement, change :Text);
  # Reads the configuration file again and goes over to it as far as that can be while trainers work. `change` tells
  # people what differs. invalidArgument: something in the file is wrong or cannot change now, and nothing has changed.

  checkpoint @2 () -> (status :Acknowledgement, path :Text);
  # Takes a checkpoint that begins after this call; answered when it is complete. Calls that come while one is being taken share
  # the next. invalidArgument: the configuration has no durability. notReady: the model has no values.

  newestCheckpoint @9 () -> NewestCheckpoint;
  # The newest checkpoint that this daemon has. notReady: there is none. invalidArgument: as of checkpoint().

  keepWhole @10 (document :Text) -> (status :Acknowledgement);
  # A checkpoint of the whole model, of all daemons that serve it: `document` is the text of whole.json in
  # docs/checkpoint_format.md. Answered when it is on the disk; what it names of this daemon stays until another document takes its
  # place. In the lead that is what makes it count. invalidArgument: it is no such document, or of another number of daemons, or a log
  # goes on from the checkpoint that it names of this one. unavailable: that is not there any more.

  removeTrainer @3 (rank :UInt32) -> (status :Acknowledgement, removed :Text);
  # Ends the session of the trainer with that rank. It counts as lost, and that process is not let in again; another one may take
  # the rank. `removed` names the trainer for people. invalidArgument: nobody has the rank.

  set @4 (assignment :Text) -> (status :Acknowledgement, change :Text);
  # Changes one key, "optimizer.lr=0.05", of the configuration that holds, as reload() would. It holds until the next reload or
  # start.

  checkChange @14 (assignment :Text) -> (status :Acknowledgement, change :Text);
  # Whether set() of that would be taken as things are, or where `assignment` is empty reload(): `change` tells people what would
  # differ, and nothing does. For who changes several daemons, or none.

  events @5 (after :UInt64, wait :Bool) -> (json :Text);
  # What happened after the event with that number, of the 256 newest, as JSON. docs/operations.md lists the fields. With `wait`
  # the call is parked until there is something. A connection has one such call outstanding; another one fails.

  replicate @6 (follower :UInt64, primary :UInt64, name :Text, addresses :List(Text), sink :ReplicaSink, records :UInt32, folderEpoch :UInt64)
      -> ReplicateResult;
  # A daemon, `follower`, becomes the standby of this one: `sink` gets the model, and from then on every update, until it or the
  # connection is dropped. `primary`: the number of the daemon that is meant. `name`, for people, and `addresses` are the caller's.
  # `records`: the newest format of log records that it reads, as in docs/log_format.md; 0: not said, as by psd of before PSDLOG2.
  # invalidArgument: no engine is configured here, or the caller does not read the records of this daemon. standby: this daemon serves nobody, or is another one. notReady: it has no values
  # yet, or another standby. unavailable: it is about to end. `follower` 0 asks for `daemon` alone, and gets notReady.
  # `folderEpoch`: of the caller, as in ReplicateResult: two daemons that wait for a dead primary learn which has the newer state.

  switchOver @7 () -> (status :Acknowledgement);
  # The standby becomes the primary, and this daemon its standby. The connection ends with that, maybe before the answer. notReady:
  # there is no standby in sync, or it could not take over. standby: this daemon is not the primary.

  recover @8 () -> (status :Acknowledgement);
  # A daemon that waits for a dead primary takes its place, whatever is lost. invalidArgument: the primary lives, or this daemon
  # needs no help. notReady: it does not know the plan.

  beginMove @11 (move :UInt64, to :List(List(Text)), mostMs :UInt64, lead :UInt64, beats :Bool) -> BeginMoveResult;
  # The model is to be served by the daemons `to` from now on, of which this tells each trainer. `move`: a random number, the same
  # at all daemons; the lead is told last. Within `mostMs` the move is done, or it is given up. `lead`: the number of the lead's
  # process (MoveTerms); one that is not the lead asks it what became of the move, where the caller is gone. `beats`: the caller calls
  # beat(), as there. notReady: it has no values, or a move is under way. standby: it is not the primary of its pair.

  moveTerms @13 () -> MoveTermsResult;
  # What the daemons to which the model of this one moves must suit.

  arrive @12 (move :UInt64, parts :UInt32, beats :Bool) -> ArriveResult;
  # The model is to come here, from so many daemons. 0: it is here, and may be said to count. `beats`: the caller calls beat(). invalidArgument: the daemon has a
  # model, or had one that has moved away. standby: it is not the primary of its pair. overloaded, of what is given then: more than limits.arriving_bytes.

  stop @1 (reason :Text, wait :Bool) -> (status :Acknowledgement);
  # Finishes what is in flight, saves if configured, tells the trainers, exits. Answered when that has begun. With `wait` it is
  # answered right before the connection ends: when all is saved, or with the error that kept something from being saved.
}

struct NewestCheckpoint {
  status @0 :Acknowledgement;
  partition @1 :UInt32;   # of whose daemon it is, from 0
  of @2 :UInt32;          # partitions of the model
  number @3 :UInt64;
  version @4 :UInt64;     # of its first shard
  crc @5 :UInt32;         # CRC-32C of its manifest.json
  logged @6 :Bool;        # a log goes on from it
  whole @7 :Text;         # the text of whole.json in the daemon's folder; empty: there is none
}
