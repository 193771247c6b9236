#include "server/tools/operator_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/config/json_file.h"
#include "common/text/text.h"
#include "server/client/admin_client.h"
#include "server/status/status_json.h"
#include "server/status/status_table.h"
#include "server/status/top_table.h"

namespace psd {
namespace {

constexpr std::chrono::seconds kWatchEvery{1};
constexpr size_t kEventBytesMax = 2000;

/// A view in the part of the terminal at standard output for each of `daemons` daemons, in equal parts.
TopView viewOnTerminal(size_t daemons) {
  winsize size{};
  ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  TopView view;
  if (size.ws_col > 0) view.columns = size.ws_col;
  if (size.ws_row == 0) return view;
  // Of one daemon without the line of the cursor, of several without a title and an empty line each.
  const size_t others = daemons > 1 ? 2 * daemons : 1;
  view.rows = std::max<size_t>(1, (size.ws_row - std::min<size_t>(size.ws_row, others)) / daemons);
  return view;
}

/// The text about a daemon between two readings, within the rows and columns of a view.
using Show = std::function<std::string(const DaemonStatus& before, const DaemonStatus& now, TopView view)>;

/// The previous and current status of daemons. Owned by one thread.
class Watch {
 public:
  Watch(std::vector<DaemonCall> daemons, Show show)
      : daemons_(std::move(daemons)), show_(std::move(show)), before_(daemons_.size()) {}

  /// The text of one refresh; an Error if no daemon answers.
  Result<std::string> refresh(bool terminal) {
    const TopView view = terminal ? viewOnTerminal(daemons_.size()) : TopView();
    std::string text;
    Status why;
    size_t answers = 0;
    for (size_t i = 0; i < daemons_.size(); i++) {
      if (i > 0) text += "\n";
      Result<DaemonStatus> now = readStatusOf(daemons_[i]);
      if (daemons_.size() > 1) {
        text += fmt::format("daemon {} of {}: {}\n", i, daemons_.size(),
                            now.ok() ? joined(daemons_[i].servers, ",") : now.message());
      }
      if (!now.ok()) {
        why = now.status();
        continue;
      }
      answers++;
      text += show_(before_[i], *now, view);
      before_[i] = *std::move(now);
    }
    if (answers == 0) return why.error();
    missing_ = why;
    return text;
  }
  /// Why a daemon is missing from the last refresh; ok() if none is.
  const Status& missing() const { return missing_; }

 private:
  const std::vector<DaemonCall> daemons_;
  const Show show_;
  std::vector<DaemonStatus> before_;
  Status missing_;
};

/// Repeatedly prints the text that `show` makes of the previous and the current status.
Status watchDaemons(const DaemonCall& call, const WatchOptions& options, Show show) {
  PSD_ASSIGN_OR_RETURN(std::vector<DaemonCall> daemons, daemonsOf(call, options.here));
  Watch watch(std::move(daemons), std::move(show));
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  for (uint64_t i = 0; options.refreshesMax == 0 || i < options.refreshesMax; i++) {
    if (i > 0) std::this_thread::sleep_for(kWatchEvery);
    PSD_ASSIGN_OR_RETURN(std::string shown, watch.refresh(terminal));
    // Cursor home, the text, then erase below: overwriting in place does not flicker.
    const char* const begin = !terminal ? (i > 0 ? "\n" : "") : i > 0 ? "\033[H" : "\033[H\033[2J";
    if (terminal) {
      for (size_t at = 0; (at = shown.find('\n', at)) != std::string::npos; at += 4)
        shown.insert(at, "\033[K");
    }
    std::fputs((begin + shown + (terminal ? "\033[J" : "")).c_str(), stdout);
    if (std::fflush(stdout) != 0) return {ErrorCode::io, "standard output cannot be written"};
  }
  return watch.missing();
}

std::string localTime(double unixSeconds) {
  const auto seconds = static_cast<std::time_t>(unixSeconds);
  std::tm parts{};
  char text[32] = "";
  if (localtime_r(&seconds, &parts) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

/// Prints events as lines. Thread-safe.
class EventPrinter {
 public:
  EventPrinter(bool json, bool several) : json_(json), several_(several) {}

  Status print(size_t daemon, const DaemonEvent& event) {
    const std::lock_guard hold(mutex_);
    std::puts((json_ ? asJson(daemon, event) : asText(daemon, event)).c_str());
    if (std::fflush(stdout) != 0) return {ErrorCode::io, "standard output cannot be written"};
    return {};
  }

 private:
  std::string asJson(size_t daemon, const DaemonEvent& event) const {
    nlohmann::ordered_json line;
    if (several_) line["daemon"] = daemon;
    line["number"] = event.number;
    line["time"] = event.time;
    line["kind"] = event.kind;
    line["text"] = event.text;
    line["by"] = event.by;
    return jsonText(line);
  }
  std::string asText(size_t daemon, const DaemonEvent& event) const {
    const std::string whose = several_ ? fmt::format("daemon {:<3}  ", daemon) : "";
    return oneLine(fmt::format("{}  {}{:<12}  {}", localTime(event.time), whose, event.kind, event.text),
                   kEventBytesMax);
  }

  const bool json_, several_;
  std::mutex mutex_;
};

Result<DaemonEvents> eventsIn(const std::string& text, const Address& address) {
  const std::string origin = "the events of " + address.toString();
  PSD_ASSIGN_OR_RETURN(const auto document, parseJson(text, origin));
  return readEvents(document, origin);
}

/// Prints a daemon's events until it ends; an Error unless one of them announced the end.
Status followOne(const DaemonCall& daemon, size_t index, EventPrinter& printer) {
  PSD_ASSIGN_OR_RETURN(const Address address, addressOf(daemon));
  uint64_t newest = 0;
  bool stopping = false;
  const auto tell = [&](const std::string& text) -> Result<uint64_t> {
    PSD_ASSIGN_OR_RETURN(const DaemonEvents events, eventsIn(text, address));
    for (const DaemonEvent& event : events.events) {
      PSD_RETURN_IF_ERROR(printer.print(index, event));
      newest = event.number;
      stopping = stopping || event.kind == "stopping";
    }
    return newest;
  };
  Status end = followEvents(address, daemon.timeout, daemon.credentials, tell);
  return stopping && end.error().code != ErrorCode::io ? Status() : end;
}

Status followAll(const std::vector<DaemonCall>& daemons, EventPrinter& printer) {
  std::vector<Status> ends(daemons.size());
  const auto follow = [&](size_t i) {
    ends[i] = followOne(daemons[i], i, printer);
    if (daemons.size() == 1) return;
    const std::string end = fmt::format("daemon {} of {} is no longer followed: {}", i, daemons.size(),
                                        ends[i].ok() ? "it has ended" : ends[i].message());
    std::fprintf(stderr, "psd: %s\n", oneLine(end, kEventBytesMax).c_str());
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < daemons.size(); i++) threads.emplace_back(follow, i);
  follow(0);
  for (std::thread& thread : threads) thread.join();
  const auto worst = std::find_if(ends.begin(), ends.end(), [](const Status& end) { return !end.ok(); });
  return worst == ends.end() ? Status() : *worst;
}

/// Prints the events that the daemons keep, in order of time. Returns the error of a daemon that does not
/// answer, after printing those of the others.
Status printKept(const std::vector<DaemonCall>& daemons, EventPrinter& printer) {
  std::vector<std::pair<size_t, DaemonEvent>> all;
  Status worst;
  for (size_t i = 0; i < daemons.size(); i++) {
    const auto fetched = [&]() -> Result<DaemonEvents> {
      PSD_ASSIGN_OR_RETURN(const Address address, addressOf(daemons[i]));
      PSD_ASSIGN_OR_RETURN(const std::string text,
                           fetchEventsJson(address, daemons[i].timeout, daemons[i].credentials));
      return eventsIn(text, address);
    }();
    if (!fetched.ok()) worst = fetched.status();
    if (!fetched.ok()) continue;
    for (const DaemonEvent& event : fetched->events) all.emplace_back(i, event);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second.time < b.second.time; });
  for (const auto& [daemon, event] : all) PSD_RETURN_IF_ERROR(printer.print(daemon, event));
  return worst;
}

}  // namespace

Status watchTop(const DaemonCall& call, const WatchOptions& options) {
  const auto keys = topSortKeys();
  if (std::ranges::find(keys, options.sort) == keys.end()) {
    return {ErrorCode::invalidArgument,
            "--sort: '" + printable(options.sort) + "' is not a key; expected one of " + joined(keys, ", ")};
  }
  return watchDaemons(call, options, [&](const DaemonStatus& before, const DaemonStatus& now, TopView view) {
    view.sort = options.sort;
    return topTable(before, now, view);
  });
}

Status watchStatus(const DaemonCall& call, const WatchOptions& options) {
  return watchDaemons(call, options, [](const DaemonStatus&, const DaemonStatus& now, const TopView&) {
    return statusTable(now);
  });
}

Status printEvents(const DaemonCall& call, const EventsOptions& wanted) {
  PSD_ASSIGN_OR_RETURN(const std::vector<DaemonCall> daemons, daemonsOf(call, wanted.here));
  EventPrinter printer(wanted.json, daemons.size() > 1);
  return wanted.follow ? followAll(daemons, printer) : printKept(daemons, printer);
}

}  // namespace psd
