#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "common/status/status.h"
#include "server/checkpoint/replay_choice.h"

namespace psd {

/// The subcommands for what a daemon leaves on the disk; none needs a daemon. Each prints to standard output
/// and blocks.

/// `psd export`: a checkpoint's tensors, or where `table` names one an embedding table, as one safetensors
/// file. `path`: a checkpoint, or a folder with some, of which the newest whole one is taken.
Status exportModel(Env& env, const std::string& path, const std::string& table, const std::string& to);

/// `psd replay`: the model after update `until` of each shard (nothing: the last), from the checkpoints and
/// the log in `folder`. With `to` (empty: none) written as one safetensors file.
Status replay(Env& env, const std::string& folder, std::optional<uint64_t> until, const std::string& to);

/// What the flags --without and --only say, each "rank=3"; they exclude each other.
Result<ReplayChoice> readReplayChoice(const std::vector<std::string>& without,
                                      const std::vector<std::string>& only);

/// `psd replay --without`, `--only` and `--blame`: the model when only the updates that `choice` takes are
/// made; `blame` (empty: none) is the file for what moved each tensor most.
Status replayChosen(Env& env, const std::string& folder, std::optional<uint64_t> until, const std::string& to,
                    const ReplayChoice& choice, const std::string& blame);

}  // namespace psd
