@0xd5f1a0c3b7e24689;
# The wire of psd, all of it. docs/protocol.md tells the story; this file is the reference.
#
# Rules: a field or method id is never reused; what is added gets the next number. Element offsets
# and counts are in float32 elements of the flat arena (common/types/model_layout.h), byte counts are
# named so. Every method answers with a union of its result and a typed Error; a Cap'n Proto
# exception means a broken connection or a defect, never an expected condition.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

const protocolVersion :UInt32 = 1;
# Raised when an older peer could misread a newer one. Both sides compare in Daemon.hello.

enum ErrorCode {
  # The same list as psd::ErrorCode in common/status/status.h, in the same order.
  invalidArgument @0;
  io @1;
  unavailable @2;
  deadlineExceeded @3;
  protocolMismatch @4;
  modelMismatch @5;
  worldSizeMismatch @6;
  rankTaken @7;
  badSlice @8;
  nonFinite @9;
  notReady @10;
  overloaded @11;
  shuttingDown @12;
  internal @13;
  sessionEnded @14;
  interrupted @15;   # no daemon says it
}

struct Error {
  code @0 :ErrorCode;
  message @1 :Text;   # one line for people
}

enum DType { f32 @0; }

struct TensorSpec {
  name @0 :Text;
  dtype @1 :DType;
  shape @2 :List(UInt64);   # row-major
}

struct ModelSpec {
  name @0 :Text;
  tensors @1 :List(TensorSpec);   # in arena order
  signature @2 :UInt64;           # psd::ModelSpec::signature() as the sender computes it
}

struct ShardRange {
  begin @0 :UInt64;   # first element in the arena
  count @1 :UInt64;   # elements; never 0
}

struct Acknowledgement {
  union {
    ok @0 :Void;
    error @1 :Error;
  }
}

struct ModelAccess {
  # What a peer must know before it pulls or pushes.
  shards @0 :List(ShardRange);   # in order; shard i is element i of this list
  policy @1 :Text;               # for people: "hogwild"; of several groups "fc*: locked, others: hogwild"
  device @2 :Text;               # for people
  sliceElementsMax @3 :UInt64;   # largest slice that the daemon takes or sends
  sharedModel @4 :SharedModel;   # null where the daemon offers no map of the parameters …
  notShared @5 :Text;            # … and why, for people
  ringBytesMax @6 :UInt64;       # largest ring that Trainer.openRing gives on this connection; 0: none
  localSteps @7 :LocalSteps;     # null: trainers push the gradient of every step
  deviceOfShard @8 :List(UInt32);  # per shard, the number of the device that has it, as Trainer.openDeviceRing takes it;
                                   # empty where that gives none on this connection
}

struct LocalSteps {
  # Trainers take so many steps of plain SGD by themselves, then push once, in place of a gradient:
  # - alpha 0 (local SGD): the parameters that they pulled before those steps less what they have come to. They
  #   begin the next ones with what they pull then.
  # - else (EASGD): the parameters w~ that they have just pulled less their own w, which become
  #   w + alpha (w~ - w). The next steps begin there.
  period @0 :UInt64;   # at least 1
  rate @1 :Float64;    # the learning rate of those steps
  alpha @2 :Float64;
}

interface SharedMemory {
  # A memory file; the descriptor travels with the capability (SCM_RIGHTS), over Unix sockets only. It has no
  # methods. Nobody can make the file shorter or longer.
}

struct SharedModel {
  # The parameters as they lie in the daemon's memory, to be read while they change. They cannot be written
  # through the file unless the daemon's configuration says so. All places are bytes in the file.
  memory @0 :SharedMemory;
  valuesAt @1 :UInt64;     # element 0 of the arena; the others follow
  versionsAt @2 :UInt64;   # a UInt64 for shard 0, in the machine's byte order; those of the other shards …
  versionStep @3 :UInt64;  # … follow at this distance. Read it before the shard's values.
  readableAt @4 :UInt64;   # a UInt64 that is 0 while the parameters must be pulled by calls, since the policy has
                           # changed; look before every use
}

interface Daemon {
  # The bootstrap capability of a connection.

  hello @0 (protocolVersion :UInt32, peer :Text)
      -> (protocolVersion :UInt32, serverVersion :Text, status :Acknowledgement);
  # First call on a connection. `peer` names the caller in the daemon's log ("psd-trainer 0.1.0").

  join @1 (rank :UInt32, worldSize :UInt32, model :ModelSpec, host :Text, pid :UInt32, codec :Text,
           pullCodec :Text, incarnation :UInt64, daemon :UInt64, anyRank :Bool,
           held :List(HeldSamples)) -> JoinResult;
  # Becomes a trainer. `codec` and `pullCodec` say how its gradients and its parameters are to travel,
  # NAME[:option=value[,…]]; empty leaves that to the daemon. Refused: protocolMismatch (no hello before), modelMismatch,
  # worldSizeMismatch, rankTaken, also when it had the rank at this daemon and another incarnation has had it
  # since, invalidArgument, overloaded, shuttingDown.
  # `incarnation`: a random number that a trainer draws once in its life. Who joins again with the one that has the
  # rank goes on with its session, and its pushes are known; 0: neither. `daemon`: joined.daemon of its last
  # join, 0 in the first.
  # `anyRank`: instead of `rank` it takes the lowest one that is free. `worldSize` 0: as the daemon's configuration
  # or those that are in say. `held`: what takeSamples dealt to it, by this daemon or one before, and of which it was not
  # told what became of the gradient. Gradients of what others have by now are answered late.

  observe @2 (model :ModelSpec) -> ObserveResult;
  # Reads the model without being a trainer. An empty model matches any.

  admin @3 () -> (admin :Admin);

  ping @4 () -> ();
  # Does nothing; its round trip is the least that any call takes.

  attach @5 (rank :UInt32, incarnation :UInt64, attachment :UInt32) -> AttachResult;
  # Makes this one more connection of a trainer that has joined over another one; all three as in its join().
  # Refused: protocolMismatch (no hello before), shuttingDown, overloaded, sessionEnded (that trainer has not joined, has
  # left, counts as lost, has joined again since, or said no incarnation).
}

struct AttachResult {
  union {
    session @0 :Trainer;
    # The same session: pulls and pushes may come over either connection, those of one shard over one of them. What was
    # agreed in join() holds. Bringing values, samples and leave() are for the connection that joined; with that one the
    # trainer counts as no longer connected, without this one it does not. When one of them breaks, join again.
    error @1 :Error;
  }
}

struct HeldSamples {
  step @0 :UInt64;
  epoch @1 :UInt64;   # these as in SamplesResult.dealt
  begin @2 :UInt64;
  count @3 :UInt32;
}

struct SamplesResult {
  union {
    dealt :group {
      epoch @0 :UInt64;  # from 0; the samples are at these places of the epoch's order, which is the
      begin @1 :UInt64;  # trainers' affair
      count @2 :UInt32;
      unweighted @6 :List(Bool);  # with `nominal`: for each shard, whether its policy applies every gradient by
                                  # itself; there the trainer makes that of n samples count n / nominal
    }
    nothingNow @3 :Void;  # others have what is left, and `wait` was not said
    finished @4 :Void;    # every sample of every epoch is done
    error @5 :Error;      # also invalidArgument: others say other samples or epochs
  }
}

struct JoinResult {
  union {
    joined :group {
      session @0 :Trainer;
      access @1 :ModelAccess;
      mustInitialize @2 :Bool;   # this trainer is the first: it sends values, then initialized()
      codec @4 :Text;            # what pushes are to use, with all options …
      pullCodec @5 :Text;        # … and pulls: as asked, or the daemon's choice
      leaseMs @6 :UInt64;        # after so long without a call of its session the trainer counts as gone
      daemon @7 :UInt64;         # a random number that this daemon drew when it started
      resumed @8 :Bool;          # the session from before goes on
      rank @9 :UInt32;           # that it has
      worldSize @10 :UInt32;     # ranks are below it
      attachment @11 :UInt32;    # rises each time that this session is joined; for Daemon.attach
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

  pull @0 (pull :UInt64, shard :UInt32, offset :UInt64, count :UInt64, codec :Text) -> PullResult;
  # One slice of one shard; `offset` is relative to the shard's begin. Slices with the same `pull` number belong
  # together: where the policy promises whole shards (locked), all slices of a shard in one pull show
  # the same version. Numbers rise; a new number ends the pull before it. `codec`: the name of the one agreed in
  # join(); empty: float32.
}

struct PullResult {
  union {
    slice :group {
      pull @0 :UInt64;      # as asked, like the next two: they tell the receiver where the values
      shard @1 :UInt32;     # belong before the rest of the message is read
      offset @2 :UInt64;
      version @3 :UInt64;   # updates that the shard had applied
      values @4 :Data;      # count × float32, little endian, or as the codec asked for has it
    }
    error @5 :Error;
  }
}

interface Trainer extends(Reader) {
  # One trainer's session. It ends with leave(), some time after it or its connection was dropped, or when no
  # call came for the lease; without leave() the trainer counts as lost. Every call renews the lease; those of a
  # session that has ended are refused with sessionEnded.

  initialize @0 (shard :UInt32, offset :UInt64, values :Data) -> (status :Acknowledgement);
  # One slice of the initial values, from the trainer that was told mustInitialize.

  initialized @1 () -> (status :Acknowledgement);
  # All initial values are sent. badSlice when some element was not.

  awaitModel @2 () -> AwaitResult;
  # One outstanding call per session, as of takeSamples with `wait`. Parked until the model has values, or until this trainer is asked to bring them because the one that
  # was to do so is gone.

  push @3 (step :UInt64, shard :UInt32, offset :UInt64, basis :UInt64, samples :UInt32,
           gradient :Data, codec :Text, count :UInt32) -> PushResult;
  # One slice of one gradient. The slices of a shard come in any order without overlap; together they
  # cover the shard and make one update. A slice that comes again, on this connection or after the trainer
  # joined again, is not applied again and is told what its push was answered. `basis`: the version that the
  # gradient was computed from. `step` rises with every gradient; a larger one gives up what is unfinished of the
  # one before: with several connections all slices of that are answered first. Where a gradient must wait for other trainers (sync), its last slice is answered when it is known
  # what became of it, all others at once. `gradient` holds float32, or what the codec of that name made of `count`
  # values: the one agreed in join().

  takeSamples @9 (step :UInt64, count :UInt32, samples :UInt64, epochs :UInt64, firstEpoch :UInt64,
                  wait :Bool, nominal :UInt32, sampleSeconds :Float64) -> SamplesResult;
  # Deals at most `count` samples to the gradient of `step`: so every sample of every epoch is in one gradient,
  # however fast trainers are, and though some die. `samples` of an epoch and `epochs` are the same for all trainers;
  # the first to ask decides. `firstEpoch`: where a daemon that knows of nothing begins. Asking again for the same
  # step gives the same. Once the gradient is applied the samples are done; when it is dropped, or the trainer is
  # gone before, they are dealt again. `wait`: parked, where nothing is left but what others have, until some of that
  # comes back or all is done. Meanwhile nobody waits for this trainer, so it asks so when its pushes are answered.
  # `nominal`: 0, or the daemon chooses the number, `count` at most, so that all trainers that say so compute as long
  # for a step: each in proportion to its speed, together about `nominal` times their number. It is the same for all
  # of them. `sampleSeconds`: how long this trainer computes for a sample; 0: not known yet, and it gets `nominal`.

  leave @4 () -> (status :Acknowledgement);
  # The trainer is done. Answered when the departure is kept for a daemon after this one, at once where nothing keeps it;
  # pushes that are still under way may be applied after it or not.

  notice @5 () -> (shuttingDown :Bool, reason :Text, comesBack :Bool);
  # Parked until the daemon has something to tell; one outstanding call per session, a second one is answered at once
  # without `shuttingDown`. `comesBack`: another daemon is to go on with the model. Hang up, and come back to it as after
  # a connection that broke; what is not answered by then is to be sent again.

  keepAlive @8 () -> (status :Acknowledgement);
  # Renews the lease, and nothing else; for a trainer that computes for long or waits in a parked call.

  openRing @6 (bytes :UInt64) -> RingResult;
  # Once per session, over a Unix socket: memory to push gradients through, ModelAccess.ringBytesMax at most.
  # What lies where in it is the trainer's business alone. It is the session's, and goes with it.

  pushShared @7 (step :UInt64, shard :UInt32, offset :UInt64, basis :UInt64, samples :UInt32,
                 at :UInt64, count :UInt64) -> PushResult;
  # push of `count` float32 that lie in the ring at byte `at`, a multiple of 64. The trainer leaves them as
  # they are until the answer is there.

  openDeviceRing @10 (device :UInt32, bytes :UInt64) -> DeviceRingResult;
  # Once per session and device of the daemon's, over a Unix socket: memory of that CUDA device, zeroed, to be mapped
  # by this trainer and written and read by both, ModelAccess.ringBytesMax at most. What lies where in it is the
  # trainer's business alone. It is the session's, and goes with it.

  pushFromDevice @11 (step :UInt64, shard :UInt32, offset :UInt64, basis :UInt64, samples :UInt32,
                      at :UInt64, count :UInt64) -> PushResult;
  # push of `count` float32 that lie at byte `at`, a multiple of 64, of the ring of the shard's device: copied there
  # before the call, and left as they are until the answer is there. leave() before that may come first.

  pullToDevice @12 (pull :UInt64, shard :UInt32, offset :UInt64, count :UInt64, at :UInt64) -> DevicePullResult;
  # pull of `count` float32 to byte `at`, a multiple of 64, of the ring of the shard's device; there when the answer is.
}

struct DeviceRingResult {
  union {
    handle @0 :Data;   # what its processes map the memory by: a cudaIpcMemHandle_t, 64 bytes
    error @1 :Error;
  }
}

struct DevicePullResult {
  union {
    version @0 :UInt64;   # as PullResult has it
    error @1 :Error;
  }
}

struct RingResult {
  union {
    memory @0 :SharedMemory;   # of that many bytes, zeroed, to be read and written
    error @1 :Error;
  }
}

struct AwaitResult {
  union {
    ready @0 :Void;
    mustInitialize @1 :Void;   # go on with initialize() and initialized()
    error @2 :Error;
  }
}

enum PushOutcome {
  applied @0;    # in the model
  received @1;   # part of an update that is applied when its last slice is there
  late @2;       # dropped, all shards of its parameter group: the round that it was for is closed
  stale @3;      # dropped: computed from values that are older than the policy allows
}

struct PushResult {
  union {
    accepted :group {
      outcome @0 :PushOutcome;
      version @1 :UInt64;     # of the shard, after this slice
      staleness @2 :UInt64;   # updates between basis and this one
    }
    error @3 :Error;
  }
  dropped @4 :List(UInt32);
  # In the answer to the slice that completed a gradient: all shards of whose part nothing is in the model, nor will be by
  # this push. Where it names some, it says what became of each shard that no other answer told of, in place of `outcome`,
  # which is the worst of them, or of the error, which is that of one.
}

interface Admin {
  status @0 () -> (json :Text);
  # The daemon's state as JSON; docs/operations.md lists the fields.

  reload @2 () -> (status :Acknowledgement, change :Text);
  # Read the configuration file again and go over to it as far as that can be while trainers work. `change` tells
  # what differs, for people. invalidArgument: something is wrong with it or cannot change now, and nothing did.

  stop @1 (reason :Text, wait :Bool) -> (status :Acknowledgement);
  # Finish what is in flight, save if configured, tell the trainers, exit. Answered when that has begun; with `wait`
  # when all is saved, or with the error that kept something from being saved, right before the connection ends.
}
