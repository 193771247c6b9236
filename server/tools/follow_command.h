#pragma once

#include <chrono>
#include <string>

#include "common/os/env.h"
#include "common/status/status.h"
#include "common/types/version_info.h"
#include "server/tools/daemon_calls.h"

namespace psd {

/// Options of `psd follow`. A value type.
struct FollowOptions {
  std::string into;    ///< folder, created if missing; empty: `shared`
  std::string shared;  ///< shared-memory file
  std::string map;     ///< file of a TensorMap; empty: none
  std::string hook;    ///< command of a shell, run after each version; empty: none
  std::chrono::milliseconds hookTimeout{60'000};
  bool once = false;     ///< end after one version
  FreshnessBound bound;  ///< of the daemons that it follows
};

/// `psd follow`: keeps a file with the newest published version of a daemon, FOLDER/model.safetensors or a
/// shared-memory file, which is replaced atomically. Starts with the version in the file, if it is one that
/// the same map has made, and never replaces it by an older one of the same history. Reconnects for as long
/// as needed, except with `once`. A daemon beyond `bound` is left for the next address; with `once` each is
/// tried. Prints a line for each version. Blocks, until a permanent error without
/// `once`.
Status follow(Env& env, const DaemonCall& call, const FollowOptions& options);

/// `psd export --server --published`: writes a published version, 0: the newest, to a file. `map`: as in
/// FollowOptions.
Status exportVersion(Env& env, const DaemonCall& call, uint64_t number, const std::string& map,
                     const std::string& to);

}  // namespace psd
