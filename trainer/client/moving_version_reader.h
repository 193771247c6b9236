#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/client/movable_version_reader.h"

namespace psd {

/// A reader that continues where its model has moved to, whatever the number of daemons that serve it there.
/// Thread-safe.
class MovingVersionReader final : public VersionReader {
 public:
  static Result<std::unique_ptr<VersionReader>> connect(const ClientOptions& options,
                                                        const FreshnessBound& bound);

  Result<std::vector<PublishedVersion>> versions() override;
  Result<VersionFreshness> freshness() override;
  Result<PublishedVersion> waitFor(uint64_t number,
                                   std::optional<std::chrono::milliseconds> timeout) override;
  Result<FetchedVersion> fetch(uint64_t number, const FetchedVersion* base) override;
  Result<uint64_t> pin(uint64_t number, std::chrono::seconds time) override;
  Status unpin(uint64_t lease) override;
  void interrupt() override;
  std::string server() const override { return reader()->server(); }

 private:
  MovingVersionReader(ClientOptions options, const FreshnessBound& bound);

  std::shared_ptr<MovableVersionReader> reader() const {
    const std::lock_guard hold(mutex_);
    return reader_;
  }
  /// Runs `call(reader)`; once more where the model has moved meanwhile.
  template <class Answer, class Call>
  Answer run(const Call& call) {
    for (size_t moves = 0;; moves++) {
      const std::shared_ptr<MovableVersionReader> used = reader();
      Answer answer = call(*used);
      if (answer.ok() || moves == kMovesInARowMax) return answer;
      const DaemonAddresses to = used->movedTo();
      if (to.empty()) return answer;
      PSD_RETURN_IF_ERROR(follow(*used, to));
    }
  }
  /// Replaces the reader by one of the daemons `to`, unless another thread has.
  Status follow(MovableVersionReader& left, const DaemonAddresses& to);
  /// `following_` is held.
  Status replace(MovableVersionReader& left, const DaemonAddresses& to);

  static constexpr size_t kMovesInARowMax = 8;

  const std::shared_ptr<std::atomic<bool>> interrupted_ = std::make_shared<std::atomic<bool>>(false);
  ClientOptions options_;  // as given, except that interrupt() ends waits
  const FreshnessBound bound_;
  std::mutex following_;           // held by the thread that replaces the reader; guards the member below
  std::vector<HandedLease> pins_;  // of a reader that was left, which no other one has taken over yet
  mutable std::mutex mutex_;       // guards the member below
  std::shared_ptr<MovableVersionReader> reader_;
};

}  // namespace psd
