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

/// Reads a status document, which a peer may have made of anything. An Error names `origin`, the first field
/// that is missing or wrong, and what would be right. Fields that are not known are passed over: the daemon
/// may be newer.
Result<DaemonStatus> readStatus(const nlohmann::ordered_json& document, std::string_view origin);
/// Reads a document of hot rows; errors are those of readStatus().
Result<HotRowsStatus> readHotRows(const nlohmann::ordered_json& document, std::string_view origin);
/// Reads a document of events, likewise.
Result<DaemonEvents> readEvents(const nlohmann::ordered_json& document, std::string_view origin);

}  // namespace psd
