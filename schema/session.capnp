@0xb0c8f2a45d17e963;
# What a trainer is told in the midst of its session, in calls of which most are parked. See psd.capnp.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "status.capnp".Error;

struct ProgressResult {
  union {
    progress :group {
      versions @0 :List(UInt64);   # of each shard
      began @1 :List(UInt64);      # what they were when this daemon began to serve: where another one's were higher, updates are lost
      trainers @2 :UInt32;         # that are in
      over @3 :Bool;               # with exit_when_done: all have come and gone, and the run ends once the bridge has left
    }
    error @4 :Error;
  }
}

struct GroupMember {
  rank @0 :UInt32;
  host @1 :Text;
  port @2 :UInt32;
}

struct GroupResult {
  union {
    formed :group {
      generation @0 :UInt64;           # of the group; rises, and is no other daemon's
      members @1 :List(GroupMember);   # by rank. The first one pushes what they average: the dense part of nobody else's push is taken.
      index @2 :UInt32;                # which of them the caller is
      reached @3 :UInt64;              # version that the group `after` brought the model to; 0 where that is not known any more
    }
    error @4 :Error;
  }
}

struct StepAsideResult {
  union {
    goOn @0 :Void;              # here: the model did not move
    moved @1 :List(List(Text)); # the daemons that serve the model from now on, as LoginResult.movedTo
    error @2 :Error;
  }
}

struct RoundDueResult {
  union {
    closing @0 :Void;   # push what is there: within the grace it is in the round, later it counts by policy.late; without rounds at once
    closed @1 :Void;    # what is pushed for that round is dropped
    error @2 :Error;
  }
}
