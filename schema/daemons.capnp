@0xe93a5c70d18b42f6;
# The calls between daemons, which go through Admin in psd.capnp (its rules hold here too): the stream from a primary to
# its standby, and the move of a model to other daemons.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "model.capnp".ModelSpec;
using import "status.capnp".Acknowledgement;
using import "status.capnp".Error;

struct ReplicateResult {
  daemon @0 :UInt64;   # random number that this daemon drew when it started; set in every outcome
  union {
    term @1 :UInt64;   # the term
    error @2 :Error;
  }
  folderTerm @3 :UInt64; # term of the state in the daemon's data folder (durability.path) when it started; 0: none, or
                          # unknown
}

struct FollowerAnswer {
  union {
    held @0 :UInt64;   # LSN of the first record that the standby does not hold
    error @1 :Error;   # the standby has failed: the primary ends the stream
  }
}

interface ReplicaSink @0x9060436634d7a15e {
  # What a primary sends to its standby: the parts of the image, then imageDone(). The other calls run beside them from
  # the start.

  image @0 (path :Text, renamedTo :Text, bytes :Data) -> (status :Acknowledgement);
  # A part of a checkpoint (docs/reference/checkpoint_format.md), or of the configuration beside it ("config.json"): appends
  # `bytes` to the file at `path`, or renames that file to `renamedTo`.

  imageDone @1 (path :Text) -> (status :Acknowledgement);
  # The checkpoint in the folder `path` is complete. Answered when the standby has loaded the model.

  records @2 (bytes :Data) -> FollowerAnswer;
  # More bytes of the log record stream (docs/reference/log_format.md). Answered when the standby holds them; later when too many
  # records are not yet applied.

  heartbeat @3 () -> FollowerAnswer;
  # Heartbeat, sent when there is nothing else to send.

  clusterDocumentChanged @4 () -> (status :Acknowledgement);
  # The cluster document now names this daemon as standby or as primary, so the standby holds everything it needs: it
  # reads the cluster document again.

  runEnded @5 (reason :Text) -> (status :Acknowledgement);
  # The run has ended, as after Admin.stop: the standby exits and does not take over.
}

struct StartMoveResult {
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
  rules @2 :Text;   # when several daemons serve the model, as ModelAccess.rules: all targets of a move must agree
}

struct MoveTerms {
  # The requirements for the targets of a move, as the lead source states them.
  rules @0 :Text;                # one line "KEY: VALUE" for each key that must be equal
  worldSize @1 :UInt32;          # of the trainers; 0: unknown
  pushCodecs @2 :List(Text);     # requested by trainers themselves, each once
  pullCodecs @3 :List(Text);
  daemon @4 :UInt64;             # the lead's process; with `addresses` it is where a target that has the model in place asks
                                 # for the outcome (Login.moveOutcome)
  addresses @5 :List(Text);
  versions @6 :VersionTerms;     # null: the source publishes no versions of the model
}

struct VersionTerms {
  # The published versions that move along with a model.
  durable @0 :Bool;    # the source has them on its disk
  bytes @1 :UInt64;    # of all
}

struct MovedVersions {
  # How the published versions continue at the target of a move, as of the moment at which the source has stopped to
  # make, remove and lease versions.
  history @0 :UInt64;            # of the next version
  highest @1 :UInt64;            # the next version has a larger number
  numbers @2 :List(UInt64);      # of the versions that exist
  leased @3 :List(UInt64);       # the versions that leases keep, and for how much longer
  leasedSeconds @4 :List(UInt64);
  # Where several daemons serve the model, before the move or after it. From a source:
  wholeHistory @5 :UInt64;       # of the whole versions; 0: that which the histories of all sources make. To a target: not 0
  rounds @6 :UInt64;             # that all shards of the source have made
  # To a target:
  ahead @7 :UInt64;              # by how much the number of a version is above that of its round
}

struct MoveTermsResult {
  union {
    terms @0 :MoveTerms;
    error @1 :Error;
  }
}

enum MoveOutcome {
  unknown @0;    # the process is not the one that was asked for
  underWay @1;
  stays @2;      # the move was cancelled, for good
  counts @3;     # the model has moved
}

interface LeavingModel {
  # A model that is about to move away. When the capability is dropped before commit(), or the connection breaks,
  # trainers continue at this daemon.

  quiesced @0 () -> QuiescedResult;
  # Parked until every trainer is quiesced. Nothing changes from then until the end of the move.

  give @1 (begin :UInt64, count :UInt64, sink :ReplicaSink) -> (status :Acknowledgement);
  # Sends a checkpoint through image() and imageDone() of `sink`: what elements [begin, begin + count) of this daemon's
  # layout need, and all rows. Requires quiesced().

  commit @2 () -> (status :Acknowledgement);
  # The targets hold everything. In the lead this call makes the move count. The daemon notifies its trainers and exits.

  heartbeat @3 ();
  # Heartbeat of the caller, due every two seconds from the start. A caller that announced heartbeats (`heartbeats`) and
  # sends none for about ten seconds counts as lost.
}

struct QuiescedResult {
  union {
    quiesced :group {
      worldSize @0 :UInt32;
      departed @1 :List(UInt32);  # ranks of trainers that have left
      ranks @2 :List(UInt32);     # of the quiesced trainers
      terms @4 :MoveTerms;        # of the lead, current
      versions @5 :MovedVersions; # null: the source publishes no versions of the model
    }
    error @3 :Error;
  }
}

interface ArrivingModel {
  # A model that arrives from other daemons. When the capability is dropped before install() was answered, the daemon
  # discards the model. When it is dropped later, the daemon asks the lead source for the outcome of the move.

  sink @0 (part :UInt32) -> (sink :ReplicaSink);
  # Receives the checkpoint of one source.

  install @1 (worldSize :UInt32, departed :List(UInt32), ranks :List(UInt32), versions :MovedVersions) -> InstallResult;
  # All parts have arrived: installs this daemon's partition, and writes it to disk if `durability` is configured. Until
  # commit(), or until a trainer joins that knows of the move, every join is rejected. `versions`: of
  # LeavingModel.quiesced(), or for several daemons what the caller has made of those of all sources; the versions that it
  # names have arrived through versionSink().

  commit @2 () -> (status :Acknowledgement);
  # The move is complete: trainers are admitted.

  check @3 (terms :MoveTerms, model :ModelSpec) -> (status :Acknowledgement);
  # Whether training of `model` (the whole model) can continue here under `terms`. Must precede install(), which is
  # refused otherwise. invalidArgument names each key that prevents it, with both values.

  giveUp @4 () -> (status :Acknowledgement);
  # The move does not count and never will: the caller has not sent commit() to the lead, or the lead refused it. The
  # daemon discards the model.

  heartbeat @5 ();
  # As in LeavingModel.

  versionSink @6 (oldest :UInt64) -> (sink :ReplicaSink);
  # Receives the file of one published version, or of this daemon's part of it (docs/reference/protocol.md), through image()
  # of one path and imageDone(): after check() under terms with `versions`, in the order of their numbers, one after another. Versions older than `oldest` exist no longer at the
  # source, and are removed. Readers see no version before commit(). Of imageDone(): io: it is damaged. overloaded: more
  # than limits.version_bytes.
}

struct InstallResult {
  union {
    rows @0 :UInt64;   # of all tables in this daemon's partition
    error @1 :Error;
  }
}

struct NewestCheckpoint {
  status @0 :Acknowledgement;
  partition @1 :UInt32;   # index of the daemon's partition, from 0
  of @2 :UInt32;          # partitions of the model
  number @3 :UInt64;
  version @4 :UInt64;     # of its first shard
  crc @5 :UInt32;         # CRC-32C of its manifest.json
  logged @6 :Bool;        # a log continues from it
  whole @7 :Text;         # the text of whole.json in the daemon's data folder; empty: there is none
}
