#include "common/log/log_sink.h"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/details/log_msg.h>
#include <spdlog/pattern_formatter.h>

#include "common/log/log_backlog.h"
#include "common/log/log_limit.h"
#include "common/log/log_line.h"

namespace psd {
namespace {

namespace level = spdlog::level;

using Clock = LogLimit::Clock;

constexpr size_t kBatchBytes = 64 << 10;
constexpr std::chrono::seconds kScheduleWaitMax{5};    // for the thread to be scheduled on a busy machine
constexpr std::chrono::milliseconds kPollInterval{5};  // interval at which `inTargetSince` is checked

/// The severity of syslog(3).
char priorityOf(level::level_enum severity) {
  switch (severity) {
    case level::critical: return '2';
    case level::err: return '3';
    case level::warn: return '4';
    case level::info: return '6';
    default: return '7';
  }
}

const char* colorOf(level::level_enum severity) {
  switch (severity) {
    case level::critical: return "\033[1m\033[41m";
    case level::err: return "\033[31m\033[1m";
    case level::warn: return "\033[33m\033[1m";
    case level::info: return "\033[32m";
    default: return "\033[36m";
  }
}

}  // namespace

/// State shared by the sink and its thread. Outlives the sink if the target hangs.
struct LogSink::Shared {
  Shared(LogTarget to, std::unique_ptr<spdlog::formatter> with, Style in)
      : target(std::move(to)), formatter(std::move(with)), style(in) {}

  void run();
  /// Performs the next pending action; false: none. Holds the lock on return.
  bool step(std::unique_lock<std::mutex>& lock);
  void writeOut(std::unique_lock<std::mutex>& lock, LogBacklog::Batch batch, uint64_t counted);
  std::string render(const spdlog::details::log_msg& message) const;
  std::string render(level::level_enum severity, const std::string& sentence) const;
  void push(level::level_enum severity, std::string line);
  /// Waits for `condition`, and returns whether it holds. Gives up after the thread has been in one call of
  /// the target for `most`. While it is not in a call, because the machine is too busy to run it, gives up
  /// after kScheduleWaitMax.
  bool await(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds most,
             const std::function<bool()>& condition);

  std::mutex mutex;  ///< guards all but `target`, which belongs to the thread
  std::condition_variable work, done;
  LogTarget target;
  std::unique_ptr<spdlog::formatter> formatter;
  const Style style;
  LogBacklog backlog;
  LogLimit limit;
  uint64_t accepted = 0, handled = 0;              ///< lines added to the backlog, and removed from it
  uint64_t dropped = 0;                            ///< in total
  uint64_t unwritten = 0;                          ///< lines that failed since the last successful write
  std::string reason;                              ///< of the failure
  uint64_t reopens = 0, reopened = 0;              ///< requested, and performed
  Status reopenStatus;                             ///< of the last reopen
  bool reopenAwaited = false;                      ///< whether reopen() waits; else an error is logged
  std::optional<Clock::time_point> inTargetSince;  ///< while the thread is in a call of it
  bool over = false, ended = false;
};

bool LogSink::Shared::await(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds most,
                            const std::function<bool()>& condition) {
  const Clock::time_point start = Clock::now(),
                          last = start + std::max<std::chrono::milliseconds>(most, kScheduleWaitMax);
  while (!condition()) {
    const Clock::time_point until = inTargetSince ? std::min(start, *inTargetSince) + most : last;
    if (Clock::now() >= until) return false;
    done.wait_until(lock, std::min(until, Clock::now() + kPollInterval));
  }
  return true;
}

std::string LogSink::Shared::render(const spdlog::details::log_msg& message) const {
  spdlog::memory_buf_t buffer;
  formatter->format(message, buffer);
  std::string line(buffer.data(), buffer.size());
  if (style.color && message.color_range_end > message.color_range_start) {
    line.insert(message.color_range_end, "\033[m");
    line.insert(message.color_range_start, colorOf(message.level));
  }
  return style.priority ? fmt::format("<{}>{}", priorityOf(message.level), line) : line;
}

std::string LogSink::Shared::render(level::level_enum severity, const std::string& sentence) const {
  return render(spdlog::details::log_msg(spdlog::source_loc{}, "psd", severity, sentence));
}

void LogSink::Shared::push(level::level_enum severity, std::string line) {
  if (backlog.push(severity, std::move(line))) {
    accepted++;
  } else {
    dropped++;
  }
}

void LogSink::Shared::writeOut(std::unique_lock<std::mutex>& lock, LogBacklog::Batch batch,
                               uint64_t counted) {
  std::string text;
  if (unwritten > 0) {
    text = render(level::warn, fmt::format("{} log lines dropped: {}", unwritten, reason));
  }
  text += batch.text;
  inTargetSince = Clock::now();
  lock.unlock();
  const Status written = target.write(text);
  lock.lock();
  inTargetSince.reset();
  backlog.written();
  handled += batch.lines;
  if (written.ok()) {
    unwritten = 0;
  } else {
    dropped += batch.lines;
    unwritten += batch.lines + counted;
    reason = written.message();
  }
  done.notify_all();
}

bool LogSink::Shared::step(std::unique_lock<std::mutex>& lock) {
  if (reopened != reopens) {
    const uint64_t asked = reopens;
    inTargetSince = Clock::now();
    lock.unlock();
    Status status = target.reopen();
    lock.lock();
    inTargetSince.reset();
    if (!status.ok() && !reopenAwaited) {
      push(level::warn, render(level::warn, "the log stays in the previous file: " + status.message()));
    }
    reopenStatus = std::move(status);
    reopened = asked;
    done.notify_all();
    return true;
  }
  if (!backlog.empty()) {
    writeOut(lock, backlog.take(kBatchBytes), 0);
    return true;
  }
  if (const uint64_t lines = backlog.takeDropped(); lines > 0) {
    const std::string sentence =
        fmt::format("{} log lines dropped: the log was not read or written fast enough", lines);
    writeOut(lock, {render(level::warn, sentence), 0}, lines);
    return true;
  }
  const std::vector<std::string> sentences = limit.due(Clock::now());
  for (const std::string& sentence : sentences) push(level::warn, render(level::warn, sentence));
  return !sentences.empty();
}

void LogSink::Shared::run() {
  pthread_setname_np(pthread_self(), "psd-messages");
  std::unique_lock lock(mutex);
  for (;;) {
    if (step(lock)) continue;
    if (over) break;
    if (const auto next = limit.nextDue()) {
      work.wait_until(lock, *next);
    } else {
      // Not wait(): gcc 12 selects a version of it that libstdc++ 11 lacks.
      work.wait_until(lock, std::chrono::steady_clock::time_point::max());
    }
  }
  ended = true;
  done.notify_all();
}

LogSink::LogSink(LogTarget target, std::unique_ptr<spdlog::formatter> formatter, Style style)
    : shared_(std::make_shared<Shared>(std::move(target), std::move(formatter), style)) {
  // The thread blocks all signals: programs choose the thread that handles them. SIGPIPE becomes a write
  // error.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &previous);
  std::thread([shared = shared_] { shared->run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

LogSink::~LogSink() {
  std::unique_lock lock(shared_->mutex);
  shared_->over = true;
  shared_->work.notify_all();
  shared_->await(lock, kLogWait, [this] { return shared_->ended; });
}

void LogSink::log(const spdlog::details::log_msg& message) {
  const LogFields* const fields = LogFieldsScope::current();
  const std::lock_guard lock(shared_->mutex);
  if (fields != nullptr && fields->limited &&
      !shared_->limit.admit(fields->event, fields->peer, Clock::now())) {
    shared_->work.notify_one();  // it may now have to wait for the window's end
    return;
  }
  shared_->push(message.level, shared_->render(message));
  shared_->work.notify_one();
}

bool LogSink::flush(std::chrono::milliseconds most) {
  std::unique_lock lock(shared_->mutex);
  const uint64_t target = shared_->accepted;
  return shared_->await(lock, most, [&] { return shared_->handled >= target; });
}

void LogSink::set_pattern(const std::string& pattern) {
  set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern));
}

void LogSink::set_formatter(std::unique_ptr<spdlog::formatter> formatter) {
  const std::lock_guard lock(shared_->mutex);
  shared_->formatter = std::move(formatter);
}

Status LogSink::reopen() {
  std::unique_lock lock(shared_->mutex);
  const uint64_t asked = ++shared_->reopens;
  shared_->reopenAwaited = true;
  shared_->work.notify_all();
  const bool made = shared_->await(lock, kLogWait, [&] { return shared_->reopened >= asked; });
  shared_->reopenAwaited = false;
  return made ? shared_->reopenStatus : Status();
}

LogLosses LogSink::losses() const {
  const std::lock_guard lock(shared_->mutex);
  return {shared_->dropped, shared_->limit.suppressed()};
}

}  // namespace psd
