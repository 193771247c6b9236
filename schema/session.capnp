@0xb0c8f2a45d17e963;
# Results of calls that a trainer makes during its session, most of which are parked, and the samples assigned to it. See
# psd.capnp.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "status.capnp".Error;

struct HeldSamples {
  # Samples that a trainer holds: `count` places from `begin` on in the order of `epoch`, assigned to the gradient of
  # `step`.
  step @0 :UInt64;
  epoch @1 :UInt64;
  begin @2 :UInt64;
  count @3 :UInt32;
}

struct SamplesResult {
  union {
    assigned :group {
      # `count` samples, at the places from `begin` on in the order of `epoch` (from 0). Only the trainers know which
      # sample is at a place.
      epoch @0 :UInt64;
      begin @1 :UInt64;
      count @2 :UInt32;
      scaledByTrainer @6 :List(Bool);  # with `nominal`, per shard: its policy applies each gradient separately, so the
                                       # trainer multiplies the gradient of n samples by n / nominal before it pushes
      mixed @7 :Bool;             # true for some parameter groups of the configuration only
    }
    nothingNow @3 :Void;  # other trainers hold the rest, and `wait` was not set
    finished @4 :Void;    # every sample of every epoch is done
    error @5 :Error;
  }
}

struct ProgressResult {
  union {
    progress :group {
      versions @0 :List(UInt64);   # of each shard
      began @1 :List(UInt64);      # their values when this daemon started to serve: updates above them at another daemon are
                                   # lost
      trainers @2 :UInt32;         # joined trainers
      over @3 :Bool;               # with exit_when_done: all trainers have left, and the run ends once the bridge leaves
    }
    error @4 :Error;
  }
}

struct AveragingMember {
  rank @0 :UInt32;
  host @1 :Text;
  port @2 :UInt32;
}

struct GroupResult {
  union {
    formed :group {
      generation @0 :UInt64;           # of the averaging group; rises, and is unique across daemons
      members @1 :List(AveragingMember);   # by rank. The first pushes the average: the dense part of any other member's push is
                                       # ignored.
      index @2 :UInt32;                # index of the caller
      reached @3 :UInt64;              # version to which group `after` brought the model; 0: unknown
    }
    error @4 :Error;
  }
}

struct QuiesceResult {
  union {
    continueHere @0 :Void;              # the model did not move: continue here
    moved @1 :List(List(Text)); # the daemons that serve the model now, as LoginResult.movedTo
    error @2 :Error;
  }
}

struct RoundDueResult {
  union {
    closing @0 :Void;      # push now: within the grace it is in the round, later policy.late applies
    closed @1 :Void;       # a push for that round is dropped
    error @2 :Error;
    stepsDone @3 :Void;    # without rounds: push now, the trainer has taken the number of steps that matches its speed
    groupWanted @4 :Void;  # where ModelAccess.allReduce is set: end the averaging group, and call formAveragingGroup()
  }
}

struct StateResult {
  union {
    slice :group {
      pull @0 :UInt64;           # repeats the request
      version @1 :UInt64;        # updates that the shard had applied
      steps @2 :UInt64;          # those of them since its optimizer's state was last initialized
      states @3 :List(Text);     # names of the optimizer's states
      values @4 :Data;           # count × float32, little-endian
    }
    error @5 :Error;
  }
}
