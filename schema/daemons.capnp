@0xe93a5c70d18b42f6;
# What daemons have of each other, by way of Admin in psd.capnp, whose rules hold here too: the stream of a primary to its standby, and
# a model that moves to other daemons.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "model.capnp".ModelSpec;
using import "status.capnp".Acknowledgement;
using import "status.capnp".Error;

struct ReplicateResult {
  daemon @0 :UInt64;   # number that this daemon drew when it started, whatever the outcome
  union {
    following @1 :UInt64;   # the epoch
    error @2 :Error;
  }
  folderEpoch @3 :UInt64; # epoch of the state that the daemon's folder (durability.path) had when it started; 0: none, or not known
}

struct FollowerAnswer {
  union {
    held @0 :UInt64;   # number of the first record that the standby does not hold
    error @1 :Error;   # the standby is of no use any more: the primary ends the stream
  }
}

interface ReplicaSink @0x9060436634d7a15e {
  # What a primary tells its standby: the parts of the image, then imageDone(); beside them, from the start, the rest.

  image @0 (path :Text, renamedTo :Text, bytes :Data) -> (status :Acknowledgement);
  # A part of a checkpoint, as docs/checkpoint_format.md has it, and of the configuration beside it ("config.json"): `bytes` are to
  # be added to the file at `path`, or the file is called `renamedTo` from now on.

  imageDone @1 (path :Text) -> (status :Acknowledgement);
  # The checkpoint in the folder `path` is whole. Answered when the standby has the model in place.

  records @2 (bytes :Data) -> FollowerAnswer;
  # More bytes of the stream of records, as docs/log_format.md has them. Answered when the standby holds them; later where it has
  # too many that it has not applied.

  beat @3 () -> FollowerAnswer;
  # A sign of life where there is nothing else to say.

  planChanged @4 () -> (status :Acknowledgement);
  # The plan names this standby now, or names it as primary, so that all that it holds is all there is: it looks at the plan.

  runEnded @5 (reason :Text) -> (status :Acknowledgement);
  # The run is over, as after Admin.stop: the standby does not take over, and ends too.
}

struct BeginMoveResult {
  union {
    leaving @0 :LeavingModel;
    error @1 :Error;
  }
}

struct ArriveResult {
  union {
    arriving @0 :ArrivingModel;
    error @1 :Error;
  }
  rules @2 :Text;   # of one of several daemons, as in ModelAccess: all to which a model moves must agree
}

struct MoveTerms {
  # What the daemons to which a model moves must suit, as the lead of those that have it tells.
  rules @0 :Text;                # a line "KEY: VALUE" for each key in which they are alike
  worldSize @1 :UInt32;          # of the trainers; 0: not known yet
  pushCodecs @2 :List(Text);     # those that trainers asked for themselves, each once
  pullCodecs @3 :List(Text);
  daemon @4 :UInt64;             # the lead's process, and where it is reached: whoever has the model in place asks it
  addresses @5 :List(Text);      # what became of the move (Login.moveOutcome)
}

struct MoveTermsResult {
  union {
    terms @0 :MoveTerms;
    error @1 :Error;
  }
}

enum MoveOutcome {
  unknown @0;    # this is another process than the one that was meant
  underWay @1;
  stays @2;      # the move was given up, for ever
  counts @3;     # the model has moved
}

interface LeavingModel {
  # A model that is about to be served elsewhere. Where it is dropped before commit(), or the connection breaks, trainers go on here.

  quiet @0 () -> QuietResult;
  # Parked until every trainer has stepped aside, and nothing changes any more until the move is over.

  give @1 (begin :UInt64, count :UInt64, sink :ReplicaSink) -> (status :Acknowledgement);
  # Gives a checkpoint, by image() and imageDone() of `sink`, of what elements [begin, begin + count) of this daemon's layout need,
  # and of all rows. After quiet().

  commit @2 () -> (status :Acknowledgement);
  # The others have all of it. In the lead this is what makes the move count. Trainers are told, and the daemon ends.

  beat @3 ();
  # The caller is there. Where it has said that it calls this, and has not for some ten seconds, it counts as gone: it is to do so every
  # two seconds, from the start.
}

struct QuietResult {
  union {
    quiet :group {
      worldSize @0 :UInt32;
      departed @1 :List(UInt32);  # ranks that have come and gone
      ranks @2 :List(UInt32);     # of the trainers that have stepped aside
      terms @4 :MoveTerms;        # of the lead, as they are now
    }
    error @3 :Error;
  }
}

interface ArrivingModel {
  # A model that comes from other daemons. Where it is dropped before settle() was answered, nothing of it stays. Where that is after
  # it, this daemon asks the lead of before what became of the move.

  sink @0 (part :UInt32) -> (sink :ReplicaSink);
  # For the checkpoint of one of them.

  settle @1 (worldSize :UInt32, departed :List(UInt32), ranks :List(UInt32)) -> SettleResult;
  # All parts are here: puts this daemon's partition in place, and on its disk where `durability` says so. Nobody is let in before
  # commit(), or a trainer that knows of the move.

  commit @2 () -> (status :Acknowledgement);
  # The move is done: trainers may come.

  check @3 (terms :MoveTerms, model :ModelSpec) -> (status :Acknowledgement);
  # Whether `model`, the whole, and those who train it, could go on here. Before settle(), which is refused without. invalidArgument names each
  # key that keeps them from it, with both values.

  giveUp @4 () -> (status :Acknowledgement);
  # The move does not count, and never will, as the caller knows: it has not asked the lead for it, or was refused. Nothing of it stays.

  beat @5 ();
  # As in LeavingModel.
}

struct SettleResult {
  union {
    rows @0 :UInt64;   # that this daemon's partition has of all tables
    error @1 :Error;
  }
}
