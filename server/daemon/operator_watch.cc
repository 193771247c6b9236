#include "server/daemon/operator_watch.h"

#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "common/config/json_file.h"
#include "common/text/text.h"
#include "server/rpc/admin_client.h"
#include "server/status/status_json.h"
#include "server/status/status_table.h"
#include "server/status/top_table.h"

namespace psd {
namespace {

constexpr std::chrono::seconds kWatchEvery{1};
constexpr size_t kEventBytesMax = 2000;

/// Shows what `show` makes of two looks, again and again.
Status lookOn(const DaemonCall& call, uint64_t looks,
              const std::function<std::string(const DaemonStatus& before, const DaemonStatus& now)>& show) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  const std::string origin = "the status of " + address.toString();
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  DaemonStatus before;
  for (uint64_t look = 0; looks == 0 || look < looks; look++) {
    if (look > 0) std::this_thread::sleep_for(kWatchEvery);
    PSD_ASSIGN_OR_RETURN(const std::string text, fetchStatusJson(address, call.timeout, call.credentials));
    PSD_ASSIGN_OR_RETURN(const auto document, parseJson(text, origin));
    PSD_ASSIGN_OR_RETURN(DaemonStatus now, readStatus(document, origin));
    // Home, the text, and nothing below it: what stands there does not flicker.
    const char* const begin = !terminal ? (look > 0 ? "\n" : "") : look > 0 ? "\033[H" : "\033[H\033[2J";
    std::string shown = show(before, now);
    if (terminal) {
      for (size_t at = 0; (at = shown.find('\n', at)) != std::string::npos; at += 4)
        shown.insert(at, "\033[K");
    }
    std::fputs((begin + shown + (terminal ? "\033[J" : "")).c_str(), stdout);
    if (std::fflush(stdout) != 0) return {ErrorCode::io, "standard output cannot be written"};
    before = std::move(now);
  }
  return {};
}

std::string localTime(double unixSeconds) {
  const auto seconds = static_cast<std::time_t>(unixSeconds);
  std::tm parts{};
  char text[32] = "";
  if (localtime_r(&seconds, &parts) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

}  // namespace

Status topOf(const DaemonCall& call, uint64_t looks) { return lookOn(call, looks, topTable); }

Status watchStatus(const DaemonCall& call, uint64_t looks) {
  return lookOn(call, looks, [](const DaemonStatus&, const DaemonStatus& now) { return statusTable(now); });
}

Status printEvents(const DaemonCall& call, bool follow, bool json) {
  PSD_ASSIGN_OR_RETURN(const Address address, reachable(call));
  const std::string origin = "the events of " + address.toString();
  uint64_t newest = 0;
  const auto tell = [&](const std::string& text) -> Result<uint64_t> {
    PSD_ASSIGN_OR_RETURN(const auto document, parseJson(text, origin));
    PSD_ASSIGN_OR_RETURN(const DaemonEvents events, readEvents(document, origin));
    for (const DaemonEvent& event : events.events) {
      newest = event.number;
      const std::string line =
          json ? jsonText({{"number", event.number},
                           {"time", event.time},
                           {"kind", event.kind},
                           {"text", event.text}})
               : oneLine(fmt::format("{}  {:<12}  {}", localTime(event.time), event.kind, event.text),
                         kEventBytesMax);
      std::puts(line.c_str());
    }
    if (std::fflush(stdout) != 0) return Error{ErrorCode::io, "standard output cannot be written"};
    return newest;
  };
  if (follow) return followEvents(address, call.timeout, call.credentials, tell);
  PSD_ASSIGN_OR_RETURN(const std::string text, fetchEventsJson(address, call.timeout, call.credentials));
  return tell(text).status();
}

}  // namespace psd
