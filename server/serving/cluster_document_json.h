#pragma once

#include <string>
#include <string_view>

#include "server/serving/cluster_document.h"

namespace psd {

/// Serializes the cluster document. Different documents have different texts.
///
///     {"format": "psd plan", "format_version": 1, "proposal": "5be1…", "ended": false, "shards": [],
///      "groups": [{"epoch": 7, "history": "77aa…", "primary": "3f2a…", "standby": "81c0…"}],
///      "daemons": {"3f2a…": ["tcp://10.0.0.1:5500"], "81c0…": ["tcp://10.0.0.2:5500",
///      "unix:///run/psd.sock"]}}
///
/// Random numbers are 16 hexadecimal digits. `standby` is omitted if there is none; `groups` has exactly one
/// entry and `shards` is empty. With `ended` true and no move, `saved` says whether the last primary keeps
/// the model on its disk (omitted by older versions, where it does), and `from_folder_of` ("primary" or
/// "standby") that there was no document and a daemon wrote this from its folder. `plan` must be valid.
std::string documentText(const ClusterDocument& plan);

/// Parses a document; unknown keys are errors. The error, on one line, begins with "the cluster document: "
/// and the JSON path.
Result<ClusterDocument> parseDocument(std::string_view text);

}  // namespace psd
