#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/types/daemon_places.h"
#include "common/types/model_spec.h"
#include "common/types/samples.h"
#include "trainer/client/client.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/session_terms.h"
#include "trainer/client/transport/transports.h"

// How a connection comes to what can be pulled and pushed over it: each agrees with the daemon, and has the
// connection hold what it gave. All are called on the connection's event loop, and resolve there.

namespace psd {

/// How gradients and parameters are to travel; empty: as the daemon says.
struct CodecRequest {
  std::string push, pull;
};

/// How a trainer asks to be let in.
struct JoinRequest {
  Membership membership;
  uint64_t incarnation = 0;  ///< drawn once in a trainer's life
  uint64_t lastDaemon = 0;   ///< JoinAnswer::daemon of the last join; 0: none
  CodecRequest codecs;
  std::vector<HeldSamples> held;  ///< dealt to it by this daemon or one before
  bool averages = false;          ///< ClientOptions::averages
  bool bridges = false;           ///< ClientOptions::bridges
  uint64_t move = 0;              ///< by which the model came here from others, that told of it; 0: none
  /// JoinAnswer::sliceElements of the last join: what was not answered comes again in the same slices. 0:
  /// none.
  uint64_t sliceElements = 0;
};

struct JoinAnswer {
  Rank rank;
  uint32_t worldSize = 0;
  bool mustInitialize = false;
  bool resumed = false;        ///< the session from before goes on
  uint64_t daemon = 0;         ///< which process the daemon is
  bool goesOn = false;         ///< with what a daemon before it had saved
  uint64_t epoch = 0;          ///< in which it is the primary of its group; 0: it has none
  uint64_t sliceElements = 0;  ///< that slices of tensors are cut at
};

/// A daemon that lets a trainer in, or look.
struct Admission {
  JoinAnswer answer;  ///< of a trainer
  ModelSpec model;    ///< as an observer was told
  SessionTerms terms;
  TransportOffer offer;
};

/// What a daemon says of itself at a login. A value type.
struct DaemonIdentity {
  std::string version;
  /// The addresses of each daemon that serves the model together with this one, by partition, this one among
  /// them; empty where this one serves its model alone.
  DaemonPlaces daemons;
  uint32_t index = 0;  ///< of them, which one this is
  /// The addresses of each daemon that serves the model since it moved away from this one, by partition;
  /// empty: it did not.
  DaemonPlaces movedTo;
  uint64_t move = 0;  ///< the number of that move
};

/// Agrees on the protocol, and shows the daemon the token, which outlives the call; empty: none.
kj::Promise<Result<DaemonIdentity>> logIn(DaemonConnection& connection, const std::string& token);
/// `chunkBytes`: of a slice, at most.
kj::Promise<Result<Admission>> joinAs(DaemonConnection& connection, const JoinRequest& request,
                                      const ModelSpec& model, uint64_t chunkBytes);
/// What an answer to formGroup() tells; protocolMismatch where that makes no sense.
Result<FormedGroup> readGroup(schema::GroupResult::Reader answer);
/// For a further connection of the trainer that has joined on these terms.
kj::Promise<Status> attachTo(DaemonConnection& connection, const SessionTerms& terms);
/// An empty model matches any.
kj::Promise<Result<Admission>> observeAs(DaemonConnection& connection, const ModelSpec& model,
                                         uint64_t chunkBytes);

}  // namespace psd
