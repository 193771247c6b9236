#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/plan/model_partitions.h"
#include "trainer/client/client.h"
#include "trainer/client/versions_of_all.h"

namespace psd {

/// Several daemons, as a call to all of them sees them. Used by the client's thread.
class CalledDaemons {
 public:
  virtual ~CalledDaemons() = default;

  virtual const ModelPartition& partitionOf(size_t daemon) const = 0;
  /// As the daemons have their blocks now.
  virtual VersionsOfAll versions() const = 0;
  /// A daemon's part of a call has failed. Gives the error with the daemon's name.
  virtual Error failed(size_t daemon, const Error& error) = 0;
};

/// The answers of all daemons to a pull or push of which each has a part. Used by the client's thread.
template <class Info>
class AnswerOfAll final : public Pending<Info>::Impl {
 public:
  AnswerOfAll(CalledDaemons& daemons, std::vector<Pending<Info>> parts)
      : daemons_(daemons), parts_(std::move(parts)) {}

  bool done() const override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part.done(); });
  }
  bool finished() const override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part.finished(); });
  }
  /// Waits for all, in their order, also after an error: who called may use its memory again.
  Result<Info> wait() override {
    Info all;
    std::optional<Error> failed;
    for (size_t i = 0; i < parts_.size(); i++) {
      Result<Info> part = parts_[i].wait();
      if (part.ok()) {
        part->versions = daemons_.versions().place(i, part->versions);
        all.add(*part);
      } else {
        const Error named = daemons_.failed(i, part.error());
        if (!failed) failed = named;
      }
    }
    if (failed) return *failed;
    return all;
  }

 private:
  CalledDaemons& daemons_;
  std::vector<Pending<Info>> parts_;
};

/// A push to all daemons that is still being computed. Used by the client's thread.
class PartialPushToAll final : public PartialPush {
 public:
  PartialPushToAll(CalledDaemons& daemons, std::vector<std::unique_ptr<PartialPush>> parts)
      : daemons_(daemons), parts_(std::move(parts)) {}

  void ready(uint64_t begin, uint64_t count) override {
    for (size_t i = 0; i < parts_.size(); i++) {
      const ModelPartition& partition = daemons_.partitionOf(i);
      const uint64_t first = std::max(begin, partition.begin);
      const uint64_t end = std::min(begin + count, partition.begin + partition.count);
      if (first < end) parts_[i]->ready(first - partition.begin, end - first);
    }
  }
  Pending<PushInfo> finish() override {
    std::vector<Pending<PushInfo>> answers;
    for (const auto& part : parts_) answers.push_back(part->finish());
    return Pending<PushInfo>(std::make_unique<AnswerOfAll<PushInfo>>(daemons_, std::move(answers)));
  }

 private:
  CalledDaemons& daemons_;
  std::vector<std::unique_ptr<PartialPush>> parts_;
};

}  // namespace psd
