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

/// Sends a trainer's reports one after another. Values that arrive while a report is unanswered are merged
/// into one report, with the newest value of each name and the newest step. Belongs to one event loop.
class ReportQueue {
 public:
  /// Sends a report; it does not use `values` after it returns. Resolves when the report is answered.
  using Send = std::function<kj::Promise<void>(Step step, std::span<const NamedValue> values)>;

  explicit ReportQueue(Send send) : send_(std::move(send)) {}

  /// `values`: valid under validateReport(). Beyond the limit on names, the oldest are left out. Once a
  /// report has failed, as at a daemon that does not support reports, nothing more is sent.
  void add(Step step, std::span<const NamedValue> values);

 private:
  struct Report {
    Step step;
    std::vector<NamedValue> values;  // newest first
  };
  kj::Promise<void> sendQueued();

  const Send send_;
  std::optional<Report> waiting_;
  bool underWay_ = false;
  kj::Promise<void> running_ = kj::READY_NOW;
};

}  // namespace psd
