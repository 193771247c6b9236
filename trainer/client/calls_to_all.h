#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/plan/model_partitions.h"
#include "common/types/local_steps.h"
#include "trainer/client/api/client.h"
#include "trainer/client/combined_versions.h"

namespace psd {

/// What a call to several daemons needs of them. Used with the client's lock held.
class CalledDaemons {
 public:
  virtual ~CalledDaemons() = default;

  virtual const ModelPartition& partitionOf(size_t daemon) const = 0;
  /// Layout of the daemons' versions, as of now.
  virtual CombinedVersions versions() const = 0;
  /// A daemon's part of a call has failed. Returns the error with the daemon's name.
  virtual Error failed(size_t daemon, const Error& error) = 0;
  /// Whether a lost daemon has ended the client: calls without an answer are interrupted, none is in
  /// progress.
  virtual bool ended() const = 0;
};

/// One daemon's part of a call.
template <class Call>
struct DaemonPart {
  size_t daemon;
  Call call;
};

/// The combined answer of daemons to a pull or push in which each has a part. Used with the client's lock
/// held, which wait() leaves while it waits.
template <class Info>
class CombinedAnswer final : public Pending<Info>::Impl {
 public:
  using Parts = std::vector<DaemonPart<Pending<Info>>>;

  CombinedAnswer(CalledDaemons& daemons, Parts parts)
      : daemons_(daemons), parts_(std::move(parts)), isAnswered_(parts_.size()) {}

  bool done() const override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part.call.done(); });
  }
  bool finished() const override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part.call.finished(); });
  }
  /// Waits for all, in order, even after an error: on return the caller may reuse its memory, unless the wait
  /// was ended.
  Result<Info> wait() override {
    std::optional<Error> ended;
    for (size_t i = 0; i < parts_.size(); i++) {
      if (isAnswered_[i]) continue;
      const size_t daemon = parts_[i].daemon;
      Result<Info> part = parts_[i].call.wait();
      isAnswered_[i] = part.ok() || part.error().code != ErrorCode::interrupted;
      if (part.ok()) {
        part->versions = daemons_.versions().place(daemon, part->versions);
        all_.add(*part);
      } else {
        std::optional<Error>& first = isAnswered_[i] ? failed_ : ended;
        const Error named = daemons_.failed(daemon, part.error());
        if (!first) first = named;
      }
    }
    // A lost daemon ends the client, and with it the other daemons' parts: it is the cause.
    if (failed_ && (!ended || daemons_.ended())) return *failed_;
    if (ended) return *ended;
    return all_;
  }

 private:
  CalledDaemons& daemons_;
  Parts parts_;
  std::vector<bool> isAnswered_;  // by part
  Info all_;                      // of the answered parts
  std::optional<Error> failed_;   // the first of these that failed
};

/// The first answer of several daemons about their rounds of one fragment. Of several answers available,
/// `closed` takes precedence over `closing`. Used with the client's lock held, which wait() leaves while it
/// waits.
class FirstDue final : public Pending<RoundDue>::Impl {
 public:
  explicit FirstDue(std::vector<Pending<RoundDue>> parts) : parts_(std::move(parts)) {}

  bool done() const override {
    return std::ranges::any_of(parts_, [](const auto& part) { return part.done(); });
  }
  /// If none has answered yet, waits for the first daemon in order: a fragment's turn follows its version.
  Result<RoundDue> wait() override {
    if (!done()) return parts_.front().wait();
    std::optional<Result<RoundDue>> chosen;
    for (auto& part : parts_) {
      if (!part.done()) continue;
      const Result<RoundDue> one = part.wait();
      const bool takesPrecedence = !chosen || (one.ok() && (!chosen->ok() || *one == RoundDue::closed));
      if (takesPrecedence) chosen = one;
    }
    return *chosen;
  }

 private:
  std::vector<Pending<RoundDue>> parts_;
};

/// A push to several daemons that is still being computed. Used with the client's lock held.
class PartialPushToAll final : public PartialPush {
 public:
  using Parts = std::vector<DaemonPart<std::unique_ptr<PartialPush>>>;

  PartialPushToAll(CalledDaemons& daemons, Parts parts) : daemons_(daemons), parts_(std::move(parts)) {}

  void ready(uint64_t begin, uint64_t count) override {
    for (const auto& [daemon, push] : parts_) {
      const ModelPartition& partition = daemons_.partitionOf(daemon);
      const uint64_t first = std::max(begin, partition.begin);
      const uint64_t end = std::min(begin + count, partition.begin + partition.count);
      if (first < end) push->ready(first - partition.begin, end - first);
    }
  }
  Pending<PushInfo> finish() override {
    CombinedAnswer<PushInfo>::Parts answers;
    for (const auto& [daemon, push] : parts_) answers.push_back({daemon, push->finish()});
    return Pending<PushInfo>(std::make_unique<CombinedAnswer<PushInfo>>(daemons_, std::move(answers)));
  }

 private:
  CalledDaemons& daemons_;
  Parts parts_;
};

}  // namespace psd
