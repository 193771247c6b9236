#pragma once

#include <algorithm>
#include <string>

#include "common/safetensors/published_version.h"
#include "common/text/text.h"
#include "common/wire/convert.h"
#include "schema/versions.capnp.h"

namespace psd::wire {

/// What a daemon says of a version; its texts are printable.
inline VersionInfo readVersion(schema::PublishedVersion::Reader in) {
  constexpr size_t kTextBytesMax = 40;
  return {.number = in.getNumber(),
          .history = in.getHistory(),
          .step = in.getStep(),
          .created = printable(textIn(in.getCreated()), kTextBytesMax),
          .moment = momentNamed(textIn(in.getMoment())),
          .bytes = in.getBytes(),
          .part = in.getPart(),
          .parts = in.getParts(),
          .momentId = in.getMomentId(),
          .wholeHistory = in.getWholeHistory()};
}

inline Result<VersionInfo> readVersion(schema::VersionResult::Reader answer) {
  if (answer.isError()) return readError(answer.getError());
  return readVersion(answer.getVersion());
}

inline void writeVersion(const VersionInfo& info, schema::PublishedVersion::Builder out) {
  out.setNumber(info.number);
  out.setHistory(info.history);
  out.setStep(info.step);
  out.setCreated(info.created.c_str());
  out.setMoment(std::string(momentName(info.moment)).c_str());
  out.setBytes(info.bytes);
  out.setPart(info.part);
  out.setParts(info.parts);
  out.setMomentId(info.momentId);
  out.setWholeHistory(info.wholeHistory);
}

inline void writeVersion(const Result<VersionInfo>& info, schema::VersionResult::Builder out) {
  if (!info.ok()) return writeError(info.error(), out.initError());
  writeVersion(*info, out.initVersion());
}

inline constexpr size_t kFreshnessPathMax = 64;  // daemons from a replica to its source

inline Result<VersionFreshness> readFreshness(schema::FreshnessResult::Reader answer) {
  if (answer.isError()) return readError(answer.getError());
  const auto in = answer.getFreshness();
  constexpr auto kAgeMax = static_cast<uint64_t>(VersionFreshness::kAgeUnknown.count());
  VersionFreshness out{.newest = in.getNewest(),
                       .history = in.getHistory(),
                       .sourceNewest = in.getSourceNewest(),
                       .sourceHistory = in.getSourceHistory(),
                       .age = std::chrono::milliseconds(std::min(in.getAgeMilliseconds(), kAgeMax))};
  if (in.getPath().size() > kFreshnessPathMax) {
    return Error{ErrorCode::protocolMismatch, "there are more than " + std::to_string(kFreshnessPathMax) +
                                                  " daemons on the way to the source"};
  }
  for (const uint64_t daemon : in.getPath()) out.path.push_back(daemon);
  return out;
}

inline void writeFreshness(const Result<VersionFreshness>& freshness, schema::FreshnessResult::Builder out) {
  if (!freshness.ok()) return writeError(freshness.error(), out.initError());
  auto to = out.initFreshness();
  to.setNewest(freshness->newest);
  to.setHistory(freshness->history);
  to.setSourceNewest(freshness->sourceNewest);
  to.setSourceHistory(freshness->sourceHistory);
  to.setAgeMilliseconds(static_cast<uint64_t>(freshness->age.count()));
  to.setPath(kj::arrayPtr(freshness->path.data(), freshness->path.size()));
}

}  // namespace psd::wire
