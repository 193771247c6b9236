#include "server/publish/publish_outcomes.h"

#include <spdlog/spdlog.h>

#include "common/log/log_line.h"
#include "common/text/quantity.h"

namespace psd {

void PublishOutcomes::note(const Result<VersionInfo>& made, double seconds, std::string_view meanwhile) {
  if (!made.ok()) {
    failures_++;
    lastError_ = made.message();
    logLine(spdlog::level::err, {.event = "failed"}, "publishing failed: {}; {}the newest version stays",
            lastError_, meanwhile);
    return;
  }
  published_++;
  lastError_.clear();
  lastSeconds_ = seconds;
  logLine(spdlog::level::info, {.event = "published"}, "version {}: {} in {}, step {}{}{}", made->number,
          bytesText(made->bytes), durationText(lastSeconds_), made->step,
          made->moment == VersionMoment::step ? "" : ", ",
          made->moment == VersionMoment::step ? "" : momentName(made->moment));
}

void PublishOutcomes::fillStatus(PublishStatus& status) const {
  status.published = published_;
  status.failures = failures_;
  status.error = lastError_;
  status.lastSeconds = lastSeconds_;
}

}  // namespace psd
