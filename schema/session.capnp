@0xb0c8f2a45d17e963;
# Results of calls that a trainer makes during its session, most of which are parked. See psd.capnp.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "status.capnp".Error;

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
    closing @0 :Void;   # push now: within the grace it is in the round, later policy.late applies; without rounds at once
    closed @1 :Void;    # a push for that round is dropped
    error @2 :Error;
  }
}
