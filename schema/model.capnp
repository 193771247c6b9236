@0xb7c0e1f52a9d4836;
# What a model is: its tensors and tables, how their parts lie in shards, and how trainers step where they do so by themselves.
# The messages that carry it are in psd.capnp, whose rules hold here too.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

enum DType { f32 @0; }

struct TensorSpec {
  name @0 :Text;
  dtype @1 :DType;
  shape @2 :List(UInt64);   # row-major
}

struct RowInitial {
  # What an embedding table's row holds before the first push that touches it: a function of its id alone, which
  # psd::RowInitial in common/types/row_initial.h computes.
  enum Kind {
    zero @0;
    uniform @1;   # from -scale to scale
    normal @2;    # with the deviation `scale`
  }
  kind @0 :Kind;
  scale @1 :Float32;
  seed @2 :UInt64;
}

struct TableSpec {
  # An embedding table: rows of `dim` float32, from 1 to 4,096, by id. Every UInt64 is an id.
  name @0 :Text;
  dim @1 :UInt32;
  initial @2 :RowInitial;
}

struct ModelSpec {
  name @0 :Text;
  tensors @1 :List(TensorSpec);   # in arena order
  signature @2 :UInt64;           # psd::ModelSpec::signature() as the sender computes it
  tables @3 :List(TableSpec);
  partition @4 :UInt32;    # of a model that several daemons serve, which partition this is, and of how many; docs/protocol.md
  partitions @5 :UInt32;   # tells what is in each. 0 and 1: the model is whole
  whole @6 :List(TensorSpec);   # of a partition, the tensors of the whole model. Empty: not told, for which a daemon with LocalSteps.fragments
                                # refuses the partition
}

struct ShardRange {
  begin @0 :UInt64;   # first element in the arena
  count @1 :UInt64;   # elements; never 0
}

struct RowShard {
  # The rows of some tables whose ids' hashes lie in a range. psd::rowHash in common/types/row_hash.h is the hash.
  hashFirst @0 :UInt64;
  hashLast @1 :UInt64;         # in the range
  tables @2 :List(UInt32);     # indices into ModelSpec.tables
}

struct RowRun {
  # So many ids, one after the other in a list of ids, are of one table.
  table @0 :UInt32;   # index into ModelSpec.tables
  count @1 :UInt32;   # never 0
}

struct InnerOptimizer {
  # What trainers run in steps of their own; algorithms are LibTorch's. Fields of another type mean nothing.
  type @0 :Type;
  rate @1 :Float64;          # full learning rate, not negative
  weightDecay @2 :Float64;   # not negative
  momentum @3 :Float64;      # sgd: 0 to below 1
  nesterov @4 :Bool;         # sgd
  beta1 @5 :Float64;         # adam, adamw: 0 to below 1, like beta2
  beta2 @6 :Float64;
  eps @7 :Float64;           # adam, adamw
  warmupSteps @8 :UInt64;    # the rate rises linearly over so many steps of the run
  totalSteps @9 :UInt64;     # then it falls by a cosine to rateMin at this step of the run; 0: it stays
  rateMin @10 :Float64;

  enum Type {
    sgd @0;
    adam @1;
    adamw @2;
  }
}

struct LocalSteps {
  # Trainers take `period` steps by themselves, of plain SGD unless `inner` is set, then push once. They push this in place of a
  # gradient:
  # - alpha 0 (local SGD): the parameters pulled before those steps, less the parameters after them. The next steps
  #   begin with freshly pulled ones.
  # - else (EASGD): freshly pulled parameters w~ less the trainer's own parameters w. Then w becomes
  #   w + alpha (w~ - w), from which the next steps begin.
  period @0 :UInt64;   # at least 1
  rate @1 :Float64;    # learning rate of the trainer's own steps
  alpha @2 :Float64;   # how far EASGD moves w towards w~; 0: local SGD
  # DiLoCo: what the steps are of; `rate` then means nothing. Step s, from 1, after a pull of version v of the first shard is step
  # v * period / arrivals + s of the run, which is what the rate goes by.
  inner @3 :InnerOptimizer;
  endsEarly @4 :Bool;   # rounds close after a grace: Trainer.roundDue tells, and the trainer pushes the steps that it has taken
  # Streaming DiLoCo: ModelAccess.fragmentOfShard tells which of so many fragments a shard is of; 0 and 1: all are exchanged together.
  # Each fragment has rounds of its own. The slot k of a run, from 0, is of fragment f = k mod P in its round floor(k / P), and ends with
  # step round * period + floor((f + 1) * period / P) of the run, when the trainer pushes that fragment. The slot that a trainer is
  # in is the first of which it has not pushed the fragment, by the versions that it has of all; of several daemons by that of the first
  # one that has a part of it.
  fragments @5 :UInt32;
  ofGroups @10 :Bool;   # fragments are the groups of the daemon's configuration, and not what any trainer makes of the model's tensors
  delay @6 :UInt32;     # steps that go on between a push and taking over what came of it
  blend @7 :Float64;    # then w becomes blend * w + (1 - blend) * what was pulled; from 0 to below 1
  arrivals @9 :UInt32;  # updates that are a round of the run; 0 and 1: each is. More where each push is an update by itself
  deltas @8 :Text;      # not empty: Reader.pull can give what has changed since a pull before, as the codec of this name writes it
}

struct AllReduce {
  # Trainers average the gradients of all tensors among themselves. The first one of a group pushes the average, pulls what the
  # daemon makes of it, and hands that on to the others.
  timeoutMs @0 :UInt64;     # after which a group without one of its members goes on; at least 1
  bucketBytes @1 :UInt64;   # of gradient in one call to average; at least 4
}
