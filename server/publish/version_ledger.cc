#include "server/publish/version_ledger.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "common/text/quantity.h"

namespace psd {

void VersionLedger::restore(uint64_t number, uint64_t bytes, Time heldUntil) {
  versions_[number] = {bytes, heldUntil};
  reserveNumber(number);
}

void VersionLedger::holdUntil(uint64_t number, Time until) {
  const auto version = versions_.find(number);
  if (version != versions_.end()) version->second.heldUntil = std::max(version->second.heldUntil, until);
}

Status VersionLedger::admits(uint64_t bytes, Time now) const {
  if (3 * bytes > terms_.bytes) {
    return {ErrorCode::overloaded,
            fmt::format("a version takes {}, and limits.version_bytes ({}) must admit three: raise it",
                        bytesText(bytes), bytesText(terms_.bytes))};
  }
  uint64_t stays = this->bytes();
  for (const uint64_t number : surplus(bytes, now)) stays -= versions_.at(number).bytes;
  if (stays + bytes <= terms_.bytes) return {};
  return {
      ErrorCode::overloaded,
      fmt::format("leased versions and the newest take {} and the new one {}, beyond limits.version_bytes "
                  "({}): raise it, or wait for leases to expire (psd versions)",
                  bytesText(stays), bytesText(bytes), bytesText(terms_.bytes))};
}

Result<uint64_t> VersionLedger::begin(uint64_t bytes, Time now) {
  PSD_RETURN_IF_ERROR(admits(bytes, now));
  return ++highest_;
}

std::vector<uint64_t> VersionLedger::surplus(uint64_t bytes, Time now) const {
  std::vector<uint64_t> out;
  const std::set<uint64_t> kept = leased(now);
  uint64_t left = this->bytes();
  size_t unleased = versions_.size() - kept.size();
  for (const auto& [number, version] : versions_) {
    const bool beyondKeep = bytes == 0 && unleased > terms_.keep;
    const bool beyondBytes = left + bytes > terms_.bytes;
    if (!beyondKeep && !beyondBytes) break;
    if (number == newest() || kept.contains(number)) continue;
    out.push_back(number);
    left -= version.bytes;
    unleased--;
  }
  return out;
}

void VersionLedger::commit(uint64_t number, uint64_t bytes) {
  versions_[number] = {bytes};
  reserveNumber(number);
}

void VersionLedger::removed(uint64_t number) {
  versions_.erase(number);
  std::erase_if(leases_, [number](const auto& each) { return each.second.number == number; });
}

Result<VersionLedger::Lease> VersionLedger::lease(uint64_t id, uint64_t number, std::chrono::seconds time,
                                                  std::string reader, Time now) {
  expire(now);
  const auto version = versions_.find(number);
  if (version == versions_.end()) return missing(number);
  if (id == 0) return Error{ErrorCode::invalidArgument, "the id of a lease must not be 0"};
  if (time.count() <= 0 || time > terms_.leaseMax) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("a lease lasts 1 to {} seconds, not {}", terms_.leaseMax.count(), time.count())};
  }
  const auto held = leases_.find(id);
  if (held == leases_.end() && leases_.size() >= terms_.leases) {
    return Error{ErrorCode::overloaded,
                 fmt::format("all leases that limits.version_leases ({}) allows are taken", terms_.leases)};
  }
  std::set<uint64_t> kept = {number};
  for (const auto& [other, lease] : leases_) {
    if (other != id) kept.insert(lease.number);
  }
  for (const auto& [other, held] : versions_) {
    if (held.heldUntil > now) kept.insert(other);
  }
  uint64_t bytes = 2 * versions_.rbegin()->second.bytes;
  for (const uint64_t each : kept) bytes += versions_.at(each).bytes;
  if (bytes > terms_.bytes) {
    return Error{
        ErrorCode::overloaded,
        fmt::format("with this one, leased versions and room for two more exceed limits.version_bytes ({}): "
                    "raise it, or wait for leases to expire (psd versions)",
                    bytesText(terms_.bytes))};
  }
  return leases_[id] = {id, number, std::move(reader), now + time};
}

void VersionLedger::expire(Time now) {
  std::erase_if(leases_, [now](const auto& each) { return each.second.until <= now; });
  for (auto& [number, version] : versions_) {
    if (version.heldUntil <= now) version.heldUntil = Time::min();
  }
}

Error VersionLedger::missing(uint64_t number) const {
  if (versions_.empty()) return {ErrorCode::notReady, "no version is published yet"};
  if (number > highest_) {
    return {ErrorCode::notReady,
            fmt::format("version {} does not exist yet; the newest is {}", number, newest())};
  }
  return {ErrorCode::notReady, fmt::format("version {} was removed; the oldest is {} and the newest {}",
                                           number, versions_.begin()->first, newest())};
}

std::vector<uint64_t> VersionLedger::numbers() const {
  std::vector<uint64_t> out;
  for (const auto& [number, version] : versions_) out.push_back(number);
  return out;
}

std::map<uint64_t, VersionLedger::Time> VersionLedger::heldUntil() const {
  std::map<uint64_t, Time> out;
  for (const auto& [number, version] : versions_) {
    if (version.heldUntil > Time::min()) out[number] = version.heldUntil;
  }
  return out;
}

std::map<uint64_t, VersionLedger::Time> VersionLedger::leasedUntil() const {
  std::map<uint64_t, Time> out = heldUntil();
  for (const auto& [id, lease] : leases_) {
    Time& until = out.try_emplace(lease.number, lease.until).first->second;
    until = std::max(until, lease.until);
  }
  return out;
}

std::vector<VersionLedger::Lease> VersionLedger::leases() const {
  std::vector<Lease> out;
  for (const auto& [id, lease] : leases_) out.push_back(lease);
  return out;
}

uint64_t VersionLedger::bytes() const {
  uint64_t sum = 0;
  for (const auto& [number, version] : versions_) sum += version.bytes;
  return sum;
}

std::set<uint64_t> VersionLedger::leased(Time now) const {
  std::set<uint64_t> out;
  for (const auto& [id, lease] : leases_) out.insert(lease.number);
  for (const auto& [number, version] : versions_) {
    if (version.heldUntil > now) out.insert(number);
  }
  return out;
}

}  // namespace psd
