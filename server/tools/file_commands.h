#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "common/status/status.h"
#include "server/checkpoint/replay_choice.h"
#include "server/checkpoint/table_export.h"

namespace psd {

// The subcommands that read what a daemon has saved on disk; none needs a running daemon. Each prints to
// standard output and blocks.

/// The format that --format names, without it safetensors.
Result<TableFormat> readTableFormat(const std::optional<std::string>& name);

/// `psd export`: writes a checkpoint's tensors as a safetensors file `to`, or, unless `table` is empty, that
/// embedding table in the format. `path`: a checkpoint, or a folder of checkpoints, of which the newest
/// complete one is used.
Status exportModel(Env& env, const std::string& path, const std::string& table, const std::string& to,
                   TableFormat format = TableFormat::safetensors);

/// `psd replay`: rebuilds the model after update `until` of each shard (nullopt: the last) from the
/// checkpoints and the log in `folder`, and writes it to `to` (empty: not written) as one safetensors file.
Status replay(Env& env, const std::string& folder, std::optional<uint64_t> until, const std::string& to);

/// Parses the flags --without and --only, each "rank=3"; they are mutually exclusive.
Result<ReplayChoice> readReplayChoice(const std::vector<std::string>& without,
                                      const std::vector<std::string>& only);

/// `psd replay --without`, `--only` and `--blame`: rebuilds the model from only the updates that `choice`
/// selects; `blame` (empty: none) is the file that receives which updates moved each tensor most.
Status replayChosen(Env& env, const std::string& folder, std::optional<uint64_t> until, const std::string& to,
                    const ReplayChoice& choice, const std::string& blame);

}  // namespace psd
