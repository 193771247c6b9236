@0xb1c7e5d2904fa683;
# The wire between an executor (psd-executor), which computes forward and backward passes over a daemon's parameters, and the
# trainers that have it do so. docs/executor.md tells the story. The RPC protocol is that of psd.capnp: every method answers
# with a status, ok or a typed Error whose code says whether trying again makes sense, beside what it gives; an exception
# means a broken connection or a defect.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "psd.capnp".PushOutcome;
using import "status.capnp".Acknowledgement;

const executorProtocolVersion :UInt32 = 2;
# Raised when an older peer could misread a newer one. Executor.hello compares.

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
  shape @2 :List(UInt64);   # row-major, at most 8 extents; of inputs and outputs the first is the samples
  data @3 :Data;            # the elements, little-endian, without gaps
}

struct Column {
  # What the module takes of each sample.
  name @0 :Text;
  type @1 :ElementType;
  shape @2 :List(UInt64);   # of one sample; 0: any extent
  bound @3 :UInt64;         # of whole numbers: none is negative, and all are below it; 0: not limited
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
  # What a trainer computes of the outputs, where it has no loss of its own: the mean over the samples, of
  # nextToken over all that are predicted.
  kind @0 :LossKind;
  output @1 :Text;          # the output that is compared; empty: the only one
  target @2 :Column;        # what it is compared with, which stays with the trainer
  penalty @3 :Text;         # an output f32, a number for each sample, whose mean is added; empty: none
}

interface Executor {
  # What a connection begins with.

  hello @0 (protocolVersion :UInt32, peer :Text)
      -> (status :Acknowledgement, module :Text, inputs :List(Column), version :Text, silenceMs :UInt32, messageBytes :UInt64,
          loss :Loss, exclusive :Bool, contexts :UInt32, queue :UInt32, tables :Bool);
  # First of all calls. `peer`: what the caller calls itself, for people. `module`: the name of what is executed. `version`: of
  # psd. `silenceMs`: a connection over which nothing comes for so long is closed; keepAlive is something.
  # `messageBytes`: a larger message ends the connection. `loss`: of the module.
  # `exclusive`: a trainer that has a context gets no second one until that ends. `contexts`: that each trainer may have. `queue`: calls
  # that may wait or be computed, of all trainers together. `tables`: the module has embedding tables, so that a step is of one context.
  # Another protocolVersion than the executor's is refused (protocolMismatch).

  join @1 (rank :UInt32, anyRank :Bool, worldSize :UInt32, incarnation :UInt64, rowsAt :List(UInt64))
      -> (status :Acknowledgement, trainer :RemoteTrainer, rank :UInt32, worldSize :UInt32, policy :Text, device :Text, shards :UInt32,
          daemons :List(UInt64));
  # Joins the daemon in the caller's rank and waits until the model has values. With `anyRank` it takes the lowest rank that is
  # free. `worldSize`: 0 for what the daemon says. `incarnation`: drawn once in a trainer's life, not 0; who comes back, at this
  # executor or at another one, gives it again, and no step of it is applied twice. A connection has one session at a time: it may
  # join again after it was refused, or once the session is over. The session ends with the connection, all its contexts with it.
  # `policy`, `device`: for people. `daemons`: random numbers of the processes that serve the model. `rowsAt`: of who comes back and
  # has pushed rows of embedding tables, the `daemons` of its last session: where one of them is there anew without its rows, the join
  # fails (modelMismatch). Empty: it goes on with rows as they begin.

  status @2 () -> (status :Acknowledgement, json :Text);
  # Queue, waits, trainers and their contexts, as docs/executor.md describes.

  keepAlive @3 () -> ();
  # Answered at once, whatever is being computed.
}

interface RemoteTrainer {
  # A trainer's session. A context is what one forward pass has left for its backward pass; its number is the trainer's choice,
  # and free again once step or drop has ended it, or a call of it has failed: while it was computed or pushed, or for want of
  # room (overloaded); gradients that do not fit the outputs are found as they are computed with. A call that does not fit what its
  # context is at leaves it.

  forward @0 (context :UInt64, inputs :List(Tensor), training :Bool, priority :Int8)
      -> (status :Acknowledgement, outputs :List(Tensor), versions :List(UInt64));
  # Computes the outputs of `inputs`, which are the columns that hello told of. With `training` the pass is as in training
  # (dropout), and waits as `context`, which must not be in use, for its backward pass; without, it is as in use, and no context
  # comes of it. `versions`: per shard, then per row shard, of the parameters that it saw. `priority`: higher is sooner, against other calls that wait.

  backward @1 (context :UInt64, outputGradients :List(Tensor), priority :Int8, thenStep :UInt64, samples :UInt32)
      -> (status :Acknowledgement, outcome :PushOutcome, staleness :UInt64);
  # Computes the gradients of the parameters, and of the rows of embedding tables that the forward pass took, from those of the
  # outputs, once per context; outputs that are left out have none.
  # `thenStep` not 0: does what step() does, with that number, in the same call.

  gradients @2 (context :UInt64, names :List(Text)) -> (status :Acknowledgement, gradients :List(Tensor));
  # After backward: the gradients of these parameters and embedding tables, none named: of all, tables last. A table gives two
  # tensors: the gradients of the rows that the forward pass took, f32[rows, dim], by the table's name, and then their ids, i64[rows],
  # by that name and ".ids".

  step @3 (context :UInt64, step :UInt64, samples :UInt32, also :List(UInt64))
      -> (status :Acknowledgement, outcome :PushOutcome, staleness :UInt64);
  # After backward: pushes the gradient as this trainer's step of that number, from 1, which rises from step to step, and ends the
  # context. `samples`: examples behind it. `staleness`: updates that the daemon applied between the parameters of the forward
  # pass and this gradient. A number whose push failed may come again, and one that was pushed in an earlier session too: of a step
  # that it has already the daemon tells what became of it then.
  # `also`: further contexts that have had their backward pass. What is pushed is the sum of their gradients, as one step from the
  # oldest parameters that any of them saw, and all of them end with it. Not for modules with embedding tables.

  drop @4 (context :UInt64) -> (status :Acknowledgement);
  # Ends a context without a step; one that is not there is no error.

  leave @5 () -> (status :Acknowledgement);
  # Says goodbye to the daemon: this trainer is done. Drops all contexts.
}
