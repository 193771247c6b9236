#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/os/address.h"
#include "common/status/status.h"
#include "common/types/daemon_id.h"
#include "server/serving/move_record.h"

namespace psd {

/// Identifies a daemon process: a random number drawn at its start, never 0. A daemon that was restarted, or
/// has discarded its state, has another number.
using DaemonId = StrongId<struct DaemonIdTag, uint64_t>;

inline constexpr size_t kDocumentDaemonsMax = 1024;
inline constexpr size_t kDocumentAddressesMax = 16;  ///< per daemon

/// A replica set: the primary and, if there is one, its standby. A value type.
struct ReplicaSet {
  uint64_t term = 1;                ///< term of the primary: rises by one with every takeover
  DaemonId primary;                 ///< the daemon that serves
  std::optional<DaemonId> standby;  ///< holds everything that was answered; may become primary
  uint64_t history = 0;  ///< identifies the primary's record sequence, never 0: new with each primary
  bool operator==(const ReplicaSet&) const = default;
};

/// Who wrote a document. Only replicas decide; any other daemon only publishes its folder's record.
enum class DocumentSource : uint8_t {
  daemons,        ///< a daemon that serves or takes over
  primaryFolder,  ///< there was no document: a daemon whose folder has the state of a primary
  standbyFolder,  ///< the same, of a standby
};

/// The cluster document: names the daemons that serve a model, or one partition of it. It is only ever
/// replaced as a whole (compare-and-swap). A value type.
struct ClusterDocument {
  uint64_t proposal = 0;  ///< random, drawn by the writer, never 0: makes every document unique
  ReplicaSet group;
  std::map<DaemonId, std::vector<Address>> daemons;  ///< addresses of the replicas, and perhaps of others
  bool ended = false;                                ///< the run is over: no daemon serves it
  bool saved = true;  ///< if ended: the last primary keeps the model on its disk
  DocumentSource source =
      DocumentSource::daemons;             ///< if not `daemons`: `ended` is set and the document is a guess
  std::optional<RecordedMove> moved = {};  ///< the run is over only here: other daemons serve the model
  bool operator==(const ClusterDocument&) const = default;
  bool fromFolder() const { return source != DocumentSource::daemons; }
};

/// Checks consistency. Errors name the place by its path in the document (plan_json.h).
Status validateDocument(const ClusterDocument& plan);

// Changes. Each takes a valid document and returns one; whether the caller may make the change is not
// checked. invalidArgument: the change does not apply to that document.

/// Makes `daemon`, whose addresses the document has, the primary of the next term, with a new history and no
/// standby. A previous primary or standby that is neither now is dropped from `daemons`.
Result<ClusterDocument> withPrimary(ClusterDocument plan, DaemonId daemon, uint64_t history,
                                    uint64_t proposal);
/// Adds `daemon` as standby; there must be none yet.
Result<ClusterDocument> withStandby(ClusterDocument plan, DaemonId daemon, std::vector<Address> addresses,
                                    uint64_t proposal);
/// Ends the run here: other daemons serve the model.
Result<ClusterDocument> withMove(ClusterDocument plan, RecordedMove moved, uint64_t proposal);
/// Removes the standby, which is dropped from `daemons` as above.
Result<ClusterDocument> withoutStandby(ClusterDocument plan, uint64_t proposal);

}  // namespace psd
