#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

#include "common/status/status.h"
#include "server/status/daemon_event.h"
#include "server/status/daemon_row.h"
#include "server/status/daemon_status.h"
#include "server/status/hot_rows.h"

namespace psd {

/// The status document of the protocol.
nlohmann::ordered_json statusJson(const DaemonStatus& status);
nlohmann::ordered_json statusJson(const HotRowsStatus& status);
nlohmann::ordered_json statusJson(const DaemonEvents& events);
nlohmann::ordered_json statusJson(const DaemonRows& rows);

/// Parses a status document, which is untrusted input. An Error names `origin`, the first invalid field, and
/// the expected value. Unknown fields are ignored, and missing ones have their defaults: the daemon may have
/// another version of psd.
Result<DaemonStatus> readStatus(const nlohmann::ordered_json& document, std::string_view origin);
/// Parses a document of hot rows; errors as in readStatus().
Result<HotRowsStatus> readHotRows(const nlohmann::ordered_json& document, std::string_view origin);
/// Parses a document of events; errors as in readStatus().
Result<DaemonEvents> readEvents(const nlohmann::ordered_json& document, std::string_view origin);

}  // namespace psd
