@0xc7e41f0b92a86d35;
# Published versions of a model, and how programs that train elsewhere publish them. The rules of psd.capnp hold here too.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "status.capnp".Acknowledgement;
using import "status.capnp".Error;

struct PublishedVersion {
  # A version: the bytes of one .safetensors file, whose metadata holds the CRC-32C of each tensor
  # (docs/reference/protocol.md). The same history and number always mean the same bytes.
  number @0 :UInt64;
  history @1 :UInt64;   # random; numbers of different histories cannot be compared
  step @2 :UInt64;      # number of updates that every shard contains, or the step that its publishers gave it
  created @3 :Text;     # UTC, RFC 3339
  moment @4 :Text;      # "live", "snapshot", "round" or "step" (docs/reference/protocol.md)
  bytes @5 :UInt64;     # size of the file
  # Where several daemons publish their parts of a model: this one's index, their number, and a number that the parts of
  # one moment have in common, besides `number`; 0: it is a whole version.
  part @6 :UInt32;
  parts @7 :UInt32;
  momentId @8 :UInt64;
  wholeHistory @9 :UInt64;  # of a part: the history of the whole version; 0: that which the parts' histories make
}

struct VersionsResult {
  union {
    versions @0 :List(PublishedVersion);   # ascending
    error @1 :Error;
  }
}

struct VersionResult {
  union {
    version @0 :PublishedVersion;
    error @1 :Error;
  }
}

struct PatchResult {
  union {
    bytes @0 :UInt64;
    error @1 :Error;
  }
}

struct Freshness {
  # How the versions here compare with those of their source: the daemon that trains the model or stores the weights.
  newest @0 :UInt64;          # number of the newest version here; 0: none
  history @1 :UInt64;         # its history
  sourceNewest @2 :UInt64;    # number of the newest version of the source, as far as it is known here
  sourceHistory @3 :UInt64;
  ageMilliseconds @4 :UInt64;
  # Time since the versions here were last known to be all of the source's. 0: here is the source. 2^40: unknown, as of a
  # replica that has not reached its source since its start.
  path @5 :List(UInt64);      # the daemons from this one to the source, as numbers that each draws at its start
}

struct FreshnessResult {
  union {
    freshness @0 :Freshness;
    error @1 :Error;
  }
}

struct VersionBytesResult {
  union {
    bytes @0 :Data;
    error @1 :Error;
  }
}

interface Publishing {
  # What a caller that may publish versions can do, at a daemon whose configuration has `publish.from` "publishers"
  # (invalidArgument elsewhere). The ranks of a step begin it with what they give; once all have begun, they send the
  # bytes.

  declare @0 (first :Bool, parts :List(VersionPart)) -> (status :Acknowledgement);
  # Adds to the parts that the next begin() of this connection gives; `first`: in place of those declared before.
  # invalidArgument: a part is malformed. overloaded: the parts of all publishers would take more than the daemon holds.

  begin @1 (rank :UInt32, worldSize :UInt32, incarnation :UInt64, step :UInt64) -> BeginVersionResult;
  # The rank gives the declared parts of the step, which count as undeclared then. Parked until all ranks have begun it.
  # A rank may begin a step again, and continues with what has arrived if its parts are the same. `incarnation`: a random
  # number, not 0, that the program draws once; the newest program that begins for a rank takes it over.
  # A connection may have few such calls outstanding (docs/reference/protocol.md).
  # invalidArgument: the step is published with other bytes, is older than the newest version, or the parts of all ranks
  # do not give each element once. worldSizeMismatch, modelMismatch: the ranks disagree. rankTaken: another program has
  # taken over the rank. notReady: other ranks have begun a newer step. deadlineExceeded: not all ranks have begun within
  # publish.parts_timeout_seconds. overloaded: beyond limits.version_bytes. shuttingDown: the daemon is about to end.
}

struct VersionPart {
  # A box of a tensor.
  name @0 :Text;
  dtype @1 :Text;               # as in a .safetensors file: "F8_E4M3"
  shape @2 :List(UInt64);       # of the tensor
  offset @3 :List(UInt64);      # of the box, in elements; as long as `shape`
  extent @4 :List(UInt64);
  checksum @5 :UInt32;          # CRC-32C of the bytes of the box, row-major
}

struct BeginVersionResult {
  union {
    upload :group {
      transfer @0 :VersionUpload;
      sends @1 :List(UInt32);     # indices of the parts whose bytes the rank sends, one after another; ascending
      arrived @2 :UInt64;         # number of these bytes that have arrived
      sliceBytes @3 :UInt64;      # most bytes of a write()
    }
    published @4 :PublishedVersion;   # the step is this version, with the same bytes
    error @5 :Error;
  }
}

interface VersionUpload {
  write @0 (offset :UInt64, bytes :Data) -> (status :Acknowledgement);
  # The next bytes of the parts, from the one with number `offset` on. badSlice: they do not continue what has arrived.
  # io: the bytes of a part do not have its checksum; the rank sends all again. Other errors as of finish().

  finish @1 () -> VersionResult;
  # Parked until all ranks have sent their bytes and the version is durable. A connection may have one such call
  # outstanding; another one fails. deadlineExceeded: no byte has arrived for publish.parts_timeout_seconds; the message
  # names the ranks. notReady: a rank has begun a newer step, or this one with other parts. rankTaken, shuttingDown: as of
  # begin(). io: the disk.
}
