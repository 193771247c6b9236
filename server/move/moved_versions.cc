#include "server/move/moved_versions.h"

#include <algorithm>
#include <new>
#include <utility>

#include <spdlog/fmt/fmt.h>

namespace psd {
namespace {

Result<std::vector<std::byte>> joinParts(const std::vector<std::vector<std::byte>>& files) {
  PSD_ASSIGN_OR_RETURN(const WholeVersion whole, WholeVersion::join(std::vector<std::span<const std::byte>>(
                                                     files.begin(), files.end())));
  std::vector<std::byte> file(whole.info().bytes);
  whole.writeTo(file);
  return file;
}

}  // namespace

Result<std::shared_ptr<const MovedVersion>> MovedVersion::make(std::vector<std::vector<std::byte>> files,
                                                               const std::vector<ModelSpec>& targets,
                                                               uint64_t seed) {
  for (size_t i = 0; i < files.size(); i++) {
    const Status verified = verifyVersion(files[i]).status();
    if (!verified.ok()) {
      return Error{verified.error().code,
                   fmt::format("a version of source daemon {} arrived damaged: {}", i, verified.message())};
    }
  }
  const auto version = std::make_shared<MovedVersion>();
  try {
    if (files.size() == 1) {
      version->whole_ = std::move(files.front());
    } else {
      PSD_ASSIGN_OR_RETURN(version->whole_, joinParts(files));
    }
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::overloaded, "out of memory: psd move holds one published version twice"};
  }
  PSD_ASSIGN_OR_RETURN(const std::string_view text, versionHeaderText(version->whole_));
  PSD_ASSIGN_OR_RETURN(const VersionHeader header, parseVersionHeader(text, version->whole_.size()));
  version->info_ = header.info;
  if (header.info.parts > 0) {
    return Error{ErrorCode::modelMismatch, fmt::format("version {} is only a part", header.info.number)};
  }
  if (targets.size() > 1) {
    PSD_ASSIGN_OR_RETURN(version->split_, SplitVersion::split(version->whole_, targets, seed));
  }
  return std::shared_ptr<const MovedVersion>(version);
}

MovedVersion::File MovedVersion::at(size_t target) const {
  if (!split_) return {{}, whole_};
  const SplitVersion::Part& part = split_->parts()[target];
  return {part.head, part.values};
}

VersionsContinuation continuationAt(Partition target, std::span<const VersionsContinuation> sources,
                                    const std::vector<uint64_t>& numbers, uint64_t seed) {
  VersionsContinuation out{.history = sources.front().history, .numbers = numbers};
  std::vector<VersionInfo> parts;
  uint64_t rounds = UINT64_MAX;
  for (const VersionsContinuation& source : sources) {
    parts.push_back({.history = source.history, .wholeHistory = source.wholeHistory});
    out.highest = std::max(out.highest, source.highest);
    rounds = std::min(rounds, source.rounds);
  }
  if (sources.size() > 1) out.history = wholeHistory(parts);
  for (const auto& [number, time] : sources.front().leases) {
    if (std::ranges::binary_search(numbers, number)) out.leases[number] = time;
  }
  if (target.isWhole()) return out;
  // The numbers of several daemons are those of rounds, and must rise.
  out.ahead = out.highest - std::min(out.highest, rounds);
  out.wholeHistory = out.history;
  out.history = partHistory(out.wholeHistory, target.index, seed);
  return out;
}

}  // namespace psd
