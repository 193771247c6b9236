#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <kj/async.h>

#include "common/budget/byte_budget.h"
#include "server/publish/part_assembly.h"
#include "server/publish/publish_config.h"
#include "server/publish/publish_outcomes.h"
#include "server/publish/publisher_fences.h"
#include "server/publish/version_store.h"

namespace psd {

/// Takes versions from programs that train elsewhere, and hands them to a VersionStore. All ranks of a step
/// begin with what they give; once the last one has, the memory for the version is taken, and they send the
/// bytes. A set of parts that does not become whole is abandoned: its ranks get an error. At most one step is
/// assembled, while the one before it may still be written. Its thread checks, allocates and writes.
/// Thread-safe; outlives its Uploads.
class PartsIntake {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Clock = std::function<Time()>;

  struct Terms {
    std::chrono::seconds timeout{60};
    uint32_t ranksMax = 1;  ///< largest world size
  };
  /// What a rank gives of a step.
  struct Request {
    uint32_t rank = 0, worldSize = 1;
    uint64_t incarnation = 0;  ///< of the publisher's process; not 0
    uint64_t step = 0;
    std::vector<VersionPart> parts;
    std::vector<ByteBudget::Lease> room{};  ///< of declarations(), for the parts
  };

  class Step;
  /// A rank's transfer of the bytes of a step. Any one thread at a time.
  class Upload {
   public:
    Upload(PartsIntake& intake, std::shared_ptr<Step> step, uint32_t rank, uint64_t turn,
           uint64_t incarnation)
        : intake_(intake), step_(std::move(step)), rank_(rank), turn_(turn), incarnation_(incarnation) {}
    /// Indices of the parts to send, one after another, and how many of their bytes have arrived already.
    std::vector<uint32_t> sends() const;
    uint64_t arrived() const;
    /// PartAssembly::write(), or why the step has ended.
    Status write(uint64_t offset, std::span<const std::byte> bytes);
    /// Resolves with the version once it is durable.
    kj::Promise<Result<VersionInfo>> finish();

   private:
    /// The intake's mutex is held. An Error if the step has ended, or another upload has replaced this one.
    Status mayGoOn() const;

    PartsIntake& intake_;
    const std::shared_ptr<Step> step_;
    const uint32_t rank_;
    const uint64_t turn_, incarnation_;
  };
  /// One of the two.
  struct Begun {
    std::optional<VersionInfo> published;  ///< the step is this version already
    std::shared_ptr<Upload> upload;
  };

  /// `path`: the folder of the versions, for the status; empty: they are in memory.
  PartsIntake(std::shared_ptr<VersionStore> versions, Terms terms, std::string path,
              Clock clock = &std::chrono::steady_clock::now);
  /// Ends as finish() does.
  ~PartsIntake();

  /// Budget of the bytes of the parts that all publishers together may declare.
  const std::shared_ptr<ByteBudget>& declarations() const { return declarations_; }
  /// A rank begins a step, also again. Resolves once all ranks have. Errors: invalidArgument: the request is
  /// malformed, the step is published with other bytes or is older than the newest version, or the parts do
  /// not fit together; worldSizeMismatch and modelMismatch: other ranks disagree; rankTaken: a newer process
  /// has the rank; notReady: ranks have begun a newer step; deadlineExceeded: Terms::timeout; overloaded.
  kj::Promise<Result<Begun>> begin(Request request);
  void follow(Terms terms);
  /// Waits for a version that is being written, and fails all calls (shuttingDown). Blocks. Idempotent.
  void finish();

  VersionStore& versions() { return *versions_; }
  PublishStatus status() const;
  /// One line for each step that was abandoned since the previous call.
  std::vector<std::string> takeAbandoned();

 private:
  using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<Result<Begun>>>;
  /// A request for a step that may be a version already.
  struct Repeated {
    Request request;
    Fulfiller answer;
  };

  /// Whether the request is well-formed.
  Status check(const Request& request) const;
  // The mutex is held:
  /// Adds the request to a step; an Error if it is refused.
  std::optional<Error> joinCurrent(Request& request, Fulfiller& answer);
  std::optional<Error> joinWriting(const Request& request, Fulfiller& answer);
  /// Abandons the current step if its time is over.
  void expire();
  void abandon(ErrorCode code, const std::string& why);
  // On the thread; the lock is released meanwhile:
  void run();
  void answerRepeated(std::unique_lock<std::mutex>& hold);
  void plan(std::unique_lock<std::mutex>& hold);
  void write(std::unique_lock<std::mutex>& hold);

  const std::shared_ptr<VersionStore> versions_;
  const std::string path_;
  const Clock clock_;
  const std::shared_ptr<ByteBudget> declarations_;
  std::atomic<uint64_t> receivedBytes_{0};

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  Terms terms_;
  PublisherFences fences_;
  std::shared_ptr<Step> current_;  // null: none
  std::shared_ptr<Step> writing_;  // that the thread writes; null: none
  std::deque<Repeated> repeated_;
  PublishOutcomes outcomes_;
  uint64_t abandoned_ = 0;
  std::vector<std::string> abandonedLines_;
  bool ending_ = false;

  // Of the thread: memory of the version that was written last, whose pages the next one need not fault in.
  PartAssembly::Memory spare_;
  std::chrono::steady_clock::time_point spareSince_;

  std::thread thread_;  // last: it uses all members above
};

}  // namespace psd
