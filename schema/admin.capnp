@0x9e5b1d7c64f2a83d;
# What a caller that may administer a daemon can do. The rules of psd.capnp hold here too.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "daemons.capnp".ArriveResult;
using import "daemons.capnp".StartMoveResult;
using import "daemons.capnp".MoveTermsResult;
using import "daemons.capnp".NewestCheckpoint;
using import "daemons.capnp".ReplicaSink;
using import "daemons.capnp".ReplicateResult;
using import "status.capnp".Acknowledgement;
using import "versions.capnp".VersionResult;

interface Admin @0xa8f89e12343931e8 {
  # What a caller that may administer the daemon can do.

  reload @0 () -> (status :Acknowledgement, change :Text);
  # Reads the configuration file again and applies it as far as possible while trainers work. `change` is a
  # human-readable list of the differences. invalidArgument: something in the file is wrong or cannot change now, and
  # nothing has changed.

  checkpoint @2 () -> (status :Acknowledgement, path :Text);
  # Takes a checkpoint that starts after this call; answered when it is complete. Calls that arrive while one is being
  # taken share the next. invalidArgument: the configuration has no durability. notReady: the model has no values.

  newestCheckpoint @9 () -> NewestCheckpoint;
  # The newest checkpoint of this daemon. notReady: there is none. invalidArgument: as for checkpoint().

  recordWhole @10 (document :Text) -> (status :Acknowledgement);
  # Records a checkpoint of the whole model, of all daemons that serve it: `document` is the text of whole.json
  # (docs/reference/checkpoint_format.md). Answered when it is on disk; the checkpoint of this daemon that it names is kept until
  # another document replaces it. In the lead this call makes it count. invalidArgument: the document is malformed or
  # has another number of daemons, or a log continues from the checkpoint that it names of this daemon. unavailable:
  # that checkpoint no longer exists.

  removeTrainer @3 (rank :UInt32) -> (status :Acknowledgement, removed :Text);
  # Ends the session of the trainer with that rank. It counts as lost, and its process is not admitted again; another
  # one may take the rank. `removed` is the trainer's human-readable name. invalidArgument: the rank is free.

  set @4 (assignment :Text) -> (status :Acknowledgement, change :Text);
  # Changes one key, "optimizer.lr=0.05", of the active configuration, as reload() would. It holds until the next reload
  # or start.

  checkChange @14 (assignment :Text) -> (status :Acknowledgement, change :Text);
  # Dry run of set(), or of reload() if `assignment` is empty: whether it would be accepted now. `change` describes,
  # human-readable, what would differ; nothing changes. For callers that change several daemons or none.

  events @5 (after :UInt64, wait :Bool) -> (json :Text);
  # Events after the event numbered `after`, among the 64 newest of finished checkpoints and the 256 newest others, as
  # JSON. docs/reference/status.md lists the fields. With `wait` the call is parked until there is one. A connection may
  # have one such call outstanding; another one fails.

  replicate @6 (follower :UInt64, primary :UInt64, name :Text, addresses :List(Text), sink :ReplicaSink, records :UInt32, folderTerm :UInt64)
      -> ReplicateResult;
  # The daemon `follower` becomes the standby of this one: `sink` receives the model, and from then on every update,
  # until it or the connection is dropped. `primary`: the number of the daemon that is meant. `name` (human-readable)
  # and `addresses` are the caller's. `records`: the newest log record format that it reads (docs/reference/log_format.md); 0:
  # unknown, from a psd older than PSDLOG2.
  # invalidArgument: no engine is configured here, or the caller does not read this daemon's records. standby: this
  # daemon is not the primary, or is another one. notReady: it has no values yet, or another standby. unavailable: it is
  # about to end. `follower` 0 asks for `daemon` only, and gets notReady. `folderTerm`: of the caller, as in
  # ReplicateResult: two daemons that wait for a dead primary learn which has the newer state.

  switchOver @7 () -> (status :Acknowledgement);
  # Switchover: the standby becomes the primary, and this daemon its standby. The connection then ends, possibly before
  # the answer. notReady: no standby is in sync, or it could not take over. standby: this daemon is not the primary.

  recover @8 () -> (status :Acknowledgement);
  # A daemon that waits for a dead primary takes its place, at the risk of lost updates. invalidArgument: the primary is
  # alive, or this daemon is not waiting. notReady: it has not read the cluster document.

  startMove @11 (move :UInt64, to :List(List(Text)), timeoutMs :UInt64, lead :UInt64, heartbeats :Bool) -> StartMoveResult;
  # Starts a move of the model to the daemons `to`; this daemon notifies each trainer. `move`: a random number, the same
  # at all sources; the lead is called last. A move that is not complete within `timeoutMs` is cancelled. `lead`: the
  # number of the lead's process (MoveTerms); a source that is not the lead asks the lead for the outcome when the
  # caller is lost. `heartbeats`: the caller calls LeavingModel.heartbeat(). notReady: it has no values, or a move is under way.
  # standby: it is not the primary of its replica set.

  moveTerms @13 () -> MoveTermsResult;
  # The requirements for the targets of a move from this daemon.

  arrive @12 (move :UInt64, parts :UInt32, heartbeats :Bool) -> ArriveResult;
  # This daemon is a target of a move from `parts` source daemons. 0: the model is already here and the move may have
  # counted. `heartbeats`: the caller calls ArrivingModel.heartbeat(). invalidArgument: the daemon has a model, or had one that
  # moved away. standby: it is not the primary of its replica set. overloaded (of the data sent later): more than
  # limits.arriving_bytes.

  publish @15 () -> VersionResult;
  # Publishes a version that starts after this call; answered when it exists. Calls that arrive while one is being
  # published share the next. invalidArgument: the configuration has no `publish`. notReady: the model has no values.
  # overloaded: beyond limits.version_bytes. nonFinite: a value is beyond the range of `publish.as`. io: the disk.
  # shuttingDown: the daemon is about to end.

  rollBack @16 (number :UInt64) -> VersionResult;
  # Rebuilds the model and the state of its optimizer as they were at a published version, from checkpoint and log, lets
  # them replace the current ones, and publishes the result as a new version; answered when it exists. Gradients computed
  # from earlier versions are stale from then on. invalidArgument: no `publish`, no `durability`, a model with embedding
  # tables, a version of the moment "live" or of other shards or optimizers, or no checkpoint is left that is not beyond
  # it. notReady: the version does not exist, or another rollback is in progress. io: the disk.

  giveVersion @17 (after :UInt64, sink :ReplicaSink)
      -> (status :Acknowledgement, number :UInt64, newer :UInt64, oldest :UInt64);
  # Sends the file of the oldest published version whose number is above `after` through image() and imageDone() of
  # `sink`, that of ArrivingModel.versionSink(); also before startMove(). `number`: of that version; 0: there is none, and
  # nothing was sent. `newer`: how many newer ones exist. `oldest`: the oldest version that exists. invalidArgument: this
  # daemon publishes no model.

  stop @1 (reason :Text, wait :Bool) -> (status :Acknowledgement);
  # Drains in-flight work, saves if configured, notifies the trainers, exits. Answered when the shutdown has started.
  # With `wait` it is answered right before the connection ends: when everything is saved, or with the error of a failed
  # save.
}
