#pragma once

#include <cstdint>
#include <optional>

#include "common/types/daemon_id.h"
#include "server/serving/cluster_document.h"

namespace psd {

/// A run that is over, as recorded in the cluster document. A value type.
struct EndedRun {
  uint64_t term = 0;                                ///< the last term
  DaemonId primary;                                 ///< the primary of that term
  std::optional<DaemonId> standby;                  ///< also held every answered push, if there was one
  bool saved = true;                                ///< the primary has the model on its disk
  DocumentSource source = DocumentSource::daemons;  ///< else: from a folder's record, without a document
  bool operator==(const EndedRun&) const = default;
  bool guessed() const { return source != DocumentSource::daemons; }
};

/// The contents of the cluster document: which daemon serves, or that there is no document. A value type.
struct ClusterView {
  uint64_t revision = 0;  ///< of the document: rises with every swap, and when the document is found gone;
                          ///< 0: none was seen yet
  uint64_t term = 0;      ///< the primary's term: starts at 1, rises by one with every takeover
  DaemonId primary;       ///< answers pushes; none: there is no document
  std::optional<DaemonId>
      standby;  ///< holds all answered pushes and may take over; none: the primary is alone
  std::optional<EndedRun> ended = {};  ///< set if the run is over
  bool operator==(const ClusterView&) const = default;
  /// Whether no daemon serves: there is no document, or its run is over.
  bool vacant() const { return primary == DaemonId{}; }
  /// Whether both have the same content, apart from the revision.
  bool sameGroup(const ClusterView& other) const {
    return term == other.term && primary == other.primary && standby == other.standby && ended == other.ended;
  }
};

}  // namespace psd
