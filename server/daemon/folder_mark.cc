#include "server/daemon/folder_mark.h"

#include <charconv>

#include <spdlog/spdlog.h>

#include "common/config/json_file.h"
#include "common/config/object_reader.h"
#include "common/os/text_file.h"
#include "server/checkpoint/sealed_json.h"
#include "server/cluster/replica_text.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kMarkName = "primary.json";
constexpr std::string_view kMarkFormat = "psd primary", kMarkChecksum = "crc32c";
constexpr uint64_t kMarkBytesMax = 4096;

/// Reads and validates a mark.
Result<FolderRecord> readMark(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::string text, readText(env, path, kMarkBytesMax, "the primary's mark"));
  PSD_ASSIGN_OR_RETURN(Json document, openSealedJson(text, kMarkChecksum));
  ObjectReader in(std::move(document));
  if (in.text("format", "") != kMarkFormat) in.fail("format", "must be \"" + std::string(kMarkFormat) + "\"");
  const std::string daemon = in.text("daemon", "");
  FolderRecord mark;
  mark.standby = in.boolean("standby", false);
  mark.term = in.integer("epoch", 0, mark.standby ? 0 : 1, UINT64_MAX);
  in.text(kMarkChecksum, "");
  const auto [end, error] =
      std::from_chars(daemon.data(), daemon.data() + daemon.size(), mark.daemon.value, 16);
  if (error != std::errc() || end != daemon.data() + daemon.size()) {
    in.fail("daemon", "must be a number of 16 hexadecimal digits");
  }
  if (const Status read = in.finish(); !read.ok()) {
    return Error{read.error().code, "'" + path + "': " + read.message()};
  }
  return mark;
}

}  // namespace

std::string FolderMark::path() const { return durability_.path + "/" + std::string(kMarkName); }

void FolderMark::setTerm(uint64_t term) {
  const std::lock_guard hold(mutex_);
  term_ = term;
}

Status FolderMark::write() {
  const std::lock_guard hold(mutex_);
  if (!durability_.enabled() || term_ == 0 || markedTerm_ == term_) return {};
  PSD_RETURN_IF_ERROR(write({.daemon = me_, .term = term_}));
  markedTerm_ = term_;
  return {};
}

Status FolderMark::renew() {
  {
    const std::lock_guard hold(mutex_);
    if (markedTerm_ == 0) return {};
  }
  return write();
}

Status FolderMark::writeAsStandby(uint64_t term) {
  const std::lock_guard hold(mutex_);
  PSD_RETURN_IF_ERROR(write({.daemon = me_, .term = term, .standby = true}));
  markedTerm_ = term;
  return {};
}

void FolderMark::followAnother() {
  const std::lock_guard hold(mutex_);
  markedTerm_ = 0;
}

Status FolderMark::write(const FolderRecord& mark) const {
  Json text = {{"format", kMarkFormat}, {"daemon", hex(mark.daemon)}, {"epoch", mark.term}};
  if (mark.standby) text["standby"] = true;
  return writeTextAtomically(env_, path(), sealJson(text, kMarkChecksum));
}

SavedFolder FolderMark::read() const {
  if (!durability_.enabled()) return {};
  if (durability_.resume != "auto") return {.record = {}, .chosen = true};
  const auto there = env_.exists(path());
  if (there.ok() && !*there) return {};
  auto mark = readMark(env_, path());
  if (!mark.ok()) {
    spdlog::error(
        "cannot read whose state the folder holds ({}): in a replica set this daemon serves it only after "
        "psd recover",
        mark.message());
    return {.record = FolderRecord()};
  }
  mark->complete = durability_.type == DurabilityConfig::Type::log;
  return {.record = *mark};
}

}  // namespace psd
