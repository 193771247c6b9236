#include "server/publish/version_ledger.h"

#include <algorithm>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "common/text/quantity.h"

namespace psd {

void VersionLedger::restore(uint64_t number, uint64_t bytes, Time heldUntil) {
  versions_[number] = {bytes, heldUntil};
  reserveNumber(number);
}

Result<uint64_t> VersionLedger::begin(uint64_t bytes, Time now) {
  if (2 * bytes > terms_.bytes) {
    return Error{ErrorCode::overloaded,
                 fmt::format("a version takes {}, and limits.version_bytes ({}) must admit two: raise it",
                             bytesText(bytes), bytesText(terms_.bytes))};
  }
  uint64_t stays = this->bytes();
  for (const uint64_t number : surplus(bytes, now)) stays -= versions_.at(number).bytes;
  if (stays + bytes > terms_.bytes) {
    return Error{ErrorCode::overloaded,
                 fmt::format("the versions that must stay take {} and this one {}, beyond "
                             "limits.version_bytes ({}): raise it, or wait for leases to end (psd versions)",
                             bytesText(stays), bytesText(bytes), bytesText(terms_.bytes))};
  }
  return ++highest_;
}

std::vector<uint64_t> VersionLedger::surplus(uint64_t bytes, Time now) const {
  std::vector<uint64_t> out;
  uint64_t left = this->bytes();
  size_t unleased = 0;
  for (const auto& [number, version] : versions_) unleased += isLeased(number, version, now) ? 0 : 1;
  for (const auto& [number, version] : versions_) {
    const bool beyondKeep = bytes == 0 && unleased > terms_.keep;
    const bool beyondBytes = left + bytes > terms_.bytes;
    if (!beyondKeep && !beyondBytes) break;
    if (number == newest() || isLeased(number, version, now)) continue;
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
                 fmt::format("{} leases are held, which is limits.version_leases", leases_.size())};
  }
  std::set<uint64_t> leased = {number};
  for (const auto& [other, lease] : leases_) {
    if (other != id) leased.insert(lease.number);
  }
  for (const auto& [other, held] : versions_) {
    if (held.heldUntil > now) leased.insert(other);
  }
  uint64_t bytes = 2 * versions_.rbegin()->second.bytes;
  for (const uint64_t each : leased) bytes += versions_.at(each).bytes;
  if (bytes > terms_.bytes) {
    return Error{
        ErrorCode::overloaded,
        fmt::format("{} versions would be leased, which with room for two more exceeds "
                    "limits.version_bytes ({}): raise it, or read the newest version without a lease",
                    leased.size(), bytesText(terms_.bytes))};
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
  if (number > newest()) {
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

std::map<uint64_t, VersionLedger::Time> VersionLedger::leasedUntil() const {
  std::map<uint64_t, Time> out;
  for (const auto& [number, version] : versions_) {
    if (version.heldUntil > Time::min()) out[number] = version.heldUntil;
  }
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

bool VersionLedger::isLeased(uint64_t number, const Version& version, Time now) const {
  return version.heldUntil > now ||
         std::ranges::any_of(leases_, [number](const auto& each) { return each.second.number == number; });
}

}  // namespace psd
