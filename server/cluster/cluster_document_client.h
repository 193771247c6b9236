#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kj/async.h>

#include "server/engine/engine.h"
#include "server/replica/cluster_view.h"
#include "server/serving/cluster_document.h"

namespace psd {

/// Reads and swaps the cluster document in the engine. A document whose run is over names no serving daemon,
/// so the next run can start. If the engine loses its data, its revisions restart; those of the views keep
/// rising. Owned by the control loop's thread; its promises do not outlive it.
class ClusterDocumentClient {
 public:
  /// `addresses`: where other daemons reach this one, `me`. `engine` outlives it.
  ClusterDocumentClient(Engine& engine, std::string key, DaemonId me, std::vector<Address> addresses);

  /// The result of a swap, and the document after it.
  struct Outcome {
    bool won = false;
    ClusterView plan;
  };
  /// The current document. An Error: the engine does not answer, or this version of psd cannot parse the
  /// document.
  kj::Promise<Result<ClusterView>> read();
  /// The document, once it differs from the revision last seen here. Errors are those of read().
  kj::Promise<Result<ClusterView>> changed();
  /// Swaps the document as a ReplicaState requests; `standbyAt`: addresses of a standby to add. An Error
  /// means that the outcome is unknown, never that the swap did not happen.
  kj::Promise<Result<Outcome>> swap(uint64_t expectedRevision, const ClusterView& wanted,
                                    const std::vector<Address>& standbyAt);
  /// Records that the model has moved, if the document names this daemon as primary. `unknown`: the record
  /// may exist or may still be written; call again to find out.
  enum class Moving : uint8_t { counts, stays, unknown };
  kj::Promise<Moving> moveAway(RecordedMove moved);
  /// Records that the run is over, whatever the document says meanwhile; does nothing without a document.
  /// Called by the serving daemon. `saved`: it keeps the model on its disk.
  kj::Promise<Status> end(bool saved);

  // The document as last seen:

  /// Whether the recorded run is over, as written by a daemon that served in it.
  bool ended() const { return document_ && document_->ended && !document_->fromFolder(); }
  /// The move to other daemons; null if the model has not moved.
  const RecordedMove* moved() const { return document_ && document_->moved ? &*document_->moved : nullptr; }
  /// Why the last request to the engine gave no valid document; empty if it did.
  std::string trouble() const {
    std::string silent = engine_.trouble();
    return silent.empty() ? trouble_ : silent;
  }
  std::vector<Address> addressesOf(DaemonId daemon) const;
  /// Addresses of all daemons in the document.
  std::vector<Address> addressesOfAll() const;
  /// The primary's address, human-readable.
  std::string primaryAddress() const;
  /// The first address of a daemon in the document, as text.
  std::string addressOf(DaemonId daemon) const;
  const std::string& key() const { return key_; }

 private:
  /// What was known when a request was sent.
  struct Asked {
    uint64_t losses = 0, news = 0;
  };
  Asked asked() const { return {losses_, news_}; }
  Result<ClusterView> take(const Result<Stored>& stored, Asked asked);
  ClusterView view() const;
  Result<ClusterDocument> planFor(const ClusterView& wanted, const std::vector<Address>& standbyAt) const;
  /// Whether no daemon of a run has written a document: there is none, or only a folder's record.
  bool gone() const { return !document_ || document_->fromFolder(); }

  Engine& engine_;
  const std::string key_;
  const DaemonId me_;
  const std::vector<Address> addresses_;
  std::optional<ClusterDocument> document_;
  uint64_t revision_ = 0;
  std::optional<ClusterDocument> last_;  // the newest document of a run that is not over
  uint64_t losses_ = 0;                  // how often the engine lost its data
  uint64_t news_ = 0;                    // how often the revision changed
  uint64_t before_ = 0;                  // offset that keeps revisions above all those before a loss
  std::string trouble_;                  // why the engine's value is no valid document, or is gone
};

}  // namespace psd
