@0xc46d8e2b915f03a7;
# The outcome of a call: the errors of the protocol. The messages that carry them are in psd.capnp, whose rules hold
# here too.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("psd::schema");

enum ErrorCode {
  # Same list and order as psd::ErrorCode in common/status/status.h.
  invalidArgument @0;
  io @1;
  unavailable @2;
  deadlineExceeded @3;
  protocolMismatch @4;
  modelMismatch @5;
  worldSizeMismatch @6;
  rankTaken @7;
  badSlice @8;
  nonFinite @9;
  notReady @10;
  overloaded @11;
  shuttingDown @12;
  internal @13;
  sessionEnded @14;
  interrupted @15;   # never sent by a daemon
  unauthenticated @16;
  forbidden @17;
  standby @18;       # the daemon serves no trainers: it follows another one, or does not know its role yet
  stale @19;         # what is here is older than the caller accepts; never sent by a daemon
}

struct Error {
  code @0 :ErrorCode;
  message @1 :Text;   # one human-readable line
}

struct Acknowledgement {
  union {
    ok @0 :Void;
    error @1 :Error;
  }
}
