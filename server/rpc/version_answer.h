#pragma once

#include "common/wire/convert.h"
#include "schema/versions.capnp.h"
#include "server/publish/version_file.h"

namespace psd {

inline void writeVersion(const VersionInfo& info, schema::PublishedVersion::Builder out) {
  out.setNumber(info.number);
  out.setHistory(info.history);
  out.setUpdates(info.updates);
  out.setCreated(info.created.c_str());
  out.setMoment(std::string(momentName(info.moment)).c_str());
  out.setBytes(info.bytes);
}

inline void writeVersion(const Result<VersionInfo>& info, schema::VersionResult::Builder out) {
  if (!info.ok()) return wire::writeError(info.error(), out.initError());
  writeVersion(*info, out.initVersion());
}

}  // namespace psd
