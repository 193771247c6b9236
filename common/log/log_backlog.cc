#include "common/log/log_backlog.h"

#include <utility>

namespace psd {
namespace {

size_t capacityFor(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return LogBacklog::kBytesMax;
  if (level == spdlog::level::warn) return LogBacklog::kBytesMax / 4 * 3;
  return LogBacklog::kBytesMax / 2;
}

}  // namespace

bool LogBacklog::push(spdlog::level::level_enum level, std::string line) {
  if (queued_ + taken_ + line.size() > capacityFor(level)) {
    dropped_++;
    return false;
  }
  queued_ += line.size();
  lines_.push_back(std::move(line));
  return true;
}

LogBacklog::Batch LogBacklog::take(size_t most) {
  Batch batch;
  do {
    batch.text += lines_.front();
    batch.lines++;
    lines_.pop_front();
  } while (!lines_.empty() && batch.text.size() + lines_.front().size() <= most);
  queued_ -= batch.text.size();
  taken_ = batch.text.size();
  return batch;
}

uint64_t LogBacklog::takeDropped() { return std::exchange(dropped_, 0); }

}  // namespace psd
