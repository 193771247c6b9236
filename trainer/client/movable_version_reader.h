#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/types/daemon_addresses.h"
#include "trainer/client/api/version_reader.h"
#include "trainer/client/lease_keeper.h"

namespace psd {

/// The newest version that a reader has returned.
struct SeenVersion {
  uint64_t history = 0;  ///< 0: none was returned
  uint64_t number = 0;
};

/// A reader of the versions of a model, as long as the same number of daemons serves it. Thread-safe.
class MovableVersionReader : public VersionReader {
 public:
  /// Where the model has moved to, if this reader cannot follow it: its calls fail. Empty: it has not.
  virtual DaemonAddresses movedTo() = 0;
  virtual SeenVersion seen() = 0;
  /// Later calls fail as those of a reader that has returned this version. Call before the first one.
  virtual void continueFrom(const SeenVersion& seen) = 0;
  /// The leases of pin(), which this reader keeps no longer, and does not end. Its later calls of pin() fail.
  virtual std::vector<HandedLease> handOverPins() = 0;
  /// Keeps leases of another reader as those of pin(). The daemons, to which the model has moved, hold them
  /// for a while.
  virtual Status takeOverPins(const std::vector<HandedLease>& pins) = 0;
};

/// Connects to the first server that answers, and to the daemons that serve the model with that one.
Result<std::shared_ptr<MovableVersionReader>> connectToVersions(const ClientOptions& options,
                                                                const FreshnessBound& bound);

}  // namespace psd
