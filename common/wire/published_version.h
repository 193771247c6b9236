#pragma once

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
          .bytes = in.getBytes()};
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
}

inline void writeVersion(const Result<VersionInfo>& info, schema::VersionResult::Builder out) {
  if (!info.ok()) return writeError(info.error(), out.initError());
  writeVersion(*info, out.initVersion());
}

}  // namespace psd::wire
