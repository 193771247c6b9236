@0xc7e41f0b92a86d35;
# Published versions of a model. The rules of psd.capnp hold here too.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

using import "status.capnp".Error;

struct PublishedVersion {
  # A version: the bytes of one .safetensors file, whose metadata holds the CRC-32C of each tensor
  # (docs/reference/protocol.md). The same history and number always mean the same bytes.
  number @0 :UInt64;
  history @1 :UInt64;   # random; numbers of different histories cannot be compared
  step @2 :UInt64;      # number of updates that every shard contains
  created @3 :Text;     # UTC, RFC 3339
  moment @4 :Text;      # "live", "snapshot" or "round" (docs/reference/protocol.md)
  bytes @5 :UInt64;     # size of the file
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

struct VersionBytesResult {
  union {
    bytes @0 :Data;
    error @1 :Error;
  }
}
