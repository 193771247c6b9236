@0xb1c7e5d2904fa683;
# The protocol between an executor (psd-executor), which computes forward and backward passes over a daemon's
# parameters, and its trainers. docs/guides/executor.md explains it. The RPC rules are those of psd.capnp: beside its result,
# every method returns a status, which is ok or a typed Error whose code says whether a retry can succeed. An exception
# means a broken connection or a defect.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "psd.capnp".PushOutcome;
using import "status.capnp".Acknowledgement;

const executorProtocolVersion :UInt32 = 2;
# Raised when an older peer could misread a newer one. Executor.hello compares the versions.

enum ElementType {
  # In the order of psd::ElementType in trainer/task/batch.h.
  f32 @0;
  f64 @1;
  i32 @2;
  i64 @3;
  u8 @4;
}

struct Tensor {
  name @0 :Text;            # 1 to 200 bytes
  type @1 :ElementType;
  shape @2 :List(UInt64);   # row-major, at most 8 extents; the first extent of inputs and outputs counts samples
  data @3 :Data;            # little-endian, contiguous
}

struct Column {
  # One input of the module, per sample.
  name @0 :Text;
  type @1 :ElementType;
  shape @2 :List(UInt64);   # of one sample; 0: any extent
  bound @3 :UInt64;         # for integer types: every value is in [0, bound); 0: unlimited
}

enum LossKind {
  # In the order of psd::LossKind in trainer/task/loss_spec.h.
  crossEntropy @0;
  squaredError @1;
  binaryCrossEntropy @2;
  hinge @3;
  nextToken @4;
}

struct Loss {
  # The loss that a trainer without a loss of its own computes from the outputs: the mean over the samples; for
  # nextToken over all predicted tokens.
  kind @0 :LossKind;
  output @1 :Text;          # output to compare; empty: the only output
  target @2 :Column;        # what the output is compared with; stays at the trainer
  penalty @3 :Text;         # name of an f32 output with one value per sample whose mean is added to the loss; empty: none
}

interface Executor {
  # The first interface of a connection.

  hello @0 (protocolVersion :UInt32, peer :Text)
      -> (status :Acknowledgement, module :Text, inputs :List(Column), version :Text, idleTimeoutMs :UInt32, messageBytes :UInt64,
          loss :Loss, exclusive :Bool, contexts :UInt32, queue :UInt32, tables :Bool);
  # Must be the first call. `peer`: the caller's human-readable name. `module`: name of the module. `version`: of psd.
  # `idleTimeoutMs`: the executor closes a connection on which it receives no call, keepAlive included, for that long.
  # `messageBytes`: a larger message ends the connection. `loss`: of the module. `exclusive`: a trainer may have only
  # one context at a time. `contexts`: limit per trainer. `queue`: limit on calls that wait or run, over all trainers.
  # `tables`: the module has embedding tables, so a step covers one context. A protocolVersion other than the executor's
  # is refused (protocolMismatch).

  join @1 (rank :UInt32, anyRank :Bool, worldSize :UInt32, incarnation :UInt64, rowsAt :List(UInt64))
      -> (status :Acknowledgement, trainer :RemoteTrainer, rank :UInt32, worldSize :UInt32, policy :Text, device :Text, shards :UInt32,
          daemons :List(UInt64));
  # Joins the daemon with the caller's rank and waits until the model has values. `anyRank`: takes the lowest free rank.
  # `worldSize`: 0 for the daemon's. `incarnation`: drawn once in a trainer's life, not 0; a trainer that rejoins, at
  # this executor or another, sends it again, and none of its steps is applied twice. A connection has one session at a
  # time: it may join again after a rejection or after the session has ended. The session and all its contexts end with
  # the connection. `policy`, `device`: human-readable. `daemons`: random numbers of the processes that serve the model.
  # `rowsAt`: from a trainer that rejoins and has pushed rows of embedding tables, the `daemons` of its last session; if
  # one of them was replaced by a process without its rows, the join fails (modelMismatch). Empty: rows that are lost
  # start from their initial values.

  status @2 () -> (status :Acknowledgement, json :Text);
  # Queue, waits, trainers and their contexts; docs/guides/executor.md describes the JSON.

  keepAlive @3 () -> ();
  # Answered at once, also while a computation runs.
}

interface RemoteTrainer {
  # A trainer's session. A context is what a forward pass keeps for its backward pass. The trainer chooses its number,
  # which is free again after step or drop ended the context, or after a call on it failed in computation, in the push,
  # or for lack of memory (overloaded). Gradients that do not match the outputs are detected during the computation. A
  # call that does not match the context's state leaves the context unchanged.

  forward @0 (context :UInt64, inputs :List(Tensor), training :Bool, priority :Int8)
      -> (status :Acknowledgement, outputs :List(Tensor), versions :List(UInt64));
  # Computes the outputs of `inputs`, the columns that hello returned. With `training` the pass runs in training mode
  # (dropout) and is kept as `context`, which must not be in use, for its backward pass; otherwise it runs in evaluation
  # mode and creates no context. `versions`: of the parameters used, per shard, then per row shard. `priority`: among
  # waiting calls the higher runs sooner.

  backward @1 (context :UInt64, outputGradients :List(Tensor), priority :Int8, thenStep :UInt64, samples :UInt32)
      -> (status :Acknowledgement, outcome :PushOutcome, staleness :UInt64);
  # Computes the gradients of the parameters, and of the embedding rows that the forward pass used, from the gradients
  # of the outputs; once per context. Omitted outputs have zero gradient. `thenStep` not 0: also does what step() does,
  # with that number.

  gradients @2 (context :UInt64, names :List(Text)) -> (status :Acknowledgement, gradients :List(Tensor));
  # After backward: the gradients of the named parameters and embedding tables; no names: all of them, tables last. A
  # table gives two tensors: under its name the gradients of the rows that the forward pass used, f32[rows, dim]; under
  # its name with the suffix ".ids" their ids, i64[rows].

  step @3 (context :UInt64, step :UInt64, samples :UInt32, also :List(UInt64))
      -> (status :Acknowledgement, outcome :PushOutcome, staleness :UInt64);
  # After backward: pushes the gradient as step number `step` of this trainer (from 1, increasing) and ends the context.
  # `samples`: examples behind the gradient. `staleness`: updates that the daemon applied between the parameters of the
  # forward pass and this gradient. A number whose push failed may be sent again, also one that was pushed in an earlier
  # session: if the daemon already has that step, it answers with the recorded outcome. `also`: further contexts that
  # had their backward pass. The sum of their gradients is pushed as one step whose basis is the oldest parameters that
  # any of them used, and all of them end with it. Not for modules with embedding tables.

  drop @4 (context :UInt64) -> (status :Acknowledgement);
  # Ends a context without a step. An unknown context is no error.

  leave @5 () -> (status :Acknowledgement);
  # Leaves the daemon: this trainer is done. Drops all contexts.
}
