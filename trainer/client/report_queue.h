#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <kj/async.h>

#include "common/types/ids.h"
#include "common/types/named_value.h"

namespace psd {

/// Sends what a trainer reports, one report after the other. What comes while one is under way waits as one
/// report, with the newest value of each name and the newest step. Belongs to one event loop.
class ReportQueue {
 public:
  /// Sends a report, whose values it does not need any more when it returns; resolves when that is answered.
  using Send = std::function<kj::Promise<void>(Step step, std::span<const NamedValue> values)>;

  explicit ReportQueue(Send send) : send_(std::move(send)) {}

  /// `values`: of checkReported(). Of more names than a report may have, the oldest are left out. Once a
  /// report has failed, as at a daemon that does not know them, nothing more is sent.
  void add(Step step, std::span<const NamedValue> values);

 private:
  struct Report {
    Step step;
    std::vector<NamedValue> values;  // the newest first
  };
  kj::Promise<void> sendOnAndOn();

  const Send send_;
  std::optional<Report> waiting_;
  bool underWay_ = false;
  kj::Promise<void> running_ = kj::READY_NOW;
};

}  // namespace psd
