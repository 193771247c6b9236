#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/types/daemon_addresses.h"
#include "common/types/model_spec.h"
#include "common/types/samples.h"
#include "trainer/client/api/client.h"
#include "trainer/client/transport/daemon_connection.h"
#include "trainer/client/transport/session_terms.h"
#include "trainer/client/transport/transports.h"

// Handshakes: how a connection obtains the capabilities to pull and push. Each function makes an agreement
// with the daemon and stores the result in the connection. Called on the connection's event loop, where the
// promises resolve.

namespace psd {

/// Requested codecs of gradients and parameters; empty: the daemon's choice.
struct CodecRequest {
  std::string push, pull;
};

/// A trainer's request to join.
struct JoinRequest {
  Membership membership;
  uint64_t incarnation = 0;  ///< drawn once in a trainer's life
  uint64_t lastDaemon = 0;   ///< JoinAnswer::daemon of the last join; 0: none
  CodecRequest codecs;
  std::vector<HeldSamples> held;  ///< assigned to it by this daemon or a previous one
  bool averages = false;          ///< ClientOptions::averages
  std::string optimizer = {};     ///< ClientOptions::optimizer
  bool bridges = false;           ///< ClientOptions::bridges
  uint64_t move = 0;              ///< number of the move that brought the model here; 0: none
  /// JoinAnswer::sliceElements of the last join: unanswered pushes are resent in the same slices. 0: none.
  uint64_t sliceElements = 0;
};

struct JoinAnswer {
  Rank rank;
  uint32_t worldSize = 0;
  bool mustInitialize = false;
  bool resumed = false;        ///< the previous session continues
  uint64_t daemon = 0;         ///< random number of the daemon's process
  bool resumedState = false;   ///< the daemon resumed from saved state
  uint64_t term = 0;           ///< term in which it is the primary; 0: it has no replica set
  uint64_t sliceElements = 0;  ///< size at which slices of tensors are cut
};

/// The result of an accepted join or observe.
struct Admission {
  JoinAnswer answer;  ///< of a trainer
  ModelSpec model;    ///< of a reader: the daemon's model
  SessionTerms terms;
  TransportOffer offer;
};

/// A daemon's answer to a login. A value type.
struct DaemonIdentity {
  std::string version;
  /// The addresses of each daemon that serves the model, by partition, including this one; empty where this
  /// daemon serves the whole model.
  DaemonAddresses daemons;
  uint32_t index = 0;  ///< of this daemon among them
  /// The addresses of each daemon that serves the model since it moved away from this one, by partition;
  /// empty: it has not moved.
  DaemonAddresses movedTo;
  uint64_t move = 0;  ///< number of that move
};

/// Agrees on the protocol, and presents the program and the token, which outlive the call; empty: none.
kj::Promise<Result<DaemonIdentity>> logIn(DaemonConnection& connection, const std::string& program,
                                          const std::string& token);
/// ClientOptions::program, or what stands for it.
std::string programOf(const ClientOptions& options);
/// `chunkBytes`: largest slice.
kj::Promise<Result<Admission>> joinAs(DaemonConnection& connection, const JoinRequest& request,
                                      const ModelSpec& model, uint64_t chunkBytes);
/// Parses an answer to formAveragingGroup(); protocolMismatch if it is invalid.
Result<FormedGroup> readGroup(schema::GroupResult::Reader answer);
/// For a further connection of the trainer that has joined on these terms.
kj::Promise<Status> attachTo(DaemonConnection& connection, const SessionTerms& terms);
/// An empty model matches any. `pullCodec`: requested; empty: float32.
kj::Promise<Result<Admission>> observeAs(DaemonConnection& connection, const ModelSpec& model,
                                         const std::string& pullCodec, uint64_t chunkBytes);

}  // namespace psd
