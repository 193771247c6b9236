@0xb7c0e1f52a9d4836;
# The model: its tensors and tables, the shards, and the steps of optimizers. The messages that carry it are in
# psd.capnp, whose rules hold here too.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

enum DType {
  # Of the elements of a tensor as values and gradients travel. The daemon computes with float32.
  f32 @0;
  bf16 @1;   # bfloat16
  f16 @2;    # IEEE 754 binary16
}

struct TensorSpec {
  name @0 :Text;
  dtype @1 :DType;
  shape @2 :List(UInt64);   # row-major
}

struct RowInitial {
  # The value of an embedding row before the first push that touches it: a function of its id alone, which
  # psd::RowInitial in common/types/row_initial.h computes.
  enum Kind {
    zero @0;
    uniform @1;   # from -scale to scale
    normal @2;    # with standard deviation `scale`
  }
  kind @0 :Kind;
  scale @1 :Float32;
  seed @2 :UInt64;
}

struct TableSpec {
  # An embedding table: rows of `dim` float32, 1 to 4,096, by id. Every UInt64 is a valid id.
  name @0 :Text;
  dim @1 :UInt32;
  initial @2 :RowInitial;
}

struct ModelSpec {
  name @0 :Text;
  tensors @1 :List(TensorSpec);   # in arena order
  signature @2 :UInt64;           # psd::ModelSpec::signature() as the sender computes it
  tables @3 :List(TableSpec);
  partition @4 :UInt32;    # when several daemons serve the model: index of this partition; docs/reference/protocol.md says what it
                           # holds
  partitions @5 :UInt32;   # number of partitions; 0 and 1: the model is whole
  whole @6 :List(TensorSpec);   # of a partition: the tensors of the whole model. Empty: unknown; a daemon with
                                # LocalSteps.fragments refuses such a partition
}

struct ShardRange {
  begin @0 :UInt64;   # first element in the arena
  count @1 :UInt64;   # elements, all of one dtype; never 0
}

struct RowShard {
  # The rows of some tables whose id hashes lie in a range. The hash is psd::rowHash in common/types/row_hash.h.
  hashFirst @0 :UInt64;
  hashLast @1 :UInt64;         # inclusive
  tables @2 :List(UInt32);     # indices into ModelSpec.tables
}

struct RowRun {
  # `count` consecutive ids in a list of ids belong to one table.
  table @0 :UInt32;   # index into ModelSpec.tables
  count @1 :UInt32;   # never 0
}

struct InnerOptimizer {
  # The optimizer of the trainers' local steps; the algorithms are LibTorch's. Fields of another type are ignored.
  type @0 :Type;
  rate @1 :Float64;          # full learning rate, not negative
  weightDecay @2 :Float64;   # not negative
  momentum @3 :Float64;      # sgd: 0 to below 1
  nesterov @4 :Bool;         # sgd
  beta1 @5 :Float64;         # adam, adamw: 0 to below 1, like beta2
  beta2 @6 :Float64;
  eps @7 :Float64;           # adam, adamw
  warmupSteps @8 :UInt64;    # of the run; the rate rises linearly over them
  totalSteps @9 :UInt64;     # step of the run at which a cosine decay ends at rateMin; 0: no decay
  rateMin @10 :Float64;

  enum Type {
    sgd @0;
    adam @1;
    adamw @2;
  }
}

struct LocalSteps {
  # Trainers take `period` local steps, of plain SGD unless `inner` is set, then push once. In place of a gradient they
  # push:
  # - alpha 0 (local SGD): the parameters pulled before those steps minus the parameters after them. The next steps
  #   start from freshly pulled ones.
  # - else (EASGD): freshly pulled parameters w~ minus the trainer's own parameters w. Then w becomes
  #   w + alpha (w~ - w), from which the next steps start.
  period @0 :UInt64;   # at least 1
  rate @1 :Float64;    # learning rate of the local steps
  alpha @2 :Float64;   # how far EASGD moves w towards w~; 0: local SGD
  # DiLoCo: the optimizer of the local steps; `rate` is then ignored. Step s (from 1) after a pull of version v of the
  # first shard is step v * period / updatesPerRound + s of the run, which determines the learning rate.
  inner @3 :InnerOptimizer;
  endsEarly @4 :Bool;   # rounds close after a grace: Trainer.roundDue notifies the trainer, which pushes the steps taken so
                        # far
  # Streaming DiLoCo: number of fragments; ModelAccess.fragmentOfShard assigns each shard to one. 0 and 1: all shards
  # are exchanged together. Each fragment has its own rounds. Slot k of a run (from 0) belongs to fragment f = k mod P
  # in its round floor(k / P). It ends with step round * period + floor((f + 1) * period / P) of the run, when the
  # trainer pushes that fragment. A trainer's current slot is the first whose fragment it has not pushed, by the
  # versions of all fragments; when several daemons serve a fragment, the first one that has a part of it decides.
  fragments @5 :UInt32;
  fragmentPerGroup @10 :Bool;   # fragments are the parameter groups of the daemon's configuration, not derived from the model's
                        # tensors
  delay @6 :UInt32;     # local steps between a push and adopting its result
  blend @7 :Float64;    # then w becomes blend * w + (1 - blend) * pulled values; in [0, 1)
  updatesPerRound @9 :UInt32;  # updates per round of the run; 0 and 1: one. More where each push is an update of its own
  deltas @8 :Text;      # codec of the differences that Reader.pull can return in place of values; empty: none
}

struct AllReduce {
  # Trainers average the gradients of all tensors among themselves. The first member of an averaging group pushes the
  # average, pulls the updated values from the daemon and passes them to the others.
  timeoutMs @0 :UInt64;     # after which the group continues without a missing member; at least 1
  bucketBytes @1 :UInt64;   # of gradient per averaging call; at least 4
}

struct Hyperparameters {
  # Hyperparameters of an optimizer step, by runs of consecutive elements of a shard or, of a row shard, of the model's
  # tables. Only where ModelAccess.takesHyperparameters.
  values @0 :List(Float64);   # of the sets, one set after the other. A set: the learning rate, then each option of the
                              # optimizer that is a number, in the order of docs/reference/configuration.md; betas count as two
  setSize @1 :UInt32;         # values of each set
  runs @2 :List(Run);         # cover the shard, or all tables; at most one for each tensor or table, at least one for
                              # each set

  struct Run {
    end @0 :UInt64;   # the element or table after the run, which starts where the previous one ends; a multiple of 16
                      # elements, except the last
    set @1 :UInt32;   # index of its set
    steps @2 :Bool = true;   # false: the elements have no gradient and take no step; under a policy with rounds, the
                             # gradient counts as zero
  }
}
