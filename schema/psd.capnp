@0xd5f1a0c3b7e24689;
# The protocol of psd, with the imported files beside it. docs/reference/protocol.md explains it; these files are the reference.
#
# Ids of fields and methods are never reused: an addition gets the next number. Element offsets and counts are in
# float32 elements of the flat arena (common/types/model_layout.h); names say where a number counts bytes. Every method
# answers with a union of its result and a typed Error. A Cap'n Proto exception means a broken connection or a defect,
# never an expected condition.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "admin.capnp".Admin;
using import "daemons.capnp".MoveOutcome;
using import "model.capnp".AllReduce;
using import "model.capnp".Hyperparameters;
using import "model.capnp".LocalSteps;
using import "model.capnp".ModelSpec;
using import "model.capnp".RowRun;
using import "model.capnp".RowShard;
using import "model.capnp".ShardRange;
using import "session.capnp".GroupResult;
using import "session.capnp".HeldSamples;
using import "session.capnp".ProgressResult;
using import "session.capnp".RoundDueResult;
using import "session.capnp".QuiesceResult;
using import "session.capnp".SamplesResult;
using import "session.capnp".StateResult;
using import "status.capnp".Acknowledgement;
using import "status.capnp".Error;
using import "versions.capnp".FreshnessResult;
using import "versions.capnp".PatchResult;
using import "versions.capnp".Publishing;
using import "versions.capnp".VersionBytesResult;
using import "versions.capnp".VersionResult;
using import "versions.capnp".VersionsResult;

const protocolVersion :UInt32 = 3;
# Raised when an older peer could misread a newer one. Both sides compare their versions in Login.login.

struct ModelAccess {
  # What a peer needs to know before it pulls or pushes.
  shards @0 :List(ShardRange);   # in order; shard i is element i of this list
  policy @1 :Text;               # human-readable: "hogwild"; of several parameter groups "fc*: locked, others: hogwild"
  device @2 :Text;               # human-readable: where the shards lie
  sliceElementsMax @3 :UInt64;   # largest slice that the daemon accepts or sends; for rows, an id and a run count as 2 each
  sharedModel @4 :SharedModel;   # map of the parameters; null: not offered
  notShared @5 :Text;            # human-readable: why sharedModel is null
  ringBytesMax @6 :UInt64;       # largest ring that Trainer.openRing gives on this connection; 0: none
  localSteps @7 :LocalSteps;     # null: trainers push the gradient of every step
  deviceOfShard @8 :List(UInt32);  # per shard, the device number for Trainer.openDeviceRing; empty: no device ring
  rowShards @9 :List(RowShard);    # numbered after `shards`
  # When several daemons serve the model: `rules` has what all must agree on, one line "KEY: VALUE" for each key of the
  # configuration; `emptyGroups` lists the parameter groups (indices into `groups`) that match nothing in this
  # partition. Trainers check that all daemons agree, and that every parameter group matches something in some
  # partition.
  rules @10 :Text;
  emptyGroups @11 :List(UInt32);
  fragmentOfShard @12 :List(UInt32);   # per shard, below LocalSteps.fragments; empty where that is 0 or 1
  allReduce @13 :AllReduce;        # null: each trainer pushes its gradients
  optimizer @15 :Text;             # of the model, as JSON in the form of the configuration's key `optimizer`; of several
                                   # parameter groups, that of the last
  takesHyperparameters @16 :Bool;  # pushes may carry hyperparameters, since the configuration has no optimizer
  restoresState @17 :Bool;         # the daemon has Trainer.pullState(), restoreState() and restored()
  takesSparse @18 :Bool;           # Trainer.push() takes topk's encoding whatever codec was agreed
  outgoingBytes @14 :UInt64;       # limit on the bytes of answers with values that wait for one connection; a pull
                                   # beyond it is refused (overloaded). 0: unknown (an older daemon)
}

interface SharedMemory {
  # A memory file. Its descriptor travels with the capability (SCM_RIGHTS), over Unix sockets only. The interface has no
  # methods. The file is sealed against a change of its size.
}

struct SharedModel {
  # The live parameters in the daemon's memory, which change while they are read. The file can only be
  # read. All places are byte offsets in the file.
  memory @0 :SharedMemory;
  valuesAt @1 :UInt64;     # element 0 of the arena; the other elements follow
  versionsAt @2 :UInt64;   # version of shard 0, a UInt64 in the machine's byte order. Load a shard's version with
                           # acquire semantics before its values.
  versionStep @3 :UInt64;  # distance between the versions of consecutive shards
  readableAt @4 :UInt64;   # a UInt64. 0: the policy has changed, and parameters must be pulled by calls. Check it
                           # before every use of the map.
  appliesSlices @5 :Bool;  # a slice of a gradient is applied when it arrives, so a few large ones are the fastest; otherwise
                           # the daemon gathers them first
}

interface Login {
  # The bootstrap capability of a connection: the only one that a peer has before login() returns more.

  login @0 (protocolVersion :UInt32, peer :Text, token :Text) -> LoginResult;
  # Returns what the caller may do. `peer` names the caller in the daemon's log ("psd-trainer 0.1.0"). A protocolVersion
  # other than the daemon's is refused with protocolMismatch. `token` authenticates the caller; empty where a client
  # certificate or the user of a Unix socket does. A daemon without authentication ignores it. unauthenticated: the
  # token is unknown or missing. That answer is delayed, and after several of them the connection ends. A second login()
  # on a connection returns the result of the first.

  moveOutcome @1 (move :UInt64, daemon :UInt64) -> (outcome :MoveOutcome);
  # Outcome of move number `move`, at the process `daemon` or as a target of the move knows it. For a daemon that takes
  # part in the move and has no token: the number, which only participants know, is the credential. Allowed before and
  # after login().
}

struct LoginResult {
  protocolVersion @0 :UInt32;   # the daemon's own, in every outcome
  serverVersion @1 :Text;       # human-readable
  status @2 :Acknowledgement;
  # One capability for each thing that the caller may do; null where it is not allowed, and where login() was refused. A
  # daemon without authentication returns all.
  reading @3 :Reading;
  training @4 :Training;
  admin @5 :Admin;
  # Name and role (reader, publisher, trainer, admin) under which the daemon knows the caller, human-readable; empty where login()
  # was refused.
  caller @6 :Text;
  role @7 :Text;
  # When several daemons serve the model: all of them in partition order, each with the addresses at which trainers
  # reach its primary or standby, and the index of this one. Empty: this daemon serves the whole model.
  daemons @8 :List(List(Text));
  daemon @9 :UInt32;
  # The daemons that serve the model now, in partition order, after move number `move`; this daemon no longer serves it.
  # Empty: the model has not moved.
  movedTo @10 :List(List(Text));
  move @11 :UInt64;
  publishing @12 :Publishing;   # a capability like those above
}

interface Reading {
  # What a caller that may read the model can do.

  observe @0 (model :ModelSpec, pullCodec :Text) -> ObserveResult;
  # Reads the model without being a trainer. An empty model matches any. `pullCodec` selects the encoding of parameters
  # as in Training.join; empty: their dtype. invalidArgument: it is not allowed here. notReady: the model has no values yet.

  ping @1 () -> ();
  # Does nothing. Its round trip is the lower bound of any call's.

  status @2 () -> (json :Text);
  # The daemon's state as JSON. docs/reference/status.md lists the fields.

  hotRows @3 () -> (status :Acknowledgement, json :Text);
  # The most-updated rows of each embedding table, as JSON. docs/reference/status.md lists the fields. The daemon scans all
  # rows for it. notReady: a scan is running.

  takeover @4 (known :UInt64, primary :UInt64) -> (term :UInt64);
  # Parked until the daemon serves as the primary of a term above `known`, having followed the daemon `primary`; 0: any.
  # Trainers call it at the standby to learn when to connect there. A connection may have one such call outstanding;
  # another one fails.

  waiters @5 () -> (ranks :List(UInt32));
  # The ranks, ascending, of the trainers whose push or pull currently waits for other trainers: their round is open, or
  # they are too far ahead of the slowest. A trainer is removed as soon as the last trainer that it waits for has
  # arrived, before any answer is sent. For a caller that drives several trainers and must know which of their calls
  # complete independently.

  moved @6 () -> (to :List(List(Text)), move :UInt64);
  # Parked until the model has moved from here to other daemons; `to` and `move` are as LoginResult.movedTo and move.
  # Both are empty when the daemon ends without a move. For observers that follow the model. A connection may have one
  # such call outstanding; another one fails.

  versions @7 () -> VersionsResult;
  # The published versions that exist. Of this and the following calls: invalidArgument: the daemon's configuration has
  # no `publish`. notReady: the version does not exist, or no longer.

  published @8 (number :UInt64) -> VersionResult;
  # Parked until a version of at least this number exists, or the first one of another history; the newest. A connection may have one such call outstanding;
  # another one fails.

  leaseVersion @9 (lease :UInt64, number :UInt64, seconds :UInt32) -> VersionResult;
  # Keeps a version from being removed for `seconds` (1 to 600); number 0: the newest version. `lease`: a
  # random number, not 0, that the reader chooses: with one that it holds the call renews the lease, or moves it to
  # another version. A lease outlives the connection and a restart of the daemon. overloaded: beyond
  # limits.version_leases, or limits.version_bytes would leave no room for two more versions.

  releaseVersion @10 (lease :UInt64) -> ();
  # Ends a lease; does nothing if there is none.

  readVersion @11 (number :UInt64, offset :UInt64, count :UInt32) -> VersionBytesResult;
  # Bytes of a version's file from `offset` on: `count` of them, or limits.slice_bytes if that is fewer. badSlice: beyond
  # its end, or `count` is 0. Without a lease the version may be removed between two calls.

  patch @12 (history :UInt64, from :UInt64, to :UInt64) -> PatchResult;
  # The size of the patch that leads from version `from` of that history to version `to` (docs/reference/protocol.md). 0:
  # there is none, so the version is to be read whole. notReady: version `to` does not exist.

  readPatch @13 (history :UInt64, from :UInt64, to :UInt64, offset :UInt64, count :UInt32) -> VersionBytesResult;
  # Bytes of that patch, as of readVersion. notReady: there is none any more.

  freshness @14 () -> FreshnessResult;
  # How the versions here compare with those of their source.
}

interface Training {
  # What a caller that may train the model can do.

  join @0 (rank :UInt32, worldSize :UInt32, model :ModelSpec, host :Text, pid :UInt32, codec :Text,
           pullCodec :Text, incarnation :UInt64, daemon :UInt64, anyRank :Bool,
           held :List(HeldSamples), averages :Bool, move :UInt64, bridges :Bool, optimizer :Text) -> JoinResult;
  # Joins as a trainer.
  # `codec` and `pullCodec` select the encoding of gradients and parameters, NAME[:option=value[,…]]; empty leaves the
  # choice to the daemon.
  # `incarnation` is a random number that a trainer draws once in its life. A trainer that joins again with the
  # incarnation that holds the rank resumes its session, and the daemon recognizes its pushes. 0: the trainer is not
  # recognized.
  # `daemon` is joined.daemon of the trainer's last join; 0 in its first. `anyRank`: take the lowest free rank in place
  # of `rank`; if all ranks are taken, that of a trainer that is no longer connected. `worldSize` 0: the world size of
  # the daemon's configuration, or of the joined trainers; with `anyRank` 1 if neither has one.
  # `held`: samples that takeSamples assigned to this trainer, at this daemon or a previous one, and whose gradients
  # were not answered. If another trainer has some of them by now, their gradient is answered `late`.
  # `averages`: the trainer follows ModelAccess.allReduce where that is set; a trainer that does not is rejected there
  # (invalidArgument). `move`: the number of the move that brought the model to this daemon, from a trainer that the
  # source daemon sent here: it proves to this daemon that the move is complete. 0: none.
  # `bridges`: the caller is not a trainer but this machine's bridge, of which there is one: it averages these
  # parameters with those of other machines. It has no rank; `rank`, `worldSize` and `anyRank` are ignored. It pushes
  # differences, which are subtracted from the current parameters, w ← w − g. No update, trainer or end of the run waits
  # for it, except the end with exit_when_done. invalidArgument: the policy of a parameter group accepts no differences,
  # or the model has tables.
  # `optimizer`: the trainer's, as JSON in the form of the configuration's key `optimizer`; empty: the daemon's. A daemon
  # whose configuration has none trains the first trainer's model with it, and pushes may carry their hyperparameters
  # (ModelAccess.takesHyperparameters). Elsewhere it must equal the model's optimizer (invalidArgument).
  # Checked in this order; the first failure is the answer: overloaded (too many capabilities on this connection),
  # invalidArgument (the model is malformed, its signature is not that of its tensors, a codec is not allowed,
  # `averages` is required), shuttingDown or unavailable (the daemon is ending), standby (the model has moved:
  # LoginResult.movedTo), unavailable (a move from here or to here is under way), modelMismatch, invalidArgument (a
  # world size above limits.connections or unfit for the rounds), worldSizeMismatch, invalidArgument (rank not below the
  # world size), rankTaken (the rank is in use, or another incarnation has had it since), overloaded (the daemon has no
  # model yet, and this one is too large). A holder of the rank that is no longer connected loses it and counts as lost.

  attach @1 (rank :UInt32, incarnation :UInt64, attachment :UInt32) -> AttachResult;
  # Attaches this connection to a trainer that joined over another one. `rank` and `attachment` are those of
  # JoinResult.joined, `incarnation` is that of the trainer's join(). Errors: shuttingDown, overloaded, sessionEnded
  # (that trainer has not joined, has left, counts as lost, has joined again since, or sent no incarnation).
}

struct AttachResult {
  union {
    session @0 :Trainer;
    # The session of the join, over this connection. What was agreed in join() holds here. Pulls and pushes may use any
    # connection of the trainer; those of one shard use the same one. Initial values, takeSamples, setBuffers, rings and
    # leave() belong to the connection that joined. The trainer counts as connected as long as that one stands. When any of the
    # connections breaks, join again.
    error @1 :Error;
  }
}

struct JoinResult {
  union {
    joined :group {
      session @0 :Trainer;
      access @1 :ModelAccess;
      mustInitialize @2 :Bool;   # this trainer is the initializer: it sends values, then calls initialized()
      codec @4 :Text;            # codec of pushes, with all options: as requested, or the daemon's choice
      pullCodec @5 :Text;        # codec of pulls, with all options: as requested, or the daemon's choice
      leaseMs @6 :UInt64;        # after this time without a call of its session the trainer counts as lost
      daemon @7 :UInt64;         # random number that this daemon drew when it started
      resumed @8 :Bool;          # the trainer's previous session continues
      rank @9 :UInt32;           # assigned rank
      worldSize @10 :UInt32;     # ranks are below it
      attachment @11 :UInt32;    # number of this join, for Training.attach; rises with every join of the session
      term @13 :UInt64;          # term of this primary, see Reading.takeover; 0: it can have no standby
      resumedState @12 :Bool;    # the daemon resumed from the state that a previous daemon saved. Else the rows of
                                 # embedding tables that trainers had at another daemon are lost.
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
      pullCodec @4 :Text;   # codec of pulls, with all options, as requested; empty: each tensor's dtype, from an older daemon too
    }
    error @3 :Error;
  }
}

interface Reader {
  # Reads the parameters.

  pull @0 (pull :UInt64, shard :UInt32, offset :UInt64, count :UInt64, codec :Text,
           deltas :Bool, view :UInt64, held :UInt64) -> PullResult;
  # One slice of one shard. `offset` is relative to the shard's begin. Slices with one `pull` number belong together:
  # where the policy promises whole shards (locked), all slices of a shard in one pull show one version. Numbers rise; a
  # new number ends the previous pull. `codec`: empty for the dtype of the shard, else the name of the codec agreed in
  # join() or observe(). `deltas`: where LocalSteps.deltas is set, pull differences. The answer takes the caller to the
  # view, the newest values that all delta-pulling trainers share. `view` and `held` name what the caller holds of
  # exactly this slice: view and version of the previous answer; 0: nothing.

  pullRows @1 (pull :UInt64, shard :UInt32, first :UInt64, runs :List(RowRun), ids :Data, codec :Text) -> RowsResult;
  # Rows of one row shard, by id. `ids`: 8 bytes each, little-endian; the tables follow one another as in `runs`. Their
  # hashes lie in the shard's range. Ids may come in any order and more than once. A call shows one version where the
  # policy promises that (locked, bounded_staleness, sync). It creates no row. The daemon ignores `first`.

  buffers @2 (set :UInt64, offset :UInt64) -> BuffersResult;
  # The model's buffers, from byte `offset` of the file that Trainer.setBuffers received last, of which the daemon chooses
  # the length. `set` 0: of the newest set; else of that one. notReady: a newer set has replaced it, which starts at
  # offset 0. badSlice: `offset` is beyond the end of the file. When several daemons serve the model, the first has all.
}

struct BuffersResult {
  union {
    slice :group {
      set @0 :UInt64;   # number of the set; rises with each. 0: there are no buffers
      size @1 :UInt64;  # of the file, in bytes
      bytes @2 :Data;   # from the offset on; never empty before the end
    }
    error @3 :Error;
  }
}

struct SharedRowsResult {
  union {
    rows :group {
      # As in RowsResult; the values are in the ring at the place that the call named.
      version @0 :UInt64;
      known @1 :UInt64;
    }
    error @2 :Error;
  }
}

struct PullResult {
  union {
    slice :group {
      # `pull`, `shard` and `offset` repeat the request, so that the receiver knows the destination of the values before
      # it has read the rest of the message.
      pull @0 :UInt64;
      shard @1 :UInt32;
      offset @2 :UInt64;
      version @3 :UInt64;   # updates that the shard had applied
      values @4 :Data;      # count values of the shard's dtype, little-endian, or bytes of the requested codec
      view @6 :UInt64;      # with `deltas`: the view of these values and of later differences to them. 0: none; the caller
                            # must not hold them
      content @7 :PulledValues;
    }
    error @5 :Error;
  }
}

enum PulledValues {
  whole @0;   # `values` are complete
  delta @1;   # `values` are the difference to the caller's values, encoded with LocalSteps.deltas, to be added in float32
  same @2;    # `values` is empty: the caller holds the newest
}

struct RowsResult {
  union {
    rows :group {
      # `pull`, `shard` and `first` repeat the request, as in PullResult.slice.
      pull @0 :UInt64;
      shard @1 :UInt32;
      first @2 :UInt64;
      version @3 :UInt64;   # updates that the shard had applied
      known @4 :UInt64;     # rows that some push has touched; the others have their initial values
      values @5 :Data;      # row after row in the order of the ids, dim × float32 each, or bytes of the requested codec
    }
    error @6 :Error;
  }
}

interface Trainer extends(Reader) {
  # One trainer's session. It ends with leave(); membership.grace_ms after the capability or its connection was dropped;
  # or when the lease expires. Without leave() the trainer counts as lost. Every call renews the lease. Calls of an
  # ended session are refused with sessionEnded.

  initialize @0 (shard :UInt32, offset :UInt64, values :Data) -> (status :Acknowledgement);
  # One slice of the initial values, in the dtype of the shard, from the initializer (mustInitialize). Every element is
  # sent once.

  initialized @1 (step :UInt64) -> (status :Acknowledgement);
  # All initial values are sent. badSlice: some element is missing. `step`: the newest step whose push the trainer
  # started at a previous daemon, which its values include; 0: none.

  awaitModel @2 () -> AwaitResult;
  # Parked until the model has values, or until this trainer becomes the initializer because the previous one departed.
  # A session may have one such call outstanding; a second one is refused with invalidArgument.

  push @3 (head :PushHead, gradient :Data, codec :Text, count :UInt32) -> PushResult;
  # One slice of one gradient. `gradient` holds values of the shard's dtype, or `count` values encoded with `codec`: the
  # codec agreed in join(), or topk, which is lossless if it contains all values that are not zero.
  # The slices of a shard come in any order and do not overlap. Together they cover the shard, which completes the
  # shard's part of the gradient. All of them name one `basis`. The gradient is complete when `parts` parts are complete.
  # `step` rises with every gradient. A larger step drops the unfinished parts of the previous gradient: with several
  # connections a push starts when all slices of the previous one are answered. A smaller step is a badSlice. Pushes of
  # disjoint fragments are independent: neither drops the other, and either step may be the larger one.
  # A slice that is sent again, on this connection or after the trainer joined again, is not applied again. It is
  # answered `received` while its update is unfinished, then with the outcome of its shard's update. The daemon
  # remembers the unfinished update and the last 64 finished ones of each trainer and shard.
  # Where a gradient must wait for others (sync), its last slice is answered when the outcome is known, all other slices
  # at once.

  takeSamples @9 (step :UInt64, count :UInt32, samples :UInt64, epochs :UInt64, firstEpoch :UInt64,
                  wait :Bool, nominal :UInt32, sampleSeconds :Float64) -> SamplesResult;
  # Asks for at most `count` samples for the gradient of `step`. Every sample of every epoch is assigned to one
  # gradient, whatever the trainers' speeds and losses. A repeated request for a step returns the samples already
  # assigned to it. The samples are done once the gradient is applied. When the gradient is dropped, or the trainer
  # departs earlier, they are assigned again. `samples` per epoch and `epochs`: equal for all trainers; the first
  # trainer to ask decides. `firstEpoch`: where a daemon without assignment state starts.
  # `wait`: where other trainers hold all that is left, the call is parked until some of it returns or all is done.
  # Meanwhile no other trainer waits for this one, so it sets `wait` only when its pushes are answered. A session may
  # have one such call outstanding; a second one is refused with invalidArgument. `nominal`: 0 for `count` samples. Else
  # the daemon chooses 1 to `count` samples, so that all trainers with `nominal` compute equally long per step: in
  # proportion to 1 / sampleSeconds, and in sum `nominal`, which is equal for all of them, times their number, up to
  # rounding. `sampleSeconds`: this trainer's compute time per sample; 0: unknown, and it gets `nominal`.
  # invalidArgument: samples, epochs or count is 0; samples, epochs or nominal differ from the other trainers'; count is
  # below nominal; sampleSeconds is negative or not finite.

  leave @4 () -> (status :Acknowledgement);
  # The trainer is done. Answered when the departure is durable; at once where nothing is durable. Pushes still in
  # flight may be applied after it or not.

  notice @5 (move :UInt64) -> (shuttingDown :Bool, reason :Text, restarting :Bool, revoked :Error, move :UInt64, moveDaemons :UInt32);
  # Parked until the daemon is about to end. A session may have one such call outstanding; a second one is answered at
  # once, without `shuttingDown`. The trainer disconnects, for which the daemon waits up to limits.drain_ms.
  # `restarting`: a daemon will resume the model. The trainer then reconnects as after a broken connection and resends
  # what was not answered. `revoked`, if set: the caller may not train any more (unauthenticated, forbidden), and the
  # daemon ends the connection; it does not itself end. `move`: the model is about to move to `moveDaemons` other
  # daemons, and the daemon waits for quiesce(); the trainer calls notice() again with this number. 0: none.

  quiesce @19 (move :UInt64, cannot :Text) -> QuiesceResult;
  # Quiesces the trainer: it makes no call until this is answered, and all that it has sent, at all daemons, is answered
  # before it calls. The daemon waits for this call of all trainers before it sends its state to the targets; meanwhile
  # no other trainer waits for it. Parked until the move is over. A trainer calls it at all daemons for the move that the
  # lead announced, and follows the lead's answer. `cannot`: why this trainer cannot continue at other daemons, which
  # prevents the move; empty: it can. Dropping the call revokes it.

  keepAlive @8 () -> (status :Acknowledgement);
  # Renews the lease and does nothing else, for a trainer in a long computation or a parked call.

  progress @20 (settled :Bool) -> ProgressResult;
  # For a bridge: the progress of training here. `settled`: answered when the current updates, including those that an
  # earlier pull showed, can no longer be lost; at once without durability.

  openRing @6 (bytes :UInt64) -> RingResult;
  # Once per session, over a Unix socket: creates a memory file for pushed gradients and for rows of embedding tables in
  # both directions, of at most ModelAccess.ringBytesMax. The trainer alone decides its layout. The session owns the
  # ring, and the daemon drops it when the session ends.

  pushShared @7 (head :PushHead, at :UInt64, count :UInt64) -> PushResult;
  # push() of `count` float32 in the ring at byte `at`, a multiple of 64. The trainer leaves them unchanged until the
  # answer arrives.

  openDeviceRing @10 (device :UInt32, bytes :UInt64) -> DeviceRingResult;
  # Once per session and device of the daemon, over a Unix socket: allocates a zeroed ring in the memory of that CUDA
  # device, of at most ModelAccess.ringBytesMax. The trainer maps it; both sides write and read it. The trainer alone
  # decides its layout. The session owns the ring, and the daemon frees it when the session ends.

  pushFromDevice @11 (head :PushHead, at :UInt64, count :UInt64) -> PushResult;
  # push() of `count` float32 at byte `at`, a multiple of 64, of the ring of the shard's device. The trainer's copy into
  # the ring has completed before the call. The values stay unchanged until the answer arrives. A leave() that is sent
  # before the answer may overtake the push.

  pullToDevice @12 (pull :UInt64, shard :UInt32, offset :UInt64, count :UInt64, at :UInt64) -> DevicePullResult;
  # pull() of `count` float32 to byte `at`, a multiple of 64, of the ring of the shard's device. The values are in place
  # when the answer arrives.

  pushRows @13 (head :PushHead, runs :List(RowRun), ids :Data, gradient :Data, codec :Text) -> PushResult;
  # One slice of a gradient's part for one row shard: gradients of rows by id. `runs` and `ids` are as in pullRows;
  # `gradient` holds row after row, dim × float32 each, or all of them encoded with the codec agreed in join().
  # `head.offset` is the number of the slice's first row among the part's `head.total` rows. A row that occurs twice in
  # a part is updated twice, in the order of the rows' numbers. A part without rows (`total` 0) is one slice without
  # rows. Otherwise the rules of push() hold.

  pushRowsShared @14 (head :PushHead, runs :List(RowRun), ids :Data, at :UInt64) -> PushResult;
  # pushRows() of a slice whose gradients, float32, lie in the ring row after row from byte `at` on, a multiple of 64.
  # The ids are in the message, never in the ring. The trainer leaves the gradients unchanged until the answer arrives.

  pullRowsShared @15 (shard :UInt32, runs :List(RowRun), ids :Data, at :UInt64) -> SharedRowsResult;
  # pullRows() that writes the values, float32, to the ring from byte `at` on, a multiple of 64. They are in place when
  # the answer arrives. Until then the daemon may write there, also after the connection broke.

  report @16 (step :UInt64, values :List(NamedValue)) -> (status :Acknowledgement);
  # Reports human-readable training values at `step`: at most 16, each name once. The daemon shows the newest of each
  # rank and keeps their history. invalidArgument: too many, or an invalid name. overloaded: the session's previous
  # report is not answered.

  roundDue @17 (version :UInt64, shard :UInt32) -> RoundDueResult;
  # Parked until the trainer should end what it computes for; the answer says why. With rounds: the one that starts from
  # `version` of `shard`, the first shard of its fragment, is about to close without this trainer, or has closed. Without
  # rounds (policy async_diloco) the call starts the trainer's clock, and with averaging groups it waits for a trainer
  # outside of the group, or for the next group: `version` is then ignored. Without LocalSteps.endsEarly a policy with
  # rounds reports closed rounds only, and one without rounds or groups answers invalidArgument. A session has one such
  # call outstanding for each fragment: a newer one ends the previous one. badSlice: no such shard. notReady: a newer
  # call superseded this one, or another policy has taken over, which may be called.

  formAveragingGroup @18 (after :UInt64, host :Text, port :UInt32) -> GroupResult;
  # Where ModelAccess.allReduce is set; else invalidArgument. Enters the trainer for the next averaging group and takes
  # it out of group `after` (0: it was in none). Parked until the group is formed: from all trainers that wait here,
  # when no joined trainer is missing, or AllReduce.timeoutMs / 2 after the first member of the previous group called.
  # `host` and `port`: where the others reach this trainer. A session has one such call outstanding; a newer one ends
  # the previous one.

  setBuffers @21 (size :UInt64, offset :UInt64, bytes :Data) -> (status :Acknowledgement);
  # From the trainer with rank 0, at the first daemon: a slice of a safetensors file of `size` bytes, which holds the
  # model's buffers: tensors of any of its dtypes that no one trains, such as running statistics. The daemon keeps them as
  # they are. The slices come in order; one with offset 0 starts a new file. The last one replaces all buffers at once,
  # and is answered when that is as durable as a push. badSlice: a slice does not continue the previous one.
  # invalidArgument: another rank, or the file is malformed, or a name is that of a tensor or a table. overloaded: `size`
  # is above limits.buffer_bytes, or the previous slice of the session is not answered.

  pullState @22 (pull :UInt64, shard :UInt32, state :Text, offset :UInt64, count :UInt64) -> StateResult;
  # One slice of one shard's values (`state` empty), or of its optimizer's state of that name (StateResult.states), in
  # float32. Slices of a shard with one `pull` number show one moment: the daemon copies the shard for the first of them,
  # between two updates unless the policy applies slices separately (hogwild). It keeps the copy until the session asks
  # for another shard, with another number, or for no values (`count` 0). badSlice: no such shard, state or slice.

  restoreState @23 (shard :UInt32, state :Text, offset :UInt64, values :Data) -> (status :Acknowledgement);
  # One slice of the values or of the optimizer's state, named as in pullState(), that restored() puts into the model.
  # Until then the daemon holds it for this connection. Every element of the values and of every state is sent once; the
  # first values of shard 0 discard what came before. invalidArgument: the model has been updated, or has tables.
  # notReady: another connection restores. badSlice and nonFinite as for initialize(); badSlice also: a negative value of
  # a state whose square root the optimizer takes. overloaded: more than limits.arriving_bytes.

  restored @24 (steps :List(UInt64)) -> (status :Acknowledgement);
  # All slices are sent. Replaces the values and the optimizer's state of all shards, and sets the updates that each
  # optimizer has made, `steps`, one for each shard. The version of each shard becomes that number, or one more than
  # before if that is larger. Answered when it is durable. A gradient whose basis is an older version is then dropped
  # (stale). badSlice: some element is missing. invalidArgument: the model has been updated, or a gradient waits for
  # others.
}

struct NamedValue {
  # A number that a trainer reports about its training, such as its loss.
  name @0 :Text;       # 1 to 64 letters, digits, or . _ - /
  value @1 :Float64;
}

struct PushHead {
  # Which elements of which gradient a slice holds.
  step @0 :UInt64;      # number of the gradient, from 1; rises with every gradient of the trainer
  shard @1 :UInt32;
  offset @2 :UInt64;    # elements, from the shard's begin; of a row shard the number of the first row
  basis @3 :UInt64;     # version of the shard that the gradient was computed from
  samples @4 :UInt32;   # examples behind the gradient
  parts @5 :UInt32;     # parts of the gradient, one per shard; with LocalSteps.fragments above 1 it may have one per
                        # shard of a fragment only, and where ModelAccess.allReduce is set one per row shard or one per
                        # other shard. Any other number is a badSlice.
  total @6 :UInt64;     # elements in the part: all of the shard's. Of a row shard: rows.
  localSteps @7 :UInt32;  # local steps of which this is the difference; 0: it is a gradient
  hyperparameters @8 :Hyperparameters;  # of the step, the same in all slices of a part; null: the daemon's
  leadRound @9 :UInt64;   # where several daemons serve the model: 1 + the version of the first shard of daemon 0 that the
                          # gradient was computed from, by which all daemons name the round; 0: unknown
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
    memory @0 :SharedMemory;   # the ring, zeroed, readable and writable
    error @1 :Error;
  }
}

struct AwaitResult {
  union {
    ready @0 :Void;            # the model has values
    mustInitialize @1 :Void;   # this trainer is the initializer: initialize(), then initialized()
    error @2 :Error;
  }
}

enum PushOutcome {
  # In ascending order of severity.
  received @0;   # part of an update that is applied when its last slice arrives
  applied @1;    # the update is in the model
  stale @2;      # dropped: its basis is older than the policy allows
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
  # Set in the answer to the slice that completed a gradient: the shards whose part is not in the model and will not be
  # by this push. `outcome` is then the worst outcome of all shards whose part waited, or `error` that of one of them.
  # Where `dropped` names shards, every shard that it does not name and no other answer covered is in the model.
}
